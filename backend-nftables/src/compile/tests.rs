use proptest::prelude::*;
use proxy_core::names::{Protocol, ServiceName};

use super::*;

fn name(namespace: &str, name: &str, port: &str) -> ServicePortName {
    ServicePortName {
        service: ServiceName::new(namespace, name),
        port: port.into(),
        protocol: Protocol::Tcp,
    }
}

#[test]
fn hashes_are_those_of_kube_proxy() {
    let check = |port_name: &ServicePortName, expected| {
        assert_eq!(service_port_id(port_name), expected);
    };
    check(&name("default", "web", "http"), "SUSTUHLJ-default/web/tcp/http");
    check(&name("default", "single", ""), "LBZR5NAD-default/single/tcp/");
}

#[test]
fn odd_names_become_legible_ones() {
    let id = service_port_id(&name("a\"b;", "ü\0", "{x}"));
    assert_eq!(&id[8..], "-a_b_/__/tcp/_x_");
    let long = "n".repeat(300);
    let (first, second) = (name(&long, "x", "a"), name(&long, "x", "b"));
    assert_ne!(service_port_id(&first), service_port_id(&second));
}

#[test]
fn comments_are_cut_between_characters() {
    let text = comment(&name("default", "web", "http"), FrontendKind::NodePort);
    assert_eq!(&*text, "default/web:http node port");
    for filling in 100..140 {
        let text = comment(&name(&"n".repeat(filling), "ääää😀", "p"), FrontendKind::ClusterIp);
        assert!(text.len() <= MAX_COMMENT);
        assert_eq!(text.ends_with("..."), filling + 15 > MAX_COMMENT, "{text}");
    }
}

proptest! {
    #[test]
    fn names_fit_the_kernel(namespace in ".{0,260}", service in ".*", port in ".*") {
        let port_name = name(&namespace, &service, &port);
        let id = service_port_id(&port_name);
        let longest = "pool-route-cluster.masq-cluster.masq-cluster.masq-";
        prop_assert!(longest.len() + id.len() <= 255);
        prop_assert!(id.bytes().all(|b| b.is_ascii_alphanumeric() || b"/-._".contains(&b)));
        for kind in [FrontendKind::ClusterIp, FrontendKind::LoadBalancerIp] {
            let text = comment(&port_name, kind);
            prop_assert!(text.len() <= MAX_COMMENT);
            prop_assert!(!text.chars().any(|c| c == '"' || c.is_control()));
        }
    }
}
