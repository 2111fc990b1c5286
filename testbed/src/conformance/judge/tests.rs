//! Right rules satisfy a check and wrong ones do not: a judge that always nods is worth nothing.

use std::io::{Read, Write};
use std::net::TcpListener;

use super::*;
use crate::echo::Listen;
use crate::netns::namespaces_available;
use crate::target::Protocol;
use crate::world::Families;

/// Rules of a small proxy: a Service of two endpoints at 172.30.0.1, masqueraded for the outside,
/// one that prefers its first endpoint, one per client, one refused, one dropped.
const RULES: &str = "\
table ip t {
    chain services {
        ip daddr 172.30.0.1 ip saddr != 10.180.0.0/16 meta mark set 1
        ip daddr 172.30.0.1 goto spread
        ip daddr 172.30.0.2 goto lean
        ip daddr 172.30.0.3 ip saddr 10.180.0.5 meta l4proto tcp dnat to 10.180.0.11:8080
        ip daddr 172.30.0.3 meta l4proto tcp dnat to 10.180.1.11:8080
    }
    chain spread {
        meta l4proto { tcp, udp } dnat ip addr . port to \
            numgen random mod 2 map { 0 : 10.180.0.11 . 8080, 1 : 10.180.1.11 . 8080 }
    }
    chain lean {
        meta l4proto tcp dnat ip addr . port to \
            numgen random mod 4 map { 0 : 10.180.0.11 . 8080, 1-3 : 10.180.1.11 . 8080 }
    }
    chain prerouting {
        type nat hook prerouting priority -100
        jump services
    }
    chain output {
        type nat hook output priority -100
        jump services
    }
    chain postrouting {
        type nat hook postrouting priority 100
        meta mark 1 masquerade
    }
    chain forward {
        type filter hook forward priority 0
        ip daddr 172.30.0.4 reject
        ip daddr 172.30.0.5 drop
    }
}
";

fn world() -> Result<Option<World>> {
    if !namespaces_available() {
        return Ok(None);
    }
    let mut world = World::new(Families::Ipv4)?;
    let ports = [(Protocol::Tcp, 80), (Protocol::Tcp, 8080), (Protocol::Udp, 80)];
    let mut listens =
        ports.map(|(protocol, port)| Listen { protocol, address: None, port }).to_vec();
    listens.push(Listen { protocol: Protocol::Udp, address: None, port: 8080 });
    world.serve(&listens)?;
    world.node().nft(RULES)?;
    Ok(Some(world))
}

fn judged(judge: &mut Judge, world: &World, check: &str) -> Result<()> {
    judge.check(world, &serde_saphyr::from_str(check).context(check.to_owned())?)
}

const BOTH: &str = "connect, backends: ['10.180.0.11:8080', '10.180.1.11:8080']";
const FIRST: &str = "connect, backends: ['10.180.0.11:8080']";
const SECOND: &str = "connect, backends: ['10.180.1.11:8080']";
const DROP: &str = "drop";
const REJECT: &str = "reject";
const PASS: &str = "pass";
const EITHER: &str = "[drop, reject]";

/// A check; `to` and `result` may bring further keys.
fn check(from: &str, to: &str, result: &str) -> String {
    format!("{{from: {from}, to: {to}, expect: {{result: {result}}}}}")
}

fn and(result: &str, keys: &str) -> String {
    format!("{result}, {keys}")
}

#[test]
fn what_holds_is_accepted() {
    let Some(world) = world().unwrap() else { return };
    let mut judge = Judge::new(Mode::Nftables);
    let fair = "172.30.0.1:80/TCP, fair: {tries: 400, tolerance: 0.4}";
    for check in [
        check("local-pod", "172.30.0.1:80/TCP", &and(BOTH, "source: preserved")),
        check("local-pod", "172.30.0.1:80/UDP", &and(BOTH, "source: preserved")),
        check("outside", "172.30.0.1:80/TCP", &and(BOTH, "source: masqueraded")),
        check("local-pod", fair, BOTH),
        check("local-pod", "172.30.0.3:80/TCP", &and(BOTH, "sticky: true")),
        check("local-pod", "172.30.0.4:80/TCP", REJECT),
        check("local-pod", "172.30.0.4:80/UDP", EITHER),
        check("outside", "172.30.0.5:80/TCP", DROP),
        check("outside", "172.30.0.9:80/TCP", PASS),
    ] {
        judged(&mut judge, &world, &check).unwrap();
    }
}

#[test]
fn what_does_not_hold_is_refused() {
    let Some(world) = world().unwrap() else { return };
    let mut judge = Judge::new(Mode::Nftables);
    let pod = |to, result| check("local-pod", to, result);
    let fair = "172.30.0.2:80/TCP, fair: {tries: 400, tolerance: 0.25}";
    let preserved = and(BOTH, "source: preserved");
    for (check, complaint) in [
        (pod("172.30.0.1:80/TCP", FIRST), "was answered by"),
        (pod("172.30.0.3:80/TCP", BOTH), "never reached"),
        (pod("172.30.0.1:80/TCP", &and(BOTH, "sticky: true")), "one client reached"),
        (pod("172.30.0.1:80/TCP", &and(BOTH, "source: masqueraded")), "as the source"),
        (check("outside", "172.30.0.1:80/UDP", &preserved), "as the source"),
        (pod(fair, BOTH), "tries"),
        (pod("172.30.0.9:80/TCP", SECOND), "Pass"),
        (pod("172.30.0.4:80/TCP", DROP), "Reject"),
        (pod("172.30.0.5:80/TCP", REJECT), "Drop"),
        (pod("172.30.0.3:80/TCP", PASS), "was answered by"),
        (pod("172.30.0.9:80/TCP", EITHER), "Pass"),
    ] {
        let error = format!("{:#}", judged(&mut judge, &world, &check).unwrap_err());
        assert!(error.contains(complaint), "{check}: {error}");
    }
}

#[test]
fn flows_keep_their_server_while_rules_change() {
    let Some(world) = world().unwrap() else { return };
    let mut judge = Judge::new(Mode::Nftables);
    let tcp = |keep: &str, result| check("local-pod", &and("172.30.0.3:80/TCP", keep), result);
    let udp = |keep: &str, result| check("local-pod", &and("172.30.0.3:80/UDP", keep), result);
    judged(&mut judge, &world, &tcp("flow: a", FIRST)).unwrap();
    let rules = "table ip u { chain p { type nat hook prerouting priority -110; \
                 ip daddr 172.30.0.3 udp dport 80 dnat to 10.180.0.11:8080; }; }";
    world.node().nft(rules).unwrap();
    judged(&mut judge, &world, &udp("sourcePort: 41000", FIRST)).unwrap();

    let moved = format!("flush ruleset\n{}", rules.replace("10.180.0.11", "10.180.1.11"));
    world.node().nft(&moved).unwrap();
    judged(&mut judge, &world, &tcp("flow: a", FIRST)).unwrap();
    judged(&mut judge, &world, &udp("sourcePort: 41000", FIRST)).unwrap();
    judged(&mut judge, &world, &udp("sourcePort: 41000", SECOND)).unwrap_err();
    judged(&mut judge, &world, &tcp("flow: b", FIRST)).unwrap_err();
    judged(&mut judge, &world, &udp("sourcePort: 41001", SECOND)).unwrap();
}

#[test]
fn health_ports_are_asked() {
    let Some(world) = world().unwrap() else { return };
    let mut judge = Judge::new(Mode::Nftables);
    let listener = world.at(Place::Node, || TcpListener::bind("0.0.0.0:32000")).unwrap();
    let answers = [(200, 2), (200, 2), (503, 0)];
    let server = std::thread::spawn(move || {
        for (status, endpoints) in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 1024]).unwrap();
            let body = format!("{{\"localEndpoints\": {endpoints}}}");
            write!(stream, "HTTP/1.1 {status} X\r\n\r\n{body}").unwrap();
        }
    });
    let health = |status, endpoints| {
        format!("{{healthCheck: {{port: 32000, status: {status}, localEndpoints: {endpoints}}}}}")
    };
    judged(&mut judge, &world, &health("200", 2)).unwrap();
    judged(&mut judge, &world, &health("200", 1)).unwrap_err();
    judged(&mut judge, &world, &health("200", 0)).unwrap_err();
    server.join().unwrap();
    judged(&mut judge, &world, "{healthCheck: {port: 32000, status: refused}}").unwrap();
    judged(&mut judge, &world, &health("200", 2)).unwrap_err();
}

#[test]
fn more_servers_take_more_tries() {
    let expectation = |backends: usize| -> Expectation {
        let backends: Vec<_> = (1..=backends).map(|n| format!("'10.180.0.{n}:80'")).collect();
        let text = format!("{{result: connect, backends: [{}]}}", backends.join(", "));
        serde_saphyr::from_str(&text).unwrap()
    };
    assert_eq!([1, 2, 3, 120].map(|n| tries(&expectation(n))), [31, 54, 77, 3076]);
}
