//! Small random clusters: few names and addresses, so that objects meet and collide.

use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use serde_json::{Value, json};

const SERVICES: [&str; 4] = ["a", "b", "c", "d"];

/// One of the values, by its JSON text.
fn one_of(texts: &'static [&'static str]) -> impl Strategy<Value = Value> {
    select(texts).prop_map(|text| serde_json::from_str(text).unwrap())
}

/// Some of the values.
fn some_of(texts: &'static [&'static str], most: usize) -> impl Strategy<Value = Value> {
    subsequence(texts, 0..=most).prop_map(|texts| {
        texts.into_iter().map(|text| serde_json::from_str::<Value>(text).unwrap()).collect()
    })
}

fn ports() -> impl Strategy<Value = Value> {
    some_of(
        &[
            r#"{"name": "", "port": 80}"#,
            r#"{"name": "h", "port": 80, "nodePort": 30080}"#,
            r#"{"name": "h", "port": 80, "nodePort": 30080, "protocol": "UDP"}"#,
            r#"{"name": "u", "port": 53, "nodePort": 30053, "protocol": "UDP"}"#,
            r#"{"name": "s", "port": 99, "protocol": "SCTP"}"#,
            r#"{"name": "x", "port": 99999}"#,
            r#"{"name": "h", "port": 81}"#,
        ],
        4,
    )
}

fn families() -> impl Strategy<Value = Value> {
    one_of(&[
        r#"{"clusterIP": "172.30.0.1"}"#,
        r#"{"clusterIP": "172.30.0.2", "ipFamilies": ["IPv4"], "clusterIPs": ["172.30.0.2"]}"#,
        r#"{"clusterIP": "172.30.0.3", "ipFamilies": ["IPv4", "IPv6"],
            "clusterIPs": ["172.30.0.3", "fd00::3"]}"#,
        r#"{"clusterIP": "fd00::4", "ipFamilies": ["IPv6", "IPv4"], "clusterIPs": ["fd00::4"]}"#,
        r#"{"clusterIP": "172.30.0.5"}"#,
        r#"{"clusterIP": "172.30.0.6"}"#,
        r#"{"clusterIP": "None"}"#,
        r#"{"clusterIP": "bad"}"#,
    ])
}

prop_compose! {
    fn policies()(
        kind in select(&["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"][..]),
        external in one_of(&["\"Local\"", "\"Cluster\"", "null", "\"odd\""]),
        internal in one_of(&["\"Local\"", "\"Cluster\"", "null"]),
        affinity in one_of(&["\"ClientIP\"", "\"None\""]),
        check in one_of(&["32000", "0"]),
    ) -> Value {
        json!({
            "type": kind,
            "externalTrafficPolicy": external,
            "internalTrafficPolicy": internal,
            "sessionAffinity": affinity,
            "healthCheckNodePort": check,
        })
    }
}

prop_compose! {
    /// A Service; may be one that is not served, or odd in places.
    pub(crate) fn service()(
        name in select(&SERVICES[..]),
        created in one_of(&["null", "\"2024-01-01T00:00:00Z\"", "\"2025-01-01T00:00:00Z\""]),
        labels in one_of(&[
            "{}", "{}", "{}", r#"{"service.kubernetes.io/service-proxy-name": "x"}"#,
        ]),
        families in families(),
        policies in policies(),
        ports in ports(),
        external in some_of(
            &[
                "\"192.0.2.1\"", "\"192.0.2.2\"", "\"172.30.0.1\"", "\"2001:db8::1\"", "\"bad\"",
            ],
            3,
        ),
        ingress in some_of(
            &[r#"{"ip": "192.0.2.1"}"#, r#"{"ip": "192.0.2.3"}"#, r#"{"ip": "2001:db8::2"}"#],
            3,
        ),
        ranges in some_of(
            &[
                "\"203.0.113.0/24\"", "\"203.0.113.9/32\"", "\"192.168.0.0/16\"",
                "\"2001:db8::/32\"", "\"0.0.0.0/0\"", "\"bad\"",
            ],
            3,
        ),
    ) -> Value {
        let mut spec = policies;
        crate::world::merge(&mut spec, families);
        crate::world::merge(&mut spec, json!({
            "ports": ports,
            "externalIPs": external,
            "loadBalancerSourceRanges": ranges,
        }));
        json!({
            "kind": "Service",
            "metadata": {
                "namespace": "default", "name": name, "labels": labels,
                "creationTimestamp": created,
            },
            "spec": spec,
            "status": {"loadBalancer": {"ingress": ingress}},
        })
    }
}

prop_compose! {
    fn endpoint()(
        address in one_of(&[
            "\"10.180.0.1\"", "\"10.180.0.2\"", "\"10.180.0.30\"", "\"bad\"",
            "\"fd00:10::1\"", "\"fd00:10::2\"",
        ]),
        node in one_of(&["null", "\"n0\"", "\"n1\""]),
        conditions in one_of(&[
            "{}", r#"{"ready": false}"#, r#"{"ready": false, "terminating": true}"#,
            r#"{"ready": false, "serving": false, "terminating": true}"#,
            r#"{"terminating": true}"#,
        ]),
        hints in one_of(&[
            "null", "{}", r#"{"forZones": [{"name": "a"}]}"#, r#"{"forZones": [{"name": "b"}]}"#,
            r#"{"forNodes": [{"name": "n0"}]}"#, r#"{"forNodes": [{"name": "n1"}]}"#,
        ]),
    ) -> Value {
        json!({"addresses": [address], "nodeName": node, "conditions": conditions, "hints": hints})
    }
}

prop_compose! {
    /// A slice; may belong to no Service, or be odd in places.
    pub(crate) fn slice()(
        name in select(&["s1", "s2", "s3", "s4", "s5"][..]),
        labels in one_of(&[
            r#"{"kubernetes.io/service-name": "a"}"#, r#"{"kubernetes.io/service-name": "b"}"#,
            r#"{"kubernetes.io/service-name": "c"}"#, r#"{"kubernetes.io/service-name": "d"}"#,
            "{}", r#"{"kubernetes.io/service-name": "a", "service.kubernetes.io/headless": ""}"#,
        ]),
        time in one_of(&["null", "\"2024-01-01T00:00:01Z\"", "\"2024-01-01T00:00:02Z\""]),
        family in one_of(&["\"IPv4\"", "\"IPv4\"", "\"IPv6\"", "\"FQDN\""]),
        ports in some_of(&[
            r#"{"name": "", "port": 8080}"#, r#"{"name": "h", "port": 8080}"#,
            r#"{"name": "h", "port": 8081, "protocol": "TCP"}"#,
            r#"{"name": "h", "port": 8080, "protocol": "UDP"}"#,
            r#"{"name": "u", "port": 5353, "protocol": "UDP"}"#,
            r#"{"port": 1}"#,
        ], 4),
        endpoints in prop::collection::vec(endpoint(), 0..4),
    ) -> Value {
        json!({
            "kind": "EndpointSlice",
            "metadata": {
                "namespace": "default", "name": name, "labels": labels,
                "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": time},
            },
            "addressType": family,
            "ports": ports,
            "endpoints": endpoints,
        })
    }
}

/// The node's object, or another node's.
pub(crate) fn node() -> impl Strategy<Value = Value> {
    one_of(&[
        r#"{"kind": "Node", "metadata": {"name": "n0",
            "labels": {"topology.kubernetes.io/zone": "a"}},
            "status": {"addresses": [{"type": "InternalIP", "address": "192.168.0.2"}]}}"#,
        r#"{"kind": "Node", "metadata": {"name": "n0",
            "labels": {"topology.kubernetes.io/zone": "b"}}, "status": {"addresses": [
                {"type": "InternalIP", "address": "fd00:192::2"},
                {"type": "InternalIP", "address": "bad"}]}}"#,
        r#"{"kind": "Node", "metadata": {"name": "n0"},
            "spec": {"podCIDRs": ["10.180.0.0/24"]}}"#,
        r#"{"kind": "Node", "metadata": {"name": "n1",
            "labels": {"topology.kubernetes.io/zone": "b"}}}"#,
    ])
}

/// A ServiceCIDR.
pub(crate) fn service_ranges() -> impl Strategy<Value = Value> {
    one_of(&[
        r#"{"kind": "ServiceCIDR", "metadata": {"name": "k"},
            "spec": {"cidrs": ["172.30.0.0/16", "fd00::/112"]}}"#,
        r#"{"kind": "ServiceCIDR", "metadata": {"name": "l"},
            "spec": {"cidrs": ["172.30.1.0/24", "bad"]}}"#,
    ])
}

/// Any object.
pub(crate) fn object() -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => service(),
        6 => slice(),
        1 => node(),
        1 => service_ranges(),
    ]
}

/// Any number of objects.
pub(crate) fn objects() -> impl Strategy<Value = Vec<Value>> {
    prop::collection::vec(object(), 0..24)
}
