//! What changes cost, in counts: these do not depend on the machine, so they can fail a build.
#![cfg(test)]

use benches::announced::{Announced, Announcements};
use benches::cluster::{Cluster, applied, deleted};
use benches::rig::Rig;
use node_sys::host::{Capabilities, capabilities};
use node_sys::namespace::in_new_network_namespace;
use proxy_core::address::IpFamily;
use proxy_core::api::{LoadBalancerIngress, Service};
use proxy_core::event::{Object, SourceEvent};

/// Runs a test in a namespace of its own. Without the privilege it is reported as skipped, except
/// in CI, where nothing is skipped.
fn in_namespace<T: Send>(test: impl FnOnce() -> T + Send) -> Option<T> {
    let privileged = capabilities().is_ok_and(Capabilities::has_net_admin);
    if !privileged && std::env::var("CI").as_deref() != Ok("true") {
        println!("skipped: needs CAP_NET_ADMIN");
        return None;
    }
    Some(in_new_network_namespace(test).unwrap())
}

/// The Service that changes.
const NUMBER: usize = 7;
/// A Service that comes and goes.
const GUEST: usize = 3_005;

fn loaded(cluster: &Cluster) -> (Rig, Announcements) {
    let mut rig = Rig::new(cluster.options(), &[cluster.family]);
    rig.step(cluster.lists());
    (rig, Announcements::listen().unwrap())
}

fn slice(cluster: &Cluster, pods: impl IntoIterator<Item = usize>) -> SourceEvent {
    applied(Object::EndpointSlice(cluster.slice(NUMBER, pods)))
}

/// What a change costs: number of changed objects, and what the kernel announces.
fn cost(
    rig: &mut Rig,
    kernel: &mut Announcements,
    events: impl IntoIterator<Item = SourceEvent>,
) -> (usize, Announced) {
    let report = rig.step(events);
    assert!(!report.full, "compared everything for one change");
    let announced = kernel.take().unwrap().expect("a change is too small to lose a part of it");
    (report.changed_objects, announced)
}

/// The costs of one change after the other to one Service among others.
fn costs(cluster: &Cluster) -> Vec<(&'static str, (usize, Announced))> {
    let (mut rig, mut kernel) = loaded(cluster);
    let pods = || cluster.pods(NUMBER);
    let spare = [cluster.spare_pod(NUMBER, 0)];
    let guest = [
        Object::Service(cluster.service(GUEST)),
        Object::EndpointSlice(cluster.slice(GUEST, cluster.pods(GUEST))),
    ];
    let steps = [
        ("nothing new", vec![slice(cluster, pods())]),
        ("replaced", vec![slice(cluster, pods().skip(1).chain(spare))]),
        ("added", vec![slice(cluster, pods().chain(spare))]),
        ("removed", vec![slice(cluster, pods().take(10))]),
        ("10 to 9", vec![slice(cluster, pods().skip(1))]),
        ("9 to 8", vec![slice(cluster, pods().skip(2))]),
        ("8 to 9", vec![slice(cluster, pods().skip(1))]),
        ("service added", guest.iter().cloned().map(applied).collect()),
        ("service removed", guest.iter().map(deleted).collect()),
    ];
    steps.map(|(what, events)| (what, cost(&mut rig, &mut kernel, events))).into()
}

#[test]
fn a_change_costs_its_own_objects() {
    in_namespace(|| {
        let costs = costs(&Cluster::new(IpFamily::V4, 100));
        // Changed objects, transactions, messages. Replacing is deleting and adding. The last
        // number moves into a gap. At a power of two the verdict changes, and the chains that
        // masquerade and tell sources apart for pools of this size are here needed by nobody else.
        let expected = [
            ("nothing new", (0, 0, 0)),
            ("replaced", (1, 1, 2)),
            ("added", (1, 1, 1)),
            ("removed", (2, 1, 3)),
            ("10 to 9", (2, 1, 3)),
            ("9 to 8", (5, 1, 10)),
            ("8 to 9", (4, 2, 8)),
            ("service added", (12, 1, 12)),
            ("service removed", (12, 1, 12)),
        ];
        let counted: Vec<_> = costs
            .iter()
            .map(|(what, (changed, it))| (*what, (*changed, it.transactions, it.messages)))
            .collect();
        assert_eq!(counted, expected);
        for (what, (_, announced)) in costs {
            assert!(announced.bytes <= 160 * announced.messages, "{what}: {announced:?}");
        }
    });
}

#[test]
fn costs_do_not_follow_the_number_of_services() {
    for family in IpFamily::ALL {
        let of = |services| in_namespace(move || costs(&Cluster::new(family, services)));
        assert_eq!(of(100), of(2_000));
    }
}

#[test]
fn costs_do_not_follow_the_number_of_endpoints() {
    for endpoints in [10, 2_999] {
        in_namespace(move || {
            let cluster = Cluster { endpoints, ..Cluster::new(IpFamily::V4, NUMBER + 1) };
            let (mut rig, mut kernel) = loaded(&cluster);
            let pods = || cluster.pods(NUMBER);
            let spare = [cluster.spare_pod(NUMBER, 0)];
            let mut cost =
                |pods: Vec<usize>| cost(&mut rig, &mut kernel, [slice(&cluster, pods)]).1.messages;
            assert_eq!(cost(pods().skip(1).chain(spare).collect()), 2);
            assert_eq!(cost(pods().skip(1).collect()), 3);
            assert_eq!(cost(pods().collect()), 1);
        });
    }
}

#[test]
fn a_restart_writes_nothing() {
    in_namespace(|| {
        let cluster = Cluster::new(IpFamily::V4, 2_000);
        let (first, mut kernel) = loaded(&cluster);
        drop(first);
        let mut second = Rig::new(cluster.options(), &[cluster.family]);
        let report = second.step(cluster.lists());
        assert!(report.full && report.changed_objects == 0, "{report:?}");
        assert_eq!(kernel.take().unwrap(), Some(Announced::default()));
    });
}

/// Objects of one more Service of a shape, with some endpoints, none of them on this node.
fn objects_of(endpoints: usize, change: impl Fn(&mut Service, usize) + Sync) -> Option<usize> {
    in_namespace(|| {
        let cluster = Cluster { endpoints, ..Cluster::new(IpFamily::V4, 2) };
        let mut rig = Rig::new(cluster.options(), &[cluster.family]);
        rig.step(cluster.lists());
        let mut add = |number| {
            let mut service = cluster.service(number);
            change(&mut service, number);
            let pods = cluster.pods(number).map(|pod| pod * 1_000 + 1);
            let slice = cluster.slice(number, pods);
            let events = [Object::Service(service), Object::EndpointSlice(slice)].map(applied);
            rig.step(events).changed_objects
        };
        // The first of a shape also brings the chains that all of the shape share.
        add(2);
        add(3)
    })
}

fn node_port(service: &mut Service, number: usize) {
    "NodePort".clone_into(&mut service.spec.service_type);
    service.spec.ports[0].node_port = i64::try_from(30_000 + number).unwrap();
}

fn load_balancer(service: &mut Service, number: usize, addresses: usize) {
    node_port(service, number);
    "LoadBalancer".clone_into(&mut service.spec.service_type);
    let ip = |index| format!("198.18.{number}.{index}");
    let ingress = (1..=addresses).map(|index| LoadBalancerIngress { ip: ip(index), ip_mode: None });
    service.status.load_balancer.ingress = ingress.collect();
}

#[test]
fn objects_of_standard_shapes() {
    let check = |shape, counted: Option<usize>, expected| {
        assert_eq!(counted.unwrap_or(expected), expected, "{shape}");
    };
    // A cluster IP in the set of all, a frontend, endpoints.
    check("cluster IP", objects_of(10, |_, _| {}), 1 + 1 + 10);
    check("without endpoints", objects_of(0, |_, _| {}), 1 + 1);
    check("node port", objects_of(10, node_port), 1 + 2 * (1 + 10));
    check("load balancer", objects_of(10, |it, n| load_balancer(it, n, 1)), 1 + 3 * (1 + 10));
    let source_ranges = |service: &mut Service, number| {
        load_balancer(service, number, 1);
        service.spec.load_balancer_source_ranges =
            ["192.0.2.0/24", "203.0.113.0/24"].map(str::to_owned).into();
    };
    // And a source filter with its two ranges.
    check("source ranges", objects_of(10, source_ranges), 1 + 3 * (1 + 10) + 1 + 2);
    let affinity = |service: &mut Service, _| {
        "ClientIP".clone_into(&mut service.spec.session_affinity);
    };
    // Each endpoint also in the set of those with affinity; a frontend for remembering; two maps;
    // chains to pick, to masquerade, to tell sources apart, and to remember.
    check("affinity", objects_of(10, affinity), 1 + 2 + 2 * 10 + 2 + 4);
    // Endpoints once and not for each frontend; one map and chains as above.
    let many = |service: &mut Service, number| load_balancer(service, number, 100);
    check("100 addresses", objects_of(200, many), 1 + 102 + 200 + 1 + 3);
}
