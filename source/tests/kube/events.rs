//! Events in a cluster (S17).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use proxy_core::names::ServiceName;
use serde_json::Value;
use source::kube::events::{ClusterEvent, EventRecorder, Regarding, Severity};
use source::kube::{EventLoss, KubeSource, RequestStage, SourceMetrics};
use testbed::apiserver::{ApiServer, On, What};
use testbed::wait_until;

use crate::cluster::{LIMIT, connection, timing};

/// Method and code of a request, as the source tells them.
type Told = (&'static str, Option<u16>);

struct Rig {
    server: ApiServer,
    recorder: EventRecorder,
    writer: tokio::task::JoinHandle<()>,
    metrics: Arc<SourceMetrics>,
    told: Arc<Mutex<Vec<Told>>>,
}

fn rig() -> Rig {
    let server = ApiServer::start().unwrap();
    let mut timing = timing();
    timing.series = Duration::from_millis(50);
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = Arc::clone(&told);
    let source = KubeSource::new(connection(&server)).unwrap().timing(timing);
    let source = source.on_request(move |news| {
        if let RequestStage::Answered { code, sent, .. } = news.stage {
            assert!(sent > 0, "an event without content");
            tell.lock().unwrap().push((news.method, code));
        }
    });
    let (recorder, writer) = source.events();
    let (writer, metrics) = (tokio::spawn(writer.run()), source.metrics());
    Rig { server, recorder, writer, metrics, told }
}

fn event(service: &str, note: &str) -> ClusterEvent {
    ClusterEvent {
        severity: Severity::Warning,
        reason: "Broken",
        action: "Mend",
        regarding: Regarding::Service(ServiceName::new("shop", service)),
        series: String::new(),
        note: note.to_owned(),
    }
}

impl Rig {
    fn events(&self) -> Vec<Value> {
        self.server.objects("events")
    }

    /// Requests with this method.
    fn asked(&self, method: &str) -> usize {
        self.server.requests().iter().filter(|request| request.method == method).count()
    }

    fn wait(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let events = || format!("{what}: {:#?}", self.events());
        assert!(wait_until(LIMIT, what, || condition(self)).is_ok(), "{}", events());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s17_an_event_says_what_where_and_who() {
    let rig = rig();
    let node = ClusterEvent { regarding: Regarding::Node, ..event("", "n") };
    assert!(rig.recorder.record(node) && rig.recorder.record(event("cart", &"é".repeat(600))));
    rig.wait("two events", |rig| rig.events().len() == 2);
    let events = rig.events();
    let of = |kind: &str| events.iter().find(|it| it["regarding"]["kind"] == kind).unwrap();
    let (node, cart) = (of("Node"), of("Service"));
    assert_eq!(node["metadata"]["namespace"], "default");
    assert_eq!(node["regarding"]["name"], "node-1");
    assert_eq!(cart["regarding"]["name"], "cart");
    assert_eq!(cart["metadata"]["namespace"], "shop");
    assert_eq!(cart["note"].as_str().unwrap().len(), 1024);
    assert_eq!(cart["type"], "Warning");
    assert_eq!(cart["reportingInstance"], "proxyd-node-1");
    assert!(cart["series"].is_null(), "once is no series");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repetitions_are_counted_in_one_object() {
    let rig = rig();
    assert!(rig.recorder.record(event("cart", "by nft (pid 1)")));
    rig.wait("the event", |rig| rig.events().len() == 1);
    for pid in 2..=100 {
        assert!(rig.recorder.record(event("cart", &format!("by nft (pid {pid})"))));
    }
    rig.wait("the count", |rig| rig.events()[0]["series"]["count"] == 100);
    let other = ClusterEvent { series: "other".to_owned(), ..event("cart", "") };
    assert!(rig.recorder.record(other));
    rig.wait("another series", |rig| rig.events().len() == 2);
    // Each request waits for what gathers; far fewer than there were repetitions.
    assert!(rig.asked("PATCH") < 20, "{}", rig.asked("PATCH"));
    // An object that the server has forgotten (their life is an hour) is made again.
    for event in rig.events() {
        rig.server.delete("events", "shop", event["metadata"]["name"].as_str().unwrap());
    }
    assert!(rig.recorder.record(event("cart", "")));
    rig.wait("a new object", |rig| rig.events().len() == 1);
    assert_eq!(rig.events()[0]["series"]["count"], 101);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_or_absent_server_is_asked_again() {
    let faults = [
        What::status(429, "TooManyRequests"),
        What::status(500, "InternalError"),
        What::status(401, "Unauthorized"),
        What::Hang,
    ];
    for what in faults {
        println!("{what:?}");
        let rig = rig();
        rig.server.fault("events", On::Write, what, 3);
        assert!(rig.recorder.record(event("cart", "")));
        rig.wait("the event", |rig| rig.events().len() == 1);
        assert!(!rig.server.has_faults(), "nothing went wrong");
    }
    let rig = rig();
    rig.server.stop();
    assert!(rig.recorder.record(event("cart", "")));
    rig.server.resume().unwrap();
    rig.wait("the event", |rig| rig.events().len() == 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_refused_is_dropped_and_others_are_written() {
    for (code, reason) in [(403, "Forbidden"), (422, "Invalid"), (404, "NotFound")] {
        let rig = rig();
        rig.server.fault("events", On::Write, What::status(code, reason), 1);
        assert!(rig.recorder.record(event("cart", "")));
        rig.wait("a request", |rig| rig.asked("POST") == 1);
        assert!(rig.recorder.record(event("other", "")));
        rig.wait("the other", |rig| rig.events().len() == 1);
        assert_eq!(rig.events()[0]["regarding"]["name"], "other");
        assert_eq!(rig.asked("POST"), 2, "{code} was asked again");
        rig.wait("the count", |rig| rig.metrics.events_written() == 1);
        assert_eq!(rig.metrics.events_lost(EventLoss::Refused), 1);
        assert_eq!(*rig.told.lock().unwrap(), [("POST", Some(code)), ("POST", Some(201))]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_is_bounded_and_holds_nobody_up() {
    let rig = rig();
    rig.server.fault("events", On::Write, What::Hang, usize::MAX);
    let start = std::time::Instant::now();
    let taken = (0..100_000).filter(|n| rig.recorder.record(event(&format!("s-{n}"), ""))).count();
    assert!(start.elapsed() < LIMIT && taken < 100_000, "{taken} in {:?}", start.elapsed());
    let overflow = rig.metrics.events_lost(EventLoss::Overflow);
    assert!(overflow >= u64::try_from(100_000 - taken).unwrap(), "{overflow}");
    rig.server.clear_faults();
    rig.server.stop();
    rig.server.resume().unwrap();
    rig.wait("a burst is written", |rig| rig.events().len() >= 20);
    // The next is due in ten seconds.
    assert!(rig.events().len() <= 21, "{}", rig.events().len());
    drop(rig.recorder);
    tokio::time::timeout(LIMIT, rig.writer).await.unwrap().unwrap();
}
