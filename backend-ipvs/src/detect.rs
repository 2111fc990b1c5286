//! Whether this kernel can do it: a small table is made where nobody is, in a network namespace of
//! its own.

use std::collections::BTreeSet;
use std::net::IpAddr;

use backend_iptables::Tool;
use node_sys::namespace::{NamespaceError, in_new_network_namespace};
use proxy_core::address::IpFamily;
use proxy_core::names::Protocol;
use proxy_core::rules::{RuleSet, reconcile};
use proxy_core::scheduler::Scheduler;
use proxy_core::table::{TableError, TableErrorKind};

use crate::compile::{Compiler, TableConfig};
use crate::error::netlink_error;
use crate::ipvs::{Command, Ipvs};
use crate::model::{Entry, Key, Rule, ServerKey, ServerSpec, SetName};
use crate::table::{IpvsConfig, IpvsTable};

/// Refuses a kernel that lacks something, and names it.
pub fn detect(config: &TableConfig, tool: &Tool) -> Result<(), TableError> {
    let config = config.clone();
    in_new_network_namespace(move || probe(&config, tool.clone())).map_err(|error| {
        let kind = namespace_kind(&error);
        TableError::new(kind, "probe IPVS in a network namespace").with_source(error)
    })?
}

pub(crate) fn namespace_kind(error: &NamespaceError) -> TableErrorKind {
    if error.is_permission() { TableErrorKind::Permission } else { TableErrorKind::Unsupported }
}

fn probe(config: &TableConfig, tool: Tool) -> Result<(), TableError> {
    let address = match config.family {
        IpFamily::V4 => IpAddr::from([192, 0, 2, 1]),
        IpFamily::V6 => IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1]),
    };
    let full = IpvsConfig {
        table: config.clone(),
        exclude: Vec::new(),
        drain_limit: IpvsConfig::DRAIN_LIMIT,
    };
    let mut table = IpvsTable::open(&full, tool)?;
    check_scheduler(config.scheduler, address)?;
    let mut wanted = RuleSet::new();
    Compiler::new(config).node(&mut wanted);
    let server = ServerKey { address, port: 1, protocol: Protocol::Tcp };
    wanted.insert(Key::Entry(SetName::Servers, Entry::IpPort(server)), Rule::Present);
    wanted.insert(Key::Server(server), Rule::Server(ServerSpec::new(config.scheduler, None)));
    wanted.insert(Key::Bound(address), Rule::Present);
    let installed = table.observe_now()?;
    table.commit_now(&reconcile(&wanted, &installed))?;
    let rest = reconcile(&wanted, &table.observe_now()?);
    match rest.changes.first() {
        None => Ok(()),
        Some(change) => {
            let operation = format!("read back {} as it was written", change.key());
            Err(TableError::new(TableErrorKind::Unsupported, operation))
        }
    }
}

/// A scheduler may be a module that is not there.
fn check_scheduler(scheduler: Scheduler, address: IpAddr) -> Result<(), TableError> {
    let available = available_schedulers(address)?;
    if available.contains(&scheduler) {
        return Ok(());
    }
    let names: Vec<_> = available.iter().map(|it| it.as_str()).collect();
    let operation = format!(
        "find the IPVS scheduler {scheduler} (kernel module ip_vs_{scheduler}); there are {}",
        names.join(", ")
    );
    Err(TableError::new(TableErrorKind::Unsupported, operation))
}

/// The schedulers that this kernel has or can load.
fn available_schedulers(address: IpAddr) -> Result<BTreeSet<Scheduler>, TableError> {
    let failed = |error| netlink_error("try the IPVS schedulers", error);
    let Some(mut ipvs) = Ipvs::open().map_err(failed)? else { return Ok(BTreeSet::new()) };
    let server = |port| ServerKey { address, port, protocol: Protocol::Udp };
    let numbered = || Scheduler::ALL.into_iter().zip(1..);
    let make: Vec<_> = numbered()
        .map(|(it, port)| Command::NewServer(server(port), ServerSpec::new(it, None)))
        .collect();
    let refused = ipvs.send(&make).map_err(failed)?;
    let is_refused = |place: &usize| refused.iter().any(|(refused, _)| refused == place);
    let remove: Vec<_> = numbered().map(|(_, port)| Command::DeleteServer(server(port))).collect();
    // Those that were refused do not exist.
    let _missing = ipvs.send(&remove).map_err(failed)?;
    let places = (0..Scheduler::ALL.len()).filter(|place| !is_refused(place));
    Ok(places.map(|place| Scheduler::ALL[place]).collect())
}
