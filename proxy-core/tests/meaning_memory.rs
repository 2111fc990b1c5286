//! How much memory objects take, and that it is given back.
//!
//! Measured as the resident size of this process, which is what counts on a node. One test, as
//! two would see each other's memory.
#![cfg(test)]

use proxy_core::address::IpFamily;
use proxy_core::api::{
    EndpointPort, EndpointSlice, ForName, Labels, Metadata, Service, ServicePort, SliceEndpoint,
};
use proxy_core::event::{Kind, Object, SourceEvent};
use proxy_core::options::Options;
use proxy_core::store::Store;

const SERVICES: usize = 10_000;
const ENDPOINTS: usize = 10;

/// Bytes of memory this process has, where the system tells.
fn resident() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: usize = resident.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kilobytes * 1024)
}

fn metadata(name: String) -> Metadata {
    Metadata { name, namespace: "default".into(), ..Metadata::default() }
}

fn service(number: usize) -> Object {
    let mut service = Service { metadata: metadata(format!("service-{number}")), ..<_>::default() };
    service.metadata.creation_timestamp = Some("2024-01-01T00:00:00Z".into());
    service.spec.service_type = "NodePort".into();
    service.spec.cluster_ip = format!("172.30.{}.{}", number / 250, number % 250);
    service.spec.ports = vec![ServicePort {
        name: "http".into(),
        protocol: Some("TCP".into()),
        port: 80,
        node_port: i64::try_from(number).unwrap() + 20_000,
    }];
    Object::Service(service)
}

fn slice(number: usize) -> Object {
    let endpoint = |host: usize| {
        let hints = vec![ForName { name: "zone-a".into() }];
        let mut endpoint = SliceEndpoint {
            addresses: vec![format!("10.{host}.{}.{}", number / 250, number % 250)],
            node_name: Some(format!("node-{host}")),
            ..<_>::default()
        };
        endpoint.hints.get_or_insert_default().for_zones = hints;
        endpoint
    };
    Object::EndpointSlice(EndpointSlice {
        metadata: Metadata {
            labels: Labels { service_name: Some(format!("service-{number}")), ..<_>::default() },
            ..metadata(format!("service-{number}-x7k2p"))
        },
        address_type: "IPv4".into(),
        ports: vec![EndpointPort {
            name: Some("http".into()),
            port: Some(8080),
            protocol: Some("TCP".into()),
        }],
        endpoints: (0..ENDPOINTS).map(endpoint).collect(),
    })
}

fn round(store: &mut Store, numbers: std::ops::Range<usize>) {
    for number in numbers.clone() {
        store.apply(SourceEvent::Applied(service(number)));
        store.apply(SourceEvent::Applied(slice(number)));
    }
    store.take_changes(IpFamily::V4);
    for number in numbers {
        store.apply(SourceEvent::Deleted(slice(number).reference()));
        store.apply(SourceEvent::Deleted(service(number).reference()));
    }
    store.take_changes(IpFamily::V4);
}

#[test]
fn known_failure_58_memory_follows_the_objects_that_exist() {
    let Some(empty) = resident() else { return };
    let mut store = Store::new(Options::new("node-1"));
    for number in 0..SERVICES {
        store.apply(SourceEvent::Applied(service(number)));
        store.apply(SourceEvent::Applied(slice(number)));
    }
    let per_endpoint = |bytes: usize| bytes / (SERVICES * ENDPOINTS);
    let stored = resident().unwrap() - empty;
    store.take_changes(IpFamily::V4);
    let resolved = resident().unwrap() - empty - stored;
    println!("stored: {} bytes for each endpoint", per_endpoint(stored));
    println!("resolved: {} bytes more", per_endpoint(resolved));
    assert!(per_endpoint(stored) < 120);
    assert!(per_endpoint(resolved) < 160);

    for kind in [Kind::Service, Kind::EndpointSlice] {
        store.apply(SourceEvent::ListStarted(kind));
        store.apply(SourceEvent::ListDone(kind));
    }
    store.take_changes(IpFamily::V4);
    assert_eq!(store.services(IpFamily::V4).count(), 0);
    round(&mut store, 0..1000);
    let before = resident().unwrap();
    for start in (0..50_000).step_by(1000) {
        round(&mut store, start..start + 1000);
    }
    let grown = resident().unwrap().saturating_sub(before);
    println!("after 50,000 Services came and went: {grown} bytes more");
    assert!(grown < 4 << 20, "{grown}");
}
