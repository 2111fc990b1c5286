//! Rules of others, and those that kube-proxy left.

use std::process::{Command, Stdio};
use std::sync::Arc;

use backend_iptables::{Tool, Variant};
use proxy_core::address::IpFamily;
use testbed::resolved::{cluster_ip_service, every_shape};

use crate::support::{
    Services, assert_in_step, everywhere, iptables, program, sync_to, synchronizer,
};

fn restore(family: IpFamily, variant: Variant, script: &str) {
    use std::io::Write as _;
    let mut child = Command::new(program(family, variant, "-restore"))
        .arg("--noflush")
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{script}");
}

/// Chains and rules that are not ours.
fn of_others(family: IpFamily, variant: Variant) -> Vec<String> {
    let is_ours = |line: &str| line.contains("KUBE-");
    let is_theirs = |line: &&str| line.starts_with([':', '-']) && !is_ours(line);
    let mut lines = Vec::new();
    for table in ["filter", "nat", "mangle"] {
        let saved = Command::new(program(family, variant, "-save")).args(["-t", table]).output();
        let saved = String::from_utf8(saved.unwrap().stdout).unwrap();
        let text = saved.lines().filter(is_theirs);
        lines.extend(text.map(|line| line.split(" [").next().unwrap_or(line).to_owned()));
    }
    lines
}

#[test]
fn failure_26_rules_of_others_stay_as_they_are() {
    everywhere(|family, variant| {
        restore(
            family,
            variant,
            "*filter\n:CNI-FORWARD - [0:0]\n:KUBEX-SVC-A - [0:0]\n\
             -A CNI-FORWARD -m mark --mark 0x20000/0x20000 -j DROP\n\
             -A INPUT -m comment --comment \"kube -j KUBER\" -j CNI-FORWARD\n-A FORWARD -j CNI-FORWARD\n\
             COMMIT\n*nat\n:CNI-HOSTPORT - [0:0]\n-A PREROUTING -j CNI-HOSTPORT\n\
             -A POSTROUTING -j MASQUERADE\nCOMMIT\n*mangle\n:KUBE-KUBELET-CANARY - [0:0]\nCOMMIT\n",
        );
        let before = of_others(family, variant);
        assert!(before.len() > 10, "{before:?}");
        let mut sync = synchronizer(family, variant);
        let mut services = Services::new();
        for round in 1..20 {
            let next: Services = (round..round + 4)
                .map(|number| Arc::new(cluster_ip_service(family, number, number % 3)))
                .collect();
            sync_to(&mut sync, &services, &next);
            services = next;
        }
        assert_eq!(of_others(family, variant), before, "{variant}");
        iptables(family, variant, "-t mangle -L KUBE-KUBELET-CANARY");
    });
}

#[test]
fn rules_that_kube_proxy_left_are_taken_over_by_comparison() {
    everywhere(|family, variant| {
        let (ip, pod, range) = match family {
            IpFamily::V4 => ("172.0.0.3/32", "10.0.0.48", "10.180.0.0/16"),
            IpFamily::V6 => ("fd00:ac::3/128", "fd00:a::30", "fd00:10:180::/48"),
        };
        let to =
            if family == IpFamily::V4 { format!("{pod}:8080") } else { format!("[{pod}]:8080") };
        let service = Arc::new(cluster_ip_service(family, 3, 1));
        let mut sync = synchronizer(family, variant);
        // Names of chains as they would be, from ours.
        sync_to(&mut sync, &Vec::new(), &vec![Arc::clone(&service)]);
        let saved = iptables(family, variant, "-t nat -S");
        let chain = |prefix: &str| {
            let mut names = saved.lines().filter_map(|line| line.strip_prefix("-N "));
            names.find(|name| name.starts_with(prefix)).unwrap().to_owned()
        };
        let (svc, sep) = (chain("KUBE-SVC-"), chain("KUBE-SEP-"));
        let sep_rules: Vec<_> =
            saved.lines().filter(|line| line.contains(&format!("-A {sep}"))).collect();
        iptables(family, variant, "-t nat -F");
        iptables(family, variant, "-t nat -X");
        restore(
            family,
            variant,
            &format!(
                "*nat\n:KUBE-SERVICES - [0:0]\n:{svc} - [0:0]\n:{sep} - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n\
                 :KUBE-SVC-AAAAAAAAAAAAAAAA - [0:0]\n:KUBE-PROXY-CANARY - [0:0]\n\
                 -A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
                 -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000\n\
                 -A KUBE-SERVICES -d {ip} -p tcp -m comment --comment \"default/web-3:http cluster IP\" \
                 -m tcp --dport 80 -j {svc}\n\
                 -A {svc} ! -s {range} -d {ip} -p tcp -m comment --comment \"default/web-3:http cluster IP\" \
                 -m tcp --dport 80 -j KUBE-MARK-MASQ\n\
                 -A {svc} -m comment --comment \"default/web-3:http -> {to}\" -j {sep}\n{}\nCOMMIT\n",
                sep_rules.join("\n")
            ),
        );
        let mut takeover = synchronizer(family, variant);
        sync_to(&mut takeover, &Vec::new(), &vec![service]);
        assert_in_step(&takeover, variant);
        let after = iptables(family, variant, "-t nat -S");
        for rule in sep_rules {
            assert!(after.contains(rule), "{after}");
        }
        assert!(!after.contains("AAAAAAAA") && !after.contains("CANARY"), "{after}");
    });
}

#[test]
fn names_of_objects_cannot_break_a_rule() {
    everywhere(|family, variant| {
        let mut services = every_shape(family);
        let hostile = "x\"' \\ -j ACCEPT\nCOMMIT\n*nat\n-F\n#";
        for port in &mut services[2].ports {
            port.name.port = hostile.into();
        }
        let services: Services = services.into_iter().map(Arc::new).collect();
        let mut sync = synchronizer(family, variant);
        sync_to(&mut sync, &Vec::new(), &services);
        assert_in_step(&sync, variant);
        let accepting = iptables(family, variant, "-t nat -S");
        assert!(!accepting.lines().any(|line| line.ends_with("-j ACCEPT")), "{accepting}");
    });
}

#[test]
fn failure_27_the_variant_is_that_of_the_rest_of_the_node() {
    everywhere(|family, variant| {
        restore(family, variant, "*filter\n-A FORWARD -j DROP\nCOMMIT\n");
        assert_eq!(Tool::detect(family).unwrap().variant(), variant, "the only rules there are");
        let kubelet = "*mangle\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT\n";
        restore(family, Variant::Nft, kubelet);
        restore(family, Variant::Legacy, "*nat\n-A OUTPUT -j RETURN\nCOMMIT\n");
        restore(family, Variant::Legacy, "*filter\n-A INPUT -j ACCEPT\nCOMMIT\n");
        assert_eq!(Tool::detect(family).unwrap().variant(), Variant::Nft, "the kubelet's");
    });
}
