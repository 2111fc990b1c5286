use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;

use proxy_core::address::{Cidr, IpFamily};
use proxy_core::names::Protocol;
use proxy_core::resolved::FrontendKey;

use super::*;
use crate::layout::TABLE;
use crate::model::ChainName;

const WRITER: Writer<'static> = Writer { family: IpFamily::V4, table: TABLE };

fn cluster_ip(number: u32) -> Key {
    Key::ClusterIp(IpAddr::from(number.to_be_bytes()))
}

fn add(key: Key) -> Change<Key, Rule> {
    Change::Add { key, rule: Rule::Member }
}

fn remove(key: Key) -> Change<Key, Rule> {
    Change::Remove { key, rule: Rule::Member }
}

/// The batches that the steps make.
fn batches(steps: &[Change<Key, Rule>], limit: usize) -> Vec<Vec<u8>> {
    let mut batches = Vec::new();
    let steps: Vec<_> = steps.iter().collect();
    let result: Result<(), Infallible> = write(&WRITER, &steps, limit, false, |transaction| {
        batches.push(transaction.batch.finish().unwrap().to_vec());
        Ok(())
    });
    result.unwrap();
    batches
}

#[test]
fn equal_steps_give_equal_bytes() {
    let steps: Vec<_> = (0..500).map(|number| add(cluster_ip(number))).collect();
    assert_eq!(batches(&steps, 4 << 20), batches(&steps.clone(), 4 << 20));
    assert_eq!(batches(&steps, 4 << 20).len(), 1);
    assert_eq!(batches(&[], 1), Vec::<Vec<u8>>::new());
}

#[test]
fn batches_end_near_the_limit() {
    let steps: Vec<_> = (0..50_000).map(|number| add(cluster_ip(number))).collect();
    let batches = batches(&steps, 1);
    assert!(batches.len() > 4);
    assert!(batches.iter().all(|batch| batch.len() <= 2 * RESERVE));
}

#[test]
fn an_error_is_about_its_step() {
    let chain = |name: &str| Key::Chain(ChainName(name.into()));
    let spec = Rule::Chain(Arc::new(ChainSpec { base: None, rules: Vec::new() }));
    let steps = [
        Change::Add { key: chain("pick-1"), rule: spec.clone() },
        add(cluster_ip(1)),
        add(cluster_ip(2)),
        Change::Add { key: Key::Table, rule: Rule::Table { dormant: false } },
    ];
    let steps: Vec<_> = steps.iter().collect();
    let mut origins = Vec::new();
    let result: Result<(), Infallible> = write(&WRITER, &steps, 4 << 20, false, |transaction| {
        origins = (0..=4).map(|message| transaction.origin(message)).collect();
        Ok(())
    });
    result.unwrap();
    assert_eq!(origins, [None, Some(0), Some(1), Some(3), None]);
}

fn range(port: u16, text: &str) -> Key {
    let address = IpAddr::from([192, 0, 2, 1]);
    let frontend = FrontendKey::Address { address, port, protocol: Protocol::Tcp };
    Key::SourceRange(Box::new((frontend, Cidr::parse(text).unwrap())))
}

#[test]
fn ranges_make_room_for_those_that_overlap_them() {
    let delta = [
        add(cluster_ip(1)),
        add(range(80, "10.0.0.0/8")),
        add(range(81, "10.0.0.0/8")),
        remove(range(80, "10.2.0.0/16")),
        remove(range(80, "10.1.0.0/16")),
        remove(range(79, "10.1.0.0/16")),
        remove(cluster_ip(2)),
    ];
    let early = [remove(range(81, "10.3.0.0/16"))];
    let steps = join_ranges(delta.iter().collect(), &early);
    let expected =
        [&delta[0], &delta[4], &delta[3], &delta[1], &early[0], &delta[2], &delta[5], &delta[6]];
    let keys = |steps: &[&Change<Key, Rule>]| -> Vec<String> {
        steps.iter().map(|step| step.key().to_string()).collect()
    };
    let mut sorted = [keys(&steps), keys(&expected)];
    // The order of removals does not matter.
    for keys in &mut sorted {
        keys[1..3].sort();
    }
    assert_eq!(sorted[0], sorted[1]);
    assert_eq!(run_of(&steps[1..]).len(), 6);
}
