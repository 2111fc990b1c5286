//! What the kernel remembers of clients.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use proxy_core::address::IpFamily;
use proxy_core::resolved::ResolvedService;
use proxy_core::sync::TableSync as _;

use crate::support::{
    Services, address, assert_in_step, block_on, cluster_ip_service, in_namespace_with_nft, nft,
    nft_run, sync_to, synchronizer, word,
};

/// A Service with affinity and these endpoints.
fn sticky(family: IpFamily, hosts: &[u32]) -> Arc<ResolvedService> {
    let mut service = cluster_ip_service(family, 1, 1);
    let port = &mut service.ports[0];
    port.affinity = Some(Duration::from_secs(10_800));
    let mut endpoint = port.cluster.endpoints[0];
    endpoint.is_local = false;
    port.cluster.endpoints = hosts
        .iter()
        .map(|host| {
            endpoint.address = address(family, 10, *host);
            endpoint
        })
        .collect();
    Arc::new(service)
}

/// The map that remembers the Service's clients.
fn map(family: IpFamily) -> String {
    let text = nft(&["list", "table", word(family), "proxyd"], "");
    let line =
        text.lines().find(|line| line.trim().starts_with("map affinity-") && line.contains('/'));
    line.unwrap().trim().trim_start_matches("map ").trim_end_matches(" {").to_owned()
}

fn client(family: IpFamily, number: u32) -> IpAddr {
    address(family, 100, number)
}

/// Lets the map remember clients: number and endpoint.
fn remember(family: IpFamily, clients: &[(u32, u32)]) {
    let map = map(family);
    for (number, host) in clients {
        let (client, endpoint) = (client(family, *number), address(family, 10, *host));
        let word = word(family);
        nft_run(&format!(
            "add element {word} proxyd {map} {{ {client} timeout 1h : {endpoint} . 8080 }}"
        ));
    }
}

/// Numbers of the clients that are remembered. None of them stays for ever, or longer than before.
fn remembered(family: IpFamily) -> BTreeSet<u32> {
    let text = nft(&["list", "map", word(family), "proxyd", &map(family)], "");
    let known = (1..100).filter(|number| {
        let client = client(family, *number).to_string();
        let mut entries = text.split(['{', ',', '}']).map(str::trim);
        let Some(entry) = entries.find(|entry| entry.split(' ').next() == Some(&client)) else {
            return false;
        };
        assert!(entry.contains("timeout 1h expires 59m"), "{entry}");
        true
    });
    known.collect()
}

#[test]
fn clients_of_a_gone_endpoint_are_forgotten() {
    for family in IpFamily::ALL {
        in_namespace_with_nft(|| {
            let full = vec![sticky(family, &[1, 2, 3, 4])];
            let mut sync = synchronizer(family);
            sync_to(&mut sync, &Services::new(), &full);
            remember(family, &[(1, 1), (2, 2), (3, 3), (4, 4), (12, 2)]);
            assert_eq!(remembered(family), [1, 2, 3, 4, 12].into());
            // The last one takes the number of the one that leaves; its clients stay.
            let without_2 = vec![sticky(family, &[1, 3, 4])];
            sync_to(&mut sync, &full, &without_2);
            assert_eq!(remembered(family), [1, 3, 4].into());
            // An endpoint that comes back does not win clients back.
            sync_to(&mut sync, &without_2, &full);
            assert_eq!(remembered(family), [1, 3, 4].into());
            sync_to(&mut sync, &full, &vec![sticky(family, &[9])]);
            assert_eq!(remembered(family), BTreeSet::new());
            assert_in_step(&sync);
        });
    }
}

#[test]
fn a_restart_forgets_only_clients_of_gone_endpoints() {
    for family in IpFamily::ALL {
        in_namespace_with_nft(|| {
            let full = vec![sticky(family, &[1, 2, 3, 4])];
            sync_to(&mut synchronizer(family), &Services::new(), &full);
            // Endpoint 7 is one of an earlier time: the process ended before it was cleaned up.
            remember(family, &[(1, 1), (2, 2), (3, 3), (4, 4), (7, 7)]);
            let mut same = synchronizer(family);
            let report = sync_to(&mut same, &Services::new(), &full);
            assert_eq!(report.changed_objects, 1);
            assert_eq!(remembered(family), [1, 2, 3, 4].into());
            // An endpoint left while nobody looked.
            let mut fresh = synchronizer(family);
            sync_to(&mut fresh, &Services::new(), &vec![sticky(family, &[1, 3, 4])]);
            assert_eq!(remembered(family), [1, 3, 4].into());
            assert_in_step(&fresh);
        });
    }
}

#[test]
fn the_memory_ends_with_the_affinity() {
    in_namespace_with_nft(|| {
        let family = IpFamily::V4;
        let with = vec![sticky(family, &[1, 2])];
        let mut sync = synchronizer(family);
        sync_to(&mut sync, &Services::new(), &with);
        remember(family, &[(1, 1)]);
        let mut without = (*with[0]).clone();
        without.ports[0].affinity = None;
        let without = vec![Arc::new(without)];
        sync_to(&mut sync, &with, &without);
        assert_in_step(&sync);
        sync_to(&mut sync, &without, &with);
        assert_eq!(remembered(family), BTreeSet::new());
        sync.distrust();
        assert_eq!(block_on(sync.sync()).unwrap().changed_objects, 0);
    });
}
