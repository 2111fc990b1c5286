//! What a large cluster costs.

use std::process::Command;
use std::time::Instant;

use proxy_core::event::{Kind, SourceEvent};
use source::kube::{KubeConnection, KubeSource};
use testbed::apiserver::{ApiServer, Streaming};
use tokio::sync::mpsc;

use crate::cluster::slice;

const SLICES: usize = 10_000;
/// More growth than this, in KiB, means that something holds the list.
const ALLOWED: usize = 12 << 10;
/// Names the server to the process that is measured.
const SERVER: &str = "SOURCE_TEST_SERVER";

/// A figure of `/proc/self/status`, in KiB.
fn memory(name: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Runs in a process of its own: lists everything, forgets it, and prints by how much the peak of
/// its memory grew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started by the other test"]
async fn list_and_measure() {
    let connection = KubeConnection {
        master: Some(std::env::var(SERVER).unwrap()),
        qps: -1.0,
        ..KubeConnection::default()
    };
    let before = memory("VmRSS:");
    let start = Instant::now();
    let (sender, mut events) = mpsc::channel(64);
    let source = KubeSource::new(connection).unwrap();
    let task = tokio::spawn(source.run(sender));
    let mut slices = 0;
    loop {
        match events.recv().await.unwrap() {
            SourceEvent::Applied(object) if object.kind() == Kind::EndpointSlice => slices += 1,
            SourceEvent::ListDone(Kind::EndpointSlice) => break,
            _ => {}
        }
    }
    assert_eq!(slices, SLICES);
    let seconds = start.elapsed().as_secs_f64();
    println!("grew by {} KiB in {seconds:.2} s", memory("VmHWM:") - before);
    drop(events);
    task.await.unwrap().unwrap();
}

#[test]
fn memory_does_not_grow_with_the_list() {
    let server = ApiServer::start().unwrap();
    let mut bytes = 0;
    for number in 0..SLICES {
        let slice = slice(&format!("slice-{number}"), 10);
        bytes += slice.to_string().len();
        server.apply(slice);
    }
    let ways = [(Streaming::Refused, false), (Streaming::Refused, true), (Streaming::On, false)];
    for (streaming, unlimited) in ways {
        server.set_streaming(streaming);
        server.set_unlimited(unlimited);
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "scale::list_and_measure", "--ignored", "--nocapture"])
            .env(SERVER, server.url())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}");
        let (_, growth) = text.split_once("grew by ").unwrap();
        let growth = growth.lines().next().unwrap();
        println!("{} MB, {streaming:?}, unlimited {unlimited}: {growth}", bytes / 1_000_000);
        let kib: usize = growth.split(' ').next().unwrap().parse().unwrap();
        assert!(kib < ALLOWED, "{growth}");
    }
}
