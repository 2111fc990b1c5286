//! Packet decisions: which pool, and whether masqueraded, for pods, the host and everyone else.

use proxy_core::address::{Cidr, IpFamily};
use proxy_core::options::{DetectLocal, Options};
use serde_json::{Value, json};

use crate::world::{World, options, service, slice};

const FRONTENDS: [(&str, &str); 4] = [
    ("cluster IP", "172.30.0.1:80/tcp"),
    ("external IP", "192.0.2.1:80/tcp"),
    ("load-balancer IP", "192.0.2.2:80/tcp"),
    ("node port", "*:30080/tcp"),
];

fn spec(internal: &str, external: &str) -> Value {
    json!({
        "type": "LoadBalancer",
        "internalTrafficPolicy": internal,
        "externalTrafficPolicy": external,
        "healthCheckNodePort": 32000,
        "ports": [{"port": 80, "nodePort": 30080}],
        "externalIPs": ["192.0.2.1"],
        "vips": ["192.0.2.2"],
    })
}

fn without_detector() -> Options {
    Options { detect_local: DetectLocal::ClusterCidr(Vec::new()), ..options() }
}

/// `cluster` is what the cluster IP does, `others` what all other frontends do.
fn check(options: &Options, spec: &Value, endpoints: &[&str], cluster: &str, others: &str) {
    let objects = [service(spec.clone()), slice("s", endpoints)];
    let mut world = World::with(options.clone(), &objects);
    for (kind, key) in FRONTENDS {
        let expected = if kind == "cluster IP" { cluster } else { others };
        assert_eq!(world.routes(key), expected, "{kind} with {endpoints:?} and {spec}");
    }
}

#[test]
fn routes_by_policy_and_endpoints() {
    let here: &[&str] = &["e1 R L", "e2 R"];
    let elsewhere: &[&str] = &["e1 L", "e2 R"];
    let nowhere: &[&str] = &["e1 L", "e2"];
    let reject = "reject reject reject";
    let drop = "drop drop drop";
    for (internal, external, endpoints, cluster, others) in [
        ("Cluster", "Cluster", here, "C C* C*", "C* C* C*"),
        ("Cluster", "Cluster", elsewhere, "C C* C*", "C* C* C*"),
        ("Cluster", "Cluster", nowhere, reject, reject),
        ("Local", "Cluster", here, "L L* L*", "C* C* C*"),
        ("Local", "Cluster", elsewhere, drop, "C* C* C*"),
        ("Local", "Cluster", nowhere, reject, reject),
        ("Cluster", "Local", here, "C C* C*", "C C* L"),
        ("Cluster", "Local", elsewhere, "C C* C*", "C C* drop"),
        ("Cluster", "Local", nowhere, reject, reject),
        ("Local", "Local", here, "L L* L*", "C C* L"),
        ("Local", "Local", elsewhere, drop, "C C* drop"),
        ("Local", "Local", nowhere, reject, reject),
    ] {
        check(&options(), &spec(internal, external), endpoints, cluster, others);
    }
}

#[test]
fn without_a_detector_nobody_is_a_pod() {
    let none = without_detector();
    let here: &[&str] = &["e1 R L", "e2 R"];
    check(&none, &spec("Cluster", "Cluster"), here, "C C C", "C* C* C*");
    check(&none, &spec("Cluster", "Local"), here, "C C C", "L C* L");
    check(&none, &spec("Cluster", "Local"), &["e2 R"], "C C C", "drop C* drop");
}

#[test]
fn masquerade_all_concerns_cluster_ips_only() {
    let here: &[&str] = &["e1 R L", "e2 R"];
    for base in [options(), without_detector()] {
        let all = Options { masquerade_all: true, ..base.clone() };
        let pods = if base == options() { "C" } else { "L" };
        check(&all, &spec("Cluster", "Cluster"), here, "C* C* C*", "C* C* C*");
        check(&all, &spec("Cluster", "Local"), here, "C* C* C*", &format!("{pods} C* L"));
    }
}

#[test]
fn known_failure_35_no_frontend_misbehaves_without_endpoints() {
    let reject = "reject reject reject";
    for external in ["Cluster", "Local"] {
        let mut without_slice = World::new(&[service(spec("Cluster", external))]);
        for (kind, key) in FRONTENDS {
            assert_eq!(without_slice.routes(key), reject, "{kind}, no slice");
        }
        check(&options(), &spec("Cluster", external), &[], reject, reject);
        check(&options(), &spec("Cluster", external), &["e1"], reject, reject);
    }
}

#[test]
fn s3_8_the_external_policy_needs_something_external() {
    for (kind, external_ips, expected) in [
        ("ClusterIP", json!([]), None),
        ("ClusterIP", json!(["192.0.2.1"]), Some("C C* drop")),
        ("", json!(["192.0.2.1"]), Some("C C* drop")),
        ("NodePort", json!(["192.0.2.1"]), Some("C C* drop")),
    ] {
        let spec = json!({
            "type": kind, "externalTrafficPolicy": "Local", "externalIPs": external_ips,
        });
        let mut world = World::new(&[service(spec), slice("s", &["e1 R"])]);
        assert_eq!(world.routes("172.30.0.1:80/tcp"), "C C* C*");
        if let Some(expected) = expected {
            assert_eq!(world.routes("192.0.2.1:80/tcp"), expected);
        }
    }
}

#[test]
fn s3_5_external_ips_can_be_switched_off_but_still_count() {
    let off = Options { allow_external_ips: false, ..options() };
    let spec = json!({"externalIPs": ["192.0.2.1"], "internalTrafficPolicy": "Local"});
    let mut world = World::with(off, &[service(spec), slice("s", &["e1 R"])]);
    assert_eq!(world.frontends(), ["172.30.0.1:80/tcp cluster IP drop drop drop"]);
    assert_eq!(world.pools().0, "e1", "counts as reachable from outside");
}

#[test]
fn known_failure_69_external_ips_out_of_range_are_reported_and_left_out() {
    let ranges = ["198.51.100.0/24", "192.0.2.0/28"].map(|range| Cidr::parse(range).unwrap());
    let limited = Options { external_ip_ranges: ranges.into(), ..options() };
    let spec = json!({
        "externalIPs": ["192.0.2.1", "192.0.2.16", "8.8.8.8"], "vips": ["192.0.2.99"],
    });
    let mut world = World::with(limited.clone(), &[service(spec), slice("s", &["e1 R"])]);
    assert_eq!(
        world.frontends(),
        [
            "172.30.0.1:80/tcp cluster IP C C* C*",
            "192.0.2.1:80/tcp external IP C* C* C*",
            "192.0.2.99:80/tcp load-balancer IP C* C* C*",
        ]
    );
    let left_out = |address| {
        format!(
            "Service/default/web: spec.externalIPs: {address} is in no range for external IPs; left out"
        )
    };
    assert_eq!(world.diagnostics(), ["192.0.2.16", "8.8.8.8"].map(left_out));
    // An address that is left out is not taken from whoever may have it, and with ranges of one
    // family nothing of the other is served.
    let spec = json!({
        "ipFamilies": ["IPv6"], "clusterIP": "fd00:172:30::1", "clusterIPs": ["fd00:172:30::1"],
        "externalIPs": ["2001:db8::1"],
    });
    let mut world = World::with(limited, &[service(spec)]);
    let found = world.find_in(IpFamily::V6, "web").unwrap();
    assert_eq!(found.ports[0].frontends.len(), 1, "the cluster IP alone");
}
