//! The world itself, without any proxy: who reaches whom, and under which address.

use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use testbed::dial::Outcome;
use testbed::echo::Listen;
use testbed::netns::namespaces_available;
use testbed::target::{Protocol, Target};
use testbed::world::{Families, NODE_V4, NODE_V6};
use testbed::{Place, Traffic, World, wait_until};

const PLACES: [Place; 5] =
    [Place::LocalPod, Place::Node, Place::Outside, Place::RemoteNode, Place::RemotePod];

/// A world with servers on port 80 everywhere; none where namespaces are not to be had.
fn world() -> Result<Option<World>> {
    if !namespaces_available() {
        return Ok(None);
    }
    let mut world = World::new(Families::Dual)?;
    let listen = |address, protocol| Listen { protocol, address, port: 80 };
    let protocols = [Protocol::Tcp, Protocol::Udp];
    world.serve(&protocols.map(|protocol| listen(None, protocol)))?;
    let node: [IpAddr; 2] = [NODE_V4.into(), NODE_V6.into()];
    let on_node: Vec<_> = node
        .iter()
        .flat_map(|address| protocols.map(|protocol| listen(Some(*address), protocol)))
        .collect();
    world.serve_on_node(&on_node)?;
    Ok(Some(world))
}

fn targets(addresses: &[&str]) -> Vec<Target> {
    let parsed = addresses.iter().filter_map(|address| address.parse().ok());
    let sockets: Vec<_> = parsed.map(|address| SocketAddr::new(address, 80)).collect();
    assert_eq!(sockets.len(), addresses.len(), "all addresses are well formed");
    sockets.into_iter().flat_map(|address| [Target::tcp(address), Target::udp(address)]).collect()
}

#[test]
fn everyone_reaches_every_address_untouched() {
    let Some(world) = world().unwrap() else { return };
    let v4 = ["10.180.0.9", "10.180.9.9", "172.30.1.1", "192.0.2.1", "192.168.0.2", "192.168.0.3"];
    let v6 = ["fd00:10:180::9", "fd00:10:180:1::9", "fd00:172:30::1", "fd00:192:168::2"];
    for target in targets(&[&v4[..], &v6[..]].concat()) {
        for place in PLACES {
            let outcome = world.dial(place, &target);
            let Outcome::Answered(answer) = outcome else {
                panic!("{place:?} {target}: {outcome:?}")
            };
            assert_eq!(answer.backend, target.address, "{place:?} {target}");
            assert_eq!(answer.seen, answer.own, "{place:?} {target}");
        }
    }
}

#[test]
fn refusals_and_silence_are_told_apart() {
    let Some(world) = world().unwrap() else { return };
    let rules = "\
table inet t {
    chain verdicts {
        ip daddr 172.30.0.1 reject
        ip6 daddr fd00:172:30::1 reject
        ip daddr 172.30.0.2 drop
        ip6 daddr fd00:172:30::2 drop
        ip daddr 172.30.0.3 meta l4proto tcp reject with tcp reset
    }
    chain forward {
        type filter hook forward priority 0
        jump verdicts
    }
    chain output {
        type filter hook output priority 0
        jump verdicts
    }
}
";
    world.node().nft(rules).unwrap();
    // Silence takes long to be sure of; the places wait side by side.
    thread::scope(|scope| {
        for place in PLACES {
            let world = &world;
            for target in targets(&["172.30.0.1", "fd00:172:30::1"]) {
                scope.spawn(move || expect(world, place, target, &Outcome::Refused));
            }
            for target in targets(&["172.30.0.2", "fd00:172:30::2"]) {
                scope.spawn(move || expect(world, place, target, &Outcome::Silent));
            }
            let reset = Target::tcp("172.30.0.3:80".parse().unwrap());
            scope.spawn(move || expect(world, place, reset, &Outcome::Refused));
        }
    });
}

fn expect(world: &World, place: Place, target: Target, outcome: &Outcome) {
    assert_eq!(&world.dial(place, &target), outcome, "{place:?} {target}");
}

#[test]
fn traffic_counts_what_fails() {
    let Some(world) = world().unwrap() else { return };
    let target = Target::tcp("172.30.0.1:80".parse().unwrap());
    let steady = Duration::from_millis(2);
    let traffic = Traffic::start(&world, Place::LocalPod, target, steady);
    wait_until(Duration::from_secs(5), "some are answered", || traffic.tried() > 20).unwrap();
    let whole = traffic.stop().unwrap();
    assert_eq!((whole.answered(), whole.failures.len()), (whole.tried, 0));
    assert_eq!(whole.backends.keys().collect::<Vec<_>>(), [&target.address]);

    let traffic = Traffic::start(&world, Place::LocalPod, target, steady);
    // Only first packets: a connection that is just being answered is no failure of the kind meant.
    let rules = "table ip t { chain f { type filter hook forward priority 0; \
                 tcp flags & (syn | ack) == syn reject; }; }";
    world.node().nft(rules).unwrap();
    let tried = traffic.tried();
    wait_until(Duration::from_secs(5), "more are tried", || traffic.tried() > tried + 5).unwrap();
    let cut = traffic.stop().unwrap();
    assert!(cut.failures.iter().all(|(_, outcome)| *outcome == Outcome::Refused), "{cut:?}");
    assert!(!cut.failures.is_empty() && cut.answered() + cut.failures.len() == cut.tried);
}
