//! The lock of the legacy variant.

use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backend_iptables::Variant;
use proxy_core::address::IpFamily;
use proxy_core::sync::TableSync as _;
use proxy_core::table::TableErrorKind;
use testbed::resolved::{cluster_ip_service, node};

use crate::support::{assert_in_step, block_on, everywhere, synchronizer};

/// Where the lock is unless `XTABLES_LOCKFILE` says otherwise.
const LOCK: &str = "/run/xtables.lock";

#[test]
fn failure_28_a_lock_that_others_hold_is_waited_for_with_a_bound() {
    everywhere(|family, variant| {
        if variant == Variant::Nft || family == IpFamily::V6 {
            return;
        }
        let file = std::env::var("XTABLES_LOCKFILE").unwrap_or_else(|_| LOCK.to_owned());
        let file = File::options().create(true).truncate(false).write(true).open(file).unwrap();
        file.lock().unwrap();
        let mut sync = synchronizer(family, variant);
        let service = Arc::new(cluster_ip_service(family, 1, 2));
        sync.stage(vec![(service.name.clone(), Some(service))], Some(node(family)));
        let start = Instant::now();
        let error = block_on(sync.sync()).unwrap_err();
        assert_eq!(error.kind(), TableErrorKind::Busy, "{}", error.chain());
        assert!(error.chain().contains("the lock of iptables"), "{}", error.chain());
        assert!(start.elapsed() < Duration::from_secs(30));
        file.unlock().unwrap();
        let report = block_on(sync.sync()).unwrap();
        assert!(report.changed_objects > 0);
        assert_in_step(&sync, variant);
    });
}
