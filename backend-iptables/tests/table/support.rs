//! A namespace to program Services in, for each variant of iptables.

use std::process::Command;
use std::sync::Arc;

use backend_iptables::{IptablesTable, Key, Rule, TableConfig, Tool, Variant};
use node_sys::host::Capabilities;
use proxy_core::address::{Cidr, IpFamily};
use proxy_core::node::LocalDetector;
use proxy_core::resolved::ResolvedService;
use proxy_core::rules::{RuleSet, reconcile};
use proxy_core::sync::{SyncReport, Synchronizer, TableSync as _};
use proxy_core::table::ServiceTable as _;
use testbed::resolved::node;

pub(crate) type Rules = RuleSet<Key, Rule>;
pub(crate) type Sync = Synchronizer<IptablesTable>;
pub(crate) type Services = Vec<Arc<ResolvedService>>;

pub(crate) const VARIANTS: [Variant; 2] = [Variant::Nft, Variant::Legacy];

/// Runs a test for each variant and family, each in a namespace of its own. Without the privilege
/// it is reported as skipped, except in CI.
pub(crate) fn everywhere(test: impl Fn(IpFamily, Variant) + std::marker::Sync) {
    let privileged = node_sys::host::capabilities().is_ok_and(Capabilities::has_net_admin);
    if !privileged && std::env::var("CI").as_deref() != Ok("true") {
        println!("skipped: needs CAP_NET_ADMIN");
        return;
    }
    for variant in VARIANTS {
        for family in IpFamily::ALL {
            node_sys::namespace::in_new_network_namespace(|| test(family, variant)).unwrap();
        }
    }
}

/// Runs a future to its end on this thread.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

pub(crate) fn config(family: IpFamily) -> TableConfig {
    let pods = match family {
        IpFamily::V4 => Cidr::parse("10.180.0.0/16"),
        IpFamily::V6 => Cidr::parse("fd00:10:180::/48"),
    };
    TableConfig {
        family,
        detector: Some(LocalDetector::Source(pods.unwrap())),
        masquerade_bit: 14,
        localhost_node_ports: true,
        routes_localnet: false,
        drops_invalid: true,
    }
}

pub(crate) fn table(family: IpFamily, variant: Variant) -> IptablesTable {
    IptablesTable::new(&config(family), Tool::find(family, variant).unwrap()).unwrap()
}

pub(crate) fn synchronizer(family: IpFamily, variant: Variant) -> Sync {
    Synchronizer::new(table(family, variant))
}

/// Goes from some Services to others.
pub(crate) fn sync_to(sync: &mut Sync, old: &Services, new: &Services) -> SyncReport {
    let gone = old.iter().filter(|old| !new.iter().any(|new| new.name == old.name));
    let mut changes: Vec<_> = gone.map(|service| (service.name.clone(), None)).collect();
    changes.extend(new.iter().map(|service| (service.name.clone(), Some(Arc::clone(service)))));
    let node = node(sync.family());
    sync.stage(changes, Some(node));
    let report = block_on(sync.sync()).unwrap();
    assert!(report.left_out.is_empty(), "{:?}", report.left_out);
    report
}

pub(crate) fn observed(family: IpFamily, variant: Variant) -> Rules {
    block_on(table(family, variant).observe()).unwrap()
}

/// Asserts that the kernel has what is wanted and nothing else.
pub(crate) fn assert_in_step(sync: &Sync, variant: Variant) {
    let observed = observed(sync.family(), variant);
    let delta = reconcile(&sync.wanted_rules(&observed), &observed);
    assert!(delta.is_empty(), "{variant}: {:#?}", delta.changes);
}

/// What the family's program is called, in this variant.
pub(crate) fn program(family: IpFamily, variant: Variant, suffix: &str) -> String {
    let base = match family {
        IpFamily::V4 => "iptables",
        IpFamily::V6 => "ip6tables",
    };
    format!("{base}-{variant}{suffix}")
}

/// Runs one command of iptables in this thread's namespace; gives what it prints.
pub(crate) fn iptables(family: IpFamily, variant: Variant, arguments: &str) -> String {
    let words = arguments.split(' ');
    let output = Command::new(program(family, variant, "")).args(words).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{arguments}: {}", text(&output.stderr));
    text(&output.stdout)
}
