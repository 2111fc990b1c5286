//! What holds for every cluster.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proxy_core::address::IpFamily;
use proxy_core::event::Kind;
use proxy_core::options::Options;
use proxy_core::resolved::{Frontend, FrontendKind, ResolvedPort, ResolvedService, Route};
use serde_json::{Value, json};

use crate::generate;
use crate::world::{World, options};

fn services(world: &mut World) -> Vec<ResolvedService> {
    let mut all = Vec::new();
    for family in IpFamily::ALL {
        world.store.take_changes(family);
        all.extend(world.store.services(family).map(|service| (**service).clone()));
    }
    all
}

fn masquerades(route: Route) -> bool {
    matches!(route, Route::Forward { masquerade: true, .. })
}

/// The frontends of all Services, by what is dialled and in which family.
fn frontends(world: &mut World) -> BTreeMap<String, Frontend> {
    let services = services(world);
    let ports = services.iter().flat_map(|it| it.ports.iter().map(|port| (it.cluster_ip, port)));
    ports
        .flat_map(|(ip, port)| {
            let family = IpFamily::of(ip);
            port.frontends.iter().map(move |it| (format!("{family} {}", it.key), it.clone()))
        })
        .collect()
}

fn check_port(port: &ResolvedPort) {
    let routes: Vec<Route> = port.frontends.iter().flat_map(|it| it.routes.iter()).collect();
    for route in &routes {
        if let Route::Forward { pool, .. } = route {
            assert!(!port.pool(*pool).endpoints.is_empty(), "no path leads to an empty pool");
        }
    }
    let rejected = routes.iter().filter(|route| **route == Route::Reject).count();
    assert!(rejected == 0 || rejected == routes.len(), "refused everywhere or nowhere");
    let outside = port.frontends.iter().any(|it| it.kind != FrontendKind::ClusterIp);
    if outside && port.cluster.endpoints.is_empty() {
        assert!(port.local.endpoints.is_empty() && rejected == routes.len());
    }
    assert!(port.local.endpoints.iter().all(|endpoint| endpoint.is_local));
    for pool in [&port.cluster, &port.local] {
        let texts: Vec<String> = pool
            .endpoints
            .iter()
            .map(|it| std::net::SocketAddr::new(it.address, it.port).to_string())
            .collect();
        assert!(texts.is_sorted_by(|a, b| a < b), "in order and each once: {texts:?}");
    }
    assert!(port.frontends.is_sorted_by(|a, b| a.key < b.key));
}

fn with_external_policy(objects: &[Value], policy: &str) -> Vec<Value> {
    let mut objects = objects.to_vec();
    for object in objects.iter_mut().filter(|object| object["kind"] == "Service") {
        object["spec"]["externalTrafficPolicy"] = json!(policy);
    }
    objects
}

proptest! {
    #[test]
    fn frontends_lead_somewhere_or_say_so(objects in generate::objects()) {
        for service in services(&mut World::new(&objects)) {
            service.ports.iter().for_each(check_port);
            prop_assert!(service.ports.is_sorted_by(|a, b| a.name < b.name));
        }
    }

    #[test]
    fn no_frontend_has_two_owners(objects in generate::objects()) {
        let mut world = World::new(&objects);
        let owned: usize = services(&mut world)
            .iter()
            .flat_map(|service| &service.ports)
            .map(|port| port.frontends.len())
            .sum();
        prop_assert_eq!(owned, frontends(&mut world).len());
    }

    #[test]
    fn policy_cluster_masquerades_whatever_policy_local_does(objects in generate::objects()) {
        let cluster = frontends(&mut World::new(&with_external_policy(&objects, "Cluster")));
        let local = frontends(&mut World::new(&with_external_policy(&objects, "Local")));
        for (key, local) in &local {
            for (local, cluster) in local.routes.iter().zip(cluster[key].routes.iter()) {
                prop_assert!(masquerades(cluster) || !masquerades(local), "{}", key);
            }
        }
    }

    #[test]
    fn masquerade_all_touches_cluster_ips_only(objects in generate::objects()) {
        let all = Options { masquerade_all: true, ..options() };
        let mut plain = frontends(&mut World::new(&objects));
        let mut all = frontends(&mut World::with(all, &objects));
        plain.retain(|_, frontend| frontend.kind != FrontendKind::ClusterIp);
        all.retain(|_, frontend| frontend.kind != FrontendKind::ClusterIp);
        prop_assert_eq!(plain, all);
    }

    #[test]
    fn deleted_and_added_again_is_as_if_untouched(objects in generate::objects()) {
        let mut world = World::new(&objects);
        let before = services(&mut world);
        let last = |name: &str| objects.iter().rfind(|object| object["metadata"]["name"] == name);
        for name in ["a", "b", "c", "d"] {
            world.delete(Kind::Service, name);
            services(&mut world);
            if let Some(service) = last(name) {
                world.apply(service);
            }
        }
        prop_assert_eq!(before, services(&mut world));
    }
}
