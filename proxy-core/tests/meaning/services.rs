//! From Services to service ports (S3).

use std::time::Duration;

use proxy_core::address::IpFamily;
use proxy_core::names::Protocol;
use proxy_core::scheduler::Scheduler;
use serde_json::{Value, json};

use crate::world::{NODE_IP, World, service, slice};

#[test]
fn s3_1_some_services_are_not_served() {
    for spec in [
        json!({"clusterIP": ""}),
        json!({"clusterIP": "None"}),
        json!({"type": "ExternalName"}),
        json!({"clusterIP": "bogus"}),
        json!({"clusterIP": "0.0.0.0"}),
    ] {
        assert_eq!(World::new(&[service(spec.clone())]).find("web"), None, "{spec}");
    }
}

#[test]
fn s2_1_a_service_of_another_proxy_is_not_served() {
    let mut theirs = service(json!({}));
    theirs["metadata"]["labels"] = json!({"service.kubernetes.io/service-proxy-name": ""});
    let mut world = World::new(&[service(json!({}))]);
    assert!(world.find("web").is_some());
    world.apply(&theirs);
    assert_eq!(world.find("web"), None);
    world.apply(&service(json!({})));
    assert!(world.find("web").is_some());
}

#[test]
fn s3_1_no_type_is_needed_for_node_ports_and_addresses() {
    let spec = json!({
        "ports": [{"port": 80, "nodePort": 30080}],
        "externalIPs": ["192.0.2.1"],
        "vips": ["192.0.2.2"],
    });
    assert_eq!(
        World::new(&[service(spec), slice("s", &["e1 R"])]).frontends(),
        [
            "172.30.0.1:80/tcp cluster IP C C* C*",
            "192.0.2.1:80/tcp external IP C* C* C*",
            "192.0.2.2:80/tcp load-balancer IP C* C* C*",
            "*:30080/tcp node port C* C* C*",
        ]
    );
}

#[test]
fn s3_3_each_family_has_its_cluster_ip() {
    let v4 = "172.30.0.1";
    let v6 = "fd00:172:30::1";
    for (families, ips, expected_v4, expected_v6) in [
        (json!([]), json!([]), Some(v4), None),
        (json!(null), json!(null), Some(v4), None),
        (json!(["IPv4"]), json!([v4]), Some(v4), None),
        (json!(["IPv4", "IPv6"]), json!([v4, v6]), Some(v4), Some(v6)),
        (json!(["IPv6", "IPv4"]), json!([v6, v4]), Some(v4), Some(v6)),
        (json!(["IPv4", "IPv6"]), json!([v4]), Some(v4), None),
        (json!(["IPv6"]), json!([v4]), None, None),
    ] {
        let spec = json!({"ipFamilies": families, "clusterIPs": ips});
        let mut world = World::new(&[service(spec.clone())]);
        for (family, expected) in [(IpFamily::V4, expected_v4), (IpFamily::V6, expected_v6)] {
            let found = world.find_in(family, "web").map(|it| it.cluster_ip.to_string());
            assert_eq!(found.as_deref(), expected, "{family} of {spec}");
        }
    }
}

#[test]
fn known_failure_38_a_family_without_cluster_ip_has_nothing() {
    let spec = json!({
        "ipFamilies": ["IPv4"],
        "clusterIPs": ["172.30.0.1"],
        "ports": [{"port": 80, "nodePort": 30080}],
        "externalIPs": ["2001:db8::1"],
    });
    let mut world = World::new(&[service(spec)]);
    assert_eq!(world.find_in(IpFamily::V6, "web"), None);
    assert_eq!(world.find("web").unwrap().ports[0].frontends.len(), 2);
    assert_eq!(world.diagnostics(), Vec::<String>::new(), "known failure 39: and no noise");
}

#[test]
fn s3_5_s3_6_addresses_that_count() {
    let mut with_status = service(json!({
        "externalIPs": ["", " ", "192.0.2.001", "192.0.2.1", "2001:db8::1", "bogus", "224.0.0.1"],
    }));
    with_status["status"] = json!({"loadBalancer": {"ingress": [
        {"ip": "192.0.2.2"},
        {"ip": "192.0.2.3", "ipMode": "VIP"},
        {"ip": "192.0.2.4", "ipMode": "Proxy"},
        {"hostname": "lb.example.com"},
        {"ip": "bogus"},
    ]}});
    let mut world = World::new(&[with_status]);
    let addresses: Vec<String> =
        world.frontends().iter().map(|it| it.replace(" reject reject reject", "")).collect();
    assert_eq!(
        addresses,
        [
            "172.30.0.1:80/tcp cluster IP",
            "192.0.2.1:80/tcp external IP",
            "192.0.2.2:80/tcp load-balancer IP",
            "192.0.2.3:80/tcp load-balancer IP",
        ]
    );
    assert_eq!(
        world.diagnostics(),
        [
            "Service/default/web: spec.externalIPs[5]: \"bogus\" is not an IP address; left out",
            "Service/default/web: spec.externalIPs[6]: 224.0.0.1 cannot be a service address; \
             left out",
            "Service/default/web: status.loadBalancer.ingress[4].ip: \"bogus\" is not an IP \
             address; left out",
        ]
    );
}

/// The source ranges of the load-balancer address in IPv4.
fn source_ranges(ranges: &Value) -> Option<Vec<String>> {
    let spec = json!({"loadBalancerSourceRanges": ranges, "vips": ["192.0.2.2"]});
    let mut world = World::new(&[service(spec)]);
    let port = world.port();
    assert_eq!(port.frontends[0].source_ranges, None, "never at the cluster IP");
    let ranges = port.frontends[1].source_ranges.as_ref()?;
    Some(ranges.iter().map(ToString::to_string).collect())
}

#[test]
fn s3_7_source_ranges() {
    let open: Option<&[&str]> = None;
    for (ranges, expected) in [
        (json!([]), open),
        (json!(["203.0.113.0/25", "0.0.0.0/0"]), open),
        (json!(["::/0"]), open),
        (json!(["2001:db8::/64"]), open),
        (json!([" 203.0.113.000/025 "]), Some(&["203.0.113.0/25"])),
        (json!(["203.0.113.0/25", "::/0"]), Some(&["203.0.113.0/25"])),
        (json!(["203.0.113.0/25", "203.0.113.7/32", "bogus"]), Some(&["203.0.113.0/25"])),
        (json!(["203.0.113.9/25", "203.0.113.0/25"]), Some(&["203.0.113.0/25"])),
        (json!(["192.168.0.0/24"]), Some(&["192.0.2.2/32", "192.168.0.0/24"])),
        (json!([format!("{NODE_IP}/16"), "192.0.0.0/8"]), Some(&["192.0.0.0/8"])),
    ] {
        let expected = expected.map(|ranges| ranges.iter().map(ToString::to_string).collect());
        assert_eq!(source_ranges(&ranges), expected, "{ranges}");
    }
}

#[test]
fn known_failure_31_unreadable_source_ranges_do_not_open_the_firewall() {
    assert_eq!(source_ranges(&json!(["nonsense"])), Some(vec![]));
    assert_eq!(source_ranges(&json!([""])), Some(vec![]));
    assert_eq!(source_ranges(&json!(["203.0.113.0/33", "2001:db8::/64"])), Some(vec![]));
    let spec = json!({"loadBalancerSourceRanges": ["nonsense"], "vips": ["192.0.2.2"]});
    assert_eq!(
        World::new(&[service(spec)]).diagnostics(),
        ["Service/default/web: spec.loadBalancerSourceRanges[0]: \"nonsense\" is not an \
             address range (CIDR); left out"]
    );
}

#[test]
fn s3_9_client_affinity() {
    let timeout = |seconds: i64| json!({"clientIP": {"timeoutSeconds": seconds}});
    for (affinity, config, expected) in [
        ("None", json!(null), None),
        ("", timeout(5), None),
        ("ClientIP", json!(null), Some(10_800)),
        ("ClientIP", json!({}), Some(10_800)),
        ("ClientIP", json!({"clientIP": {}}), Some(10_800)),
        ("ClientIP", timeout(5), Some(5)),
        ("ClientIP", timeout(86_400), Some(86_400)),
        ("ClientIP", timeout(0), Some(10_800)),
        ("ClientIP", timeout(-1), Some(10_800)),
        ("ClientIP", timeout(i64::MAX), Some(10_800)),
        ("Cookie", json!(null), None),
    ] {
        let spec = json!({"sessionAffinity": affinity, "sessionAffinityConfig": config});
        let found = World::new(&[service(spec.clone())]).port().affinity;
        assert_eq!(found, expected.map(Duration::from_secs), "{spec}");
    }
}

#[test]
fn s3_10_s13_4_the_health_check_counts_ready_addresses_of_this_node() {
    let spec = |kind: &str, policy: &str, port: i64| {
        json!({
            "type": kind,
            "externalTrafficPolicy": policy,
            "healthCheckNodePort": port,
            "ports": [{"name": "a", "port": 80}, {"name": "b", "port": 81}],
        })
    };
    let mut endpoints = slice("s", &["e1 R L", "e2 R L", "e3 R", "e4 ST L", "e5 L"]);
    endpoints["ports"] = json!([{"name": "a", "port": 8080}, {"name": "b", "port": 8081}]);
    for (kind, policy, port, expected) in [
        ("LoadBalancer", "Local", 32000, Some((32000, 2))),
        ("LoadBalancer", "Cluster", 32000, None),
        ("NodePort", "Local", 32000, None),
        ("LoadBalancer", "Local", 0, None),
        ("LoadBalancer", "Local", 70_000, None),
    ] {
        let mut world = World::new(&[service(spec(kind, policy, port)), endpoints.clone()]);
        let found = world.find("web").unwrap().health_check;
        assert_eq!(found.map(|it| (it.port, it.local_endpoints)), expected);
    }
    let mut without_endpoints = World::new(&[service(spec("LoadBalancer", "Local", 32000))]);
    let found = without_endpoints.find("web").unwrap().health_check.unwrap();
    assert_eq!(found.local_endpoints, 0, "known failure 40");
}

#[test]
fn s3_11_protocols_and_ports() {
    let spec = json!({"ports": [
        {"name": "a", "port": 80, "protocol": null},
        {"name": "b", "port": 53, "protocol": "UDP"},
        {"name": "c", "port": 99, "protocol": "SCTP"},
        {"name": "d", "port": 1, "protocol": "ICMP"},
        {"name": "e", "port": 0},
        {"name": "f", "port": 65_536},
        {"name": "g", "port": -1},
        {"name": "h", "port": 2, "nodePort": 70_000},
        {"name": "a", "port": 81},
        {"name": "a", "port": 80, "protocol": "UDP"},
    ]});
    let mut world = World::new(&[service(spec)]);
    let ports: Vec<(String, Protocol)> = world
        .find("web")
        .unwrap()
        .ports
        .iter()
        .map(|port| (port.name.to_string(), port.name.protocol))
        .collect();
    let expected = [
        ("default/web:a", Protocol::Tcp),
        ("default/web:a", Protocol::Udp),
        ("default/web:b", Protocol::Udp),
        ("default/web:c", Protocol::Sctp),
        ("default/web:h", Protocol::Tcp),
    ];
    assert_eq!(ports, expected.map(|(name, protocol)| (name.to_owned(), protocol)));
    let fields: Vec<String> = world.store.diagnostics().into_iter().map(|it| it.field).collect();
    assert_eq!(
        fields,
        [
            "spec.ports[3].protocol",
            "spec.ports[4].port",
            "spec.ports[5].port",
            "spec.ports[6].port",
            "spec.ports[7].nodePort",
            "spec.ports[8].name",
        ]
    );
}

#[test]
fn s10_1_what_decides_nothing_changes_nothing() {
    let mut world = World::new(&[service(json!({})), slice("s", &["e1 R"])]);
    assert_eq!(world.changed(), ["web"]);
    let mut touched = service(json!({"selector": {"app": "x"}, "loadBalancerIP": "192.0.2.9"}));
    touched["metadata"]["annotations"] = json!({"a": "b"});
    touched["metadata"]["resourceVersion"] = json!("7");
    world.apply(&touched);
    let mut touched = slice("s", &["e1 R"]);
    touched["metadata"]["annotations"] = json!({"a": "b"});
    touched["metadata"]["labels"]["app"] = json!("x");
    world.apply(&touched);
    assert_eq!(world.changed(), [""; 0], "known failure 22");
    world.delete(proxy_core::event::Kind::Service, "web");
    world.apply(&service(json!({})));
    assert_eq!(world.changed(), [""; 0], "deleted and added again between two syncs");
}

#[test]
fn a_service_names_its_scheduler() {
    let annotated = |name: &str| {
        let mut service = service(json!({}));
        service["metadata"]["annotations"] = json!({"proxyd.io/ipvs-scheduler": name});
        service
    };
    let mut world = World::new(&[annotated("lc")]);
    assert_eq!(world.find("web").unwrap().scheduler, Some(Scheduler::Lc));
    assert_eq!(world.diagnostics(), Vec::<String>::new());
    world.apply(&annotated("LC"));
    assert_eq!(world.find("web").unwrap().scheduler, None);
    assert_eq!(
        world.diagnostics(),
        ["Service/default/web: metadata.annotations[proxyd.io/ipvs-scheduler]: \
          no scheduler is called \"LC\"; there are dh, lblc, lblcr, lc, mh, nq, rr, sed, sh, wlc, \
          wrr; the default is used"]
    );
}
