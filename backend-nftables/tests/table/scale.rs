//! Size does not change what is needed for a change.

use std::sync::Arc;

use proxy_core::address::IpFamily;
use proxy_core::names::Protocol;
use proxy_core::resolved::{FrontendKey, FrontendKind, PoolKind, ResolvedService, Routes};

use crate::support::{
    Services, address, assert_in_step, cluster_ip_service, forward, frontend, in_namespace,
    service, sync_to, synchronizer,
};

#[test]
fn three_thousand_endpoints() {
    for family in IpFamily::ALL {
        in_namespace(|| {
            let mut sync = synchronizer(family);
            let empty = sync_to(&mut sync, &Services::new(), &Services::new()).changed_objects;
            let old = vec![Arc::new(cluster_ip_service(family, 1, 3000))];
            let report = sync_to(&mut sync, &Services::new(), &old);
            assert!(
                report.changed_objects < 3000 + 1000 + 16,
                "{} {empty}",
                report.changed_objects
            );
            assert_in_step(&sync);
            let mut fewer = (*old[0]).clone();
            fewer.ports[0].cluster.endpoints.remove(1234);
            let fewer = vec![Arc::new(fewer)];
            assert!(sync_to(&mut sync, &old, &fewer).changed_objects <= 3);
            assert!(sync_to(&mut sync, &fewer, &old).changed_objects <= 3);
            assert_in_step(&sync);
        });
    }
}

/// Known failure 21: objects grow with frontends plus endpoints, not with their product.
#[test]
fn many_frontends_share_their_endpoints() {
    let with = |family, frontends: u32, endpoints| -> Arc<ResolvedService> {
        let routes = Routes::all(forward(PoolKind::Cluster, true));
        let key = |number: u32| FrontendKey::Address {
            address: address(family, 192, number / 10),
            port: u16::try_from(8000 + number % 10).unwrap(),
            protocol: Protocol::Tcp,
        };
        let frontends = (0..frontends)
            .map(|number| frontend(key(number), FrontendKind::LoadBalancerIp, routes));
        Arc::new(service(family, 1, frontends.collect(), endpoints))
    };
    for family in IpFamily::ALL {
        in_namespace(|| {
            let mut sync = synchronizer(family);
            sync_to(&mut sync, &Services::new(), &Services::new());
            let old = vec![with(family, 100, 200)];
            let objects = sync_to(&mut sync, &Services::new(), &old).changed_objects;
            // Every third endpoint is on this node, and so an element for hairpin traffic.
            assert!(objects <= 100 + 200 + 70 + 16, "{objects}");
            let many = vec![with(family, 1000, 200)];
            let objects = sync_to(&mut sync, &old, &many).changed_objects;
            assert!(objects <= 900 + 16, "{objects}");
            let more = vec![with(family, 1000, 201)];
            assert!(sync_to(&mut sync, &many, &more).changed_objects <= 3);
            assert_in_step(&sync);
        });
    }
}
