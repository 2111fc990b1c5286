//! Services to program, and a namespace to do it in.

pub(crate) mod walk;

use std::io::Write as _;
use std::process::Stdio;
use std::sync::Arc;

use backend_nftables::{Key, NftablesTable, Rule, TableConfig};
use node_sys::host::Capabilities;
use node_sys::netlink::{Event, Listener};
use proxy_core::address::{Cidr, IpFamily};
use proxy_core::node::LocalDetector;
use proxy_core::resolved::ResolvedService;
use proxy_core::rules::{RuleSet, reconcile};
use proxy_core::sync::{SyncReport, Synchronizer, TableSync};
use proxy_core::table::ServiceTable as _;
pub(crate) use testbed::resolved::{
    address, cluster_ip_service, every_shape, forward, frontend, generate, node, pool, service,
};

pub(crate) type Rules = RuleSet<Key, Rule>;

/// Runs a kernel test in a namespace of its own. Without the privilege it is reported as skipped,
/// except in CI, where nothing is skipped.
pub(crate) fn in_namespace<T: Send>(test: impl FnOnce() -> T + Send) -> Option<T> {
    let privileged = node_sys::host::capabilities().is_ok_and(Capabilities::has_net_admin);
    if !privileged && std::env::var("CI").as_deref() != Ok("true") {
        println!("skipped: needs CAP_NET_ADMIN");
        return None;
    }
    Some(node_sys::namespace::in_new_network_namespace(test).unwrap())
}

/// Runs a future to its end on this thread.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// Like [`in_namespace`], for tests that also need the program nft.
pub(crate) fn in_namespace_with_nft(test: impl FnOnce() + Send) {
    if std::process::Command::new("nft").arg("--version").output().is_ok() {
        in_namespace(test);
    } else {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "needs the program nft");
        println!("skipped: needs the program nft");
    }
}

/// Runs nft in this thread's namespace, with commands on its standard input, and gives what it
/// prints.
pub(crate) fn nft(arguments: &[&str], input: &str) -> String {
    let mut child = std::process::Command::new("nft")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "nft {arguments:?} {input}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Runs nft commands.
pub(crate) fn nft_run(commands: &str) {
    nft(&["-f", "-"], commands);
}

/// What nft calls the family.
pub(crate) fn word(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "ip",
        IpFamily::V6 => "ip6",
    }
}

/// nft prints the table, as text and as JSON. Both is checked, the text returned.
pub(crate) fn listing(family: IpFamily) -> String {
    let json = nft(&["-j", "list", "ruleset"], "");
    assert!(json.starts_with('{'), "{json}");
    nft(&["list", "table", word(family), backend_nftables::TABLE], "")
}

/// Counts transactions of nftables in this thread's namespace.
pub(crate) struct Transactions(Listener);

impl Transactions {
    pub(crate) fn new() -> Self {
        // NFNLGRP_NFTABLES.
        Self(Listener::open(node_sys::netlink::Protocol::NETFILTER, &[7]).unwrap())
    }

    /// How many there were since the last call.
    pub(crate) fn count(&mut self) -> usize {
        // NFT_MSG_NEWGEN.
        const NEWGEN: u8 = 15;
        let mut count = 0;
        while let Some(event) = self.0.next_event().unwrap() {
            let Event::Messages(messages) = event else { panic!("too many to count") };
            count += messages.filter(|message| message.command() == NEWGEN).count();
        }
        count
    }
}

pub(crate) type Sync = Synchronizer<NftablesTable>;
pub(crate) type Services = Vec<Arc<ResolvedService>>;

/// A synchronizer that knows nothing yet.
pub(crate) fn synchronizer(family: IpFamily) -> Sync {
    Synchronizer::new(table(family))
}

/// Goes from some Services to others.
pub(crate) fn sync_to(sync: &mut impl TableSync, old: &Services, new: &Services) -> SyncReport {
    let gone = old.iter().filter(|old| !new.iter().any(|new| new.name == old.name));
    let mut changes: Vec<_> = gone.map(|service| (service.name.clone(), None)).collect();
    changes.extend(new.iter().map(|service| (service.name.clone(), Some(Arc::clone(service)))));
    let node = node(sync.family());
    sync.stage(changes, Some(node));
    block_on(sync.sync()).unwrap()
}

/// Asserts that the kernel has what is wanted and nothing else.
pub(crate) fn assert_in_step(sync: &Sync) {
    let observed = block_on(table(sync.family()).observe()).unwrap();
    let delta = reconcile(&sync.wanted_rules(&observed), &observed);
    assert!(delta.is_empty(), "{:#?}", delta.changes);
}

pub(crate) fn config(family: IpFamily) -> TableConfig {
    let pods = match family {
        IpFamily::V4 => Cidr::parse("10.180.0.0/16"),
        IpFamily::V6 => Cidr::parse("fd00:10:180::/48"),
    };
    TableConfig { family, detector: Some(LocalDetector::Source(pods.unwrap())), masquerade_bit: 14 }
}

pub(crate) fn table(family: IpFamily) -> NftablesTable {
    NftablesTable::open(&config(family)).unwrap()
}

/// All objects that a table with these Services has.
pub(crate) fn compile(table: &NftablesTable, services: &[ResolvedService]) -> Rules {
    let mut rules = RuleSet::new();
    table.compile_node(&node(table.family()), &mut rules);
    for service in services {
        table.compile_service(service, &mut rules);
    }
    rules
}
