//! Clusters of any size, for tests of scale and speed.

use std::net::Ipv4Addr;

use serde_json::Value;

use crate::builders::{Port, endpoint_slice, service};

/// Objects of `services` Services with `endpoints` endpoints each: a Service and its slice, in turn.
///
/// Service `n` is called `svc-N` and has the cluster IP [`cluster_ip`]`(n)` with port 80. The
/// endpoints are spread over the pod range; every third one is on `node-a`. Equal arguments give
/// equal objects.
pub fn manifests(services: usize, endpoints: usize) -> Vec<Value> {
    let pair = |n: usize| {
        let name = format!("svc-{n}");
        let addresses: Vec<_> = (0..endpoints).map(|m| pod(n * endpoints + m)).collect();
        let listed: Vec<_> =
            addresses.iter().map(|(address, node)| (address.as_str(), *node)).collect();
        [
            service(&name, &cluster_ip(n).to_string(), &[Port::HTTP]),
            endpoint_slice(&name, &[Port::HTTP], &listed),
        ]
    };
    (0..services).flat_map(pair).collect()
}

/// Cluster IP of Service `n`: the service range from 172.30.0.10 on, for up to 65,000 Services.
pub fn cluster_ip(n: usize) -> Ipv4Addr {
    let offset = u32::try_from(n).unwrap_or(u32::MAX) % 65_000;
    Ipv4Addr::from(u32::from(Ipv4Addr::new(172, 30, 0, 10)) + offset)
}

/// Address and node of pod `n`: a third on `node-a` (10.180.0.x), others on nodes b and c.
///
/// Addresses repeat after some tens of thousands, as the pod range is a /16.
fn pod(n: usize) -> (String, &'static str) {
    let (low, high) = (n / 3 % 250 + 1, n / 750 % 126);
    match n % 3 {
        0 => (format!("10.180.0.{low}"), "node-a"),
        1 => (format!("10.180.{}.{low}", 1 + high), "node-b"),
        _ => (format!("10.180.{}.{low}", 128 + high), "node-c"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn services_are_distinct_and_reproducible() {
        let objects = manifests(300, 3);
        assert_eq!(objects.len(), 600);
        assert_eq!(objects, manifests(300, 3));
        let addresses: BTreeSet<_> =
            objects.iter().filter_map(|o| o["spec"]["clusterIP"].as_str()).collect();
        assert_eq!(addresses.len(), 300);
    }

    #[test]
    fn endpoints_of_a_service_are_distinct() {
        for object in manifests(50, 100).iter().skip(1).step_by(2) {
            let endpoints = object["endpoints"].as_array().unwrap();
            let addresses: BTreeSet<_> =
                endpoints.iter().map(|e| e["addresses"][0].as_str().unwrap()).collect();
            assert_eq!(addresses.len(), 100);
        }
    }
}
