//! Events: what people should know of this node, as objects of the cluster (`events.k8s.io/v1`,
//! KEP-383).
//!
//! Telling never holds anything up: [`EventRecorder::record`] puts an event into a bounded queue or
//! drops it, and [`EventWriter::run`] writes in its own time. What happens again within six minutes is
//! the same object, whose `series` counts it. A server that is out of reach is asked again with
//! growing pauses; what it refuses is dropped.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use ::kube::client::Body;
use http::{Request, header};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use proxy_core::names::ServiceName;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

use super::connect::Session;
use super::fault::{Fault, Status};
use super::metrics::{EventLoss, SourceMetrics};
use super::pace::{self, Limiter, Timing};
use super::requests::{Observer, RequestStage};
use super::{reason, refusal};

/// What writes the events, for `reportingController`.
const CONTROLLER: &str = "proxyd";
/// Events that may wait to be looked at.
const QUEUE: usize = 256;
/// Events that may wait to be written or to happen again.
const MAX_SERIES: usize = 512;
/// Events that may be written at once; then one each [`INTERVAL_RATE`]. All nodes of a cluster may
/// have the same to say.
const BURST: u32 = 20;
/// Events a second after the burst.
const INTERVAL_RATE: f64 = 0.1;
/// A series is over when it has not gone on for so long; as in client-go.
const SERIES_ENDS: Duration = Duration::from_secs(360);
/// What could not be written for so long is no news any more.
const NEWS: Duration = Duration::from_secs(600);
/// The API's limit for `note`, in bytes.
const LONGEST_NOTE: usize = 1024;
/// The API's limit for `reportingInstance`, in bytes.
const LONGEST_INSTANCE: usize = 128;
/// The longest name an object can have, less the time that makes it unique.
const LONGEST_NAME: usize = 253 - 17;

/// Whether something is to be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// For information.
    Normal,
    /// Something is wrong.
    Warning,
}

impl Severity {
    fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// The object that an event is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Regarding {
    /// The own Node.
    Node,
    /// A Service.
    Service(ServiceName),
}

/// Something that people should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterEvent {
    /// `type`.
    pub severity: Severity,
    /// Why, as one word.
    pub reason: &'static str,
    /// What was done or failed, as one word.
    pub action: &'static str,
    /// The object.
    pub regarding: Regarding,
    /// Events that differ in nothing but their notes are repetitions if this is the same.
    pub series: String,
    /// What has happened, for people; cut at 1024 bytes.
    pub note: String,
}

/// Takes events. Clones share one queue.
#[derive(Clone, Debug)]
pub struct EventRecorder {
    queue: mpsc::Sender<ClusterEvent>,
    metrics: Arc<SourceMetrics>,
}

impl EventRecorder {
    /// Hands an event over to be written some time, without waiting. Returns whether there was room
    /// for it.
    pub fn record(&self, event: ClusterEvent) -> bool {
        let taken = self.queue.try_send(event).is_ok();
        if !taken {
            self.metrics.count_event_lost(EventLoss::Overflow);
        }
        taken
    }
}

/// What makes two events the same but for count and time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Identity {
    regarding: Regarding,
    severity: Severity,
    reason: &'static str,
    action: &'static str,
    series: String,
}

/// An event that has happened so many times.
#[derive(Clone, Debug)]
struct Series {
    note: String,
    first: Timestamp,
    last: Timestamp,
    seen: Instant,
    count: i32,
    /// How many of them the server knows of; 0 if the object is to be created.
    told: i32,
    name: String,
    /// When to write it, if that is to be done.
    due: Option<Instant>,
}

/// What a writer shares with the source.
#[derive(Debug)]
pub(super) struct Telling {
    pub(super) session: Arc<Session>,
    pub(super) metrics: Arc<SourceMetrics>,
    pub(super) observer: Observer,
}

/// Writes events to the API server.
#[derive(Debug)]
pub struct EventWriter {
    shared: Telling,
    timing: Timing,
    node_name: String,
    queue: mpsc::Receiver<ClusterEvent>,
    /// How long repetitions are gathered before their count is written.
    gather: Duration,
    limiter: Limiter,
    series: BTreeMap<Identity, Series>,
    /// After a failure: nothing is written before.
    not_before: Instant,
    failures: u32,
    /// Whether it was said that events are not written.
    complained: bool,
}

/// What to make of a server's answer.
enum Outcome {
    Told,
    /// The object is gone; another one is needed.
    Gone,
    Again(Fault),
    Refused(Fault),
}

impl EventWriter {
    pub(super) fn new(shared: Telling, timing: Timing, node_name: String) -> (EventRecorder, Self) {
        let (sender, queue) = mpsc::channel(QUEUE);
        let metrics = Arc::clone(&shared.metrics);
        let writer = Self {
            shared,
            node_name,
            queue,
            gather: timing.series,
            timing,
            limiter: Limiter::new(INTERVAL_RATE, BURST),
            series: BTreeMap::new(),
            not_before: Instant::now(),
            failures: 0,
            complained: false,
        };
        (EventRecorder { queue: sender, metrics }, writer)
    }

    /// Writes events until all recorders are dropped.
    pub async fn run(mut self) {
        loop {
            let next = self.next_due();
            let at = next.as_ref().map_or_else(Instant::now, |(at, _)| *at);
            tokio::select! {
                // Before writing, so that the queue runs over only if it has to.
                biased;
                event = self.queue.recv() => match event {
                    Some(event) => self.take(event, Instant::now()),
                    None => return,
                },
                () = sleep_until(at), if next.is_some() => {
                    if let Some((_, identity)) = next {
                        self.write(&identity).await;
                    }
                }
            }
        }
    }

    /// What to write next, and when.
    fn next_due(&self) -> Option<(Instant, Identity)> {
        let due = self.series.iter().filter_map(|(identity, it)| Some((it.due?, identity)));
        let (at, identity) = due.min_by_key(|(at, _)| *at)?;
        Some((at.max(self.not_before), identity.clone()))
    }

    fn take(&mut self, event: ClusterEvent, now: Instant) {
        let ClusterEvent { severity, reason, action, regarding, series, note } = event;
        if !can_be_named(&regarding) {
            return;
        }
        self.forget(now);
        let identity = Identity { regarding, severity, reason, action, series };
        let time = Timestamp::now();
        if let Some(series) = self.series.get_mut(&identity) {
            series.count = series.count.saturating_add(1);
            (series.last, series.seen) = (time, now);
            // That it is a series is news; how long it is can wait.
            let pause = if series.told > 1 { self.gather } else { Duration::ZERO };
            series.due.get_or_insert(now + pause);
            return;
        }
        if self.series.len() >= MAX_SERIES {
            tracing::debug!(?identity, "too many events; this one is dropped");
            self.shared.metrics.count_event_lost(EventLoss::Overflow);
            return;
        }
        let name = event_name(subject(&identity.regarding, &self.node_name), time);
        let due = Some(now + self.limiter.book(now));
        let note = cut(note, LONGEST_NOTE);
        let series =
            Series { note, first: time, last: time, seen: now, count: 1, told: 0, name, due };
        self.series.insert(identity, series);
    }

    /// Forgets series that are over, and what was not written in time.
    fn forget(&mut self, now: Instant) {
        self.series.retain(|_, series| {
            let is_waiting = series.due.is_some();
            let age = now.saturating_duration_since(series.seen);
            let stays = age < if is_waiting { NEWS } else { SERIES_ENDS };
            if is_waiting && !stays {
                self.shared.metrics.count_event_lost(EventLoss::Outdated);
            }
            stays
        });
    }

    async fn write(&mut self, identity: &Identity) {
        let Some(series) = self.series.get(identity).cloned() else { return };
        let outcome = self.ask(identity, &series).await;
        let now = Instant::now();
        if let Outcome::Told = outcome {
            self.failures = 0;
            self.complained = false;
            self.shared.metrics.count_event_written();
        }
        if let Outcome::Refused(fault) | Outcome::Again(fault) = &outcome
            && !std::mem::replace(&mut self.complained, true)
        {
            tracing::warn!(%fault, "failed to write an event");
        }
        let Some(current) = self.series.get_mut(identity) else { return };
        match outcome {
            Outcome::Told => {
                current.told = series.count;
                current.due = None;
            }
            // Nor are its repetitions wanted.
            Outcome::Refused(_) => {
                current.due = None;
                self.shared.metrics.count_event_lost(EventLoss::Refused);
            }
            Outcome::Gone => {
                current.told = 0;
                current.name =
                    event_name(subject(&identity.regarding, &self.node_name), Timestamp::now());
            }
            Outcome::Again(fault) => {
                let pause = self.timing.backoff(self.failures, pace::random());
                self.not_before = now + pause.max(fault.retry_after().unwrap_or_default());
                self.failures = self.failures.saturating_add(1);
                self.shared.session.doubt(&fault).await;
                self.forget(now);
            }
        }
    }

    async fn ask(&self, identity: &Identity, series: &Series) -> Outcome {
        let is_new = series.told == 0;
        let fault = match self.send(identity, series).await {
            Ok(()) => return Outcome::Told,
            Err(fault) => fault,
        };
        match &fault {
            // An answer that was lost had said so.
            Fault::Refused(Status { code: 409, .. }) if is_new => Outcome::Told,
            Fault::Refused(Status { code: 404, .. }) if !is_new => Outcome::Gone,
            Fault::Refused(Status { code: 401 | 408 | 409 | 429 | 500.., .. }) => {
                Outcome::Again(fault)
            }
            Fault::Refused(_) => Outcome::Refused(fault),
            _ => Outcome::Again(fault),
        }
    }

    async fn send(&self, identity: &Identity, series: &Series) -> Result<(), Fault> {
        let namespace = namespace(&identity.regarding);
        let mut path = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
        let (method, content, body) = if series.told == 0 {
            ("POST", "application/json", self.document(identity, series))
        } else {
            // Writing to a string cannot fail.
            let _ = write!(path, "/{}", series.name);
            ("PATCH", "application/merge-patch+json", json!({"series": counted(series)}))
        };
        let body = body.to_string().into_bytes();
        let sent = body.len();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::ACCEPT, "application/json")
            .header(header::CONTENT_TYPE, content)
            .body(Body::from(body))
            .map_err(|error| Fault::Unreachable(error.to_string()))?;
        let client = self.shared.session.client().await?;
        let limit = self.timing.answer;
        let begun = Instant::now();
        let answer = timeout(limit, client.send(request)).await;
        let code = answer.as_ref().ok().and_then(|it| Some(it.as_ref().ok()?.status().as_u16()));
        let answered = RequestStage::Answered { code, duration: begun.elapsed(), sent };
        self.shared.observer.tell(method, answered);
        match answer {
            Ok(Ok(response)) if response.status().is_success() => Ok(()),
            Ok(Ok(response)) => Err(refusal(response, limit).await),
            Ok(Err(error)) => Err(Fault::Unreachable(reason(&error))),
            Err(_) => Err(Fault::Silent(limit)),
        }
    }

    fn document(&self, identity: &Identity, series: &Series) -> Value {
        let namespace = namespace(&identity.regarding);
        let regarding = match &identity.regarding {
            Regarding::Node => json!({"kind": "Node", "apiVersion": "v1", "name": self.node_name}),
            Regarding::Service(service) => json!({
                "kind": "Service", "apiVersion": "v1",
                "namespace": &*service.namespace, "name": &*service.name,
            }),
        };
        let instance = cut(format!("{CONTROLLER}-{}", self.node_name), LONGEST_INSTANCE);
        let mut document = json!({
            "kind": "Event",
            "apiVersion": "events.k8s.io/v1",
            "metadata": {"namespace": namespace, "name": series.name},
            "eventTime": MicroTime(series.first),
            "type": identity.severity.as_str(),
            "reason": identity.reason,
            "action": identity.action,
            "regarding": regarding,
            "note": series.note,
            "reportingController": CONTROLLER,
            "reportingInstance": instance,
        });
        if series.count > 1 {
            document["series"] = counted(series);
        }
        document
    }
}

fn counted(series: &Series) -> Value {
    json!({"count": series.count, "lastObservedTime": MicroTime(series.last)})
}

/// Where an event belongs: to its object, or among those of objects that have no namespace.
fn namespace(regarding: &Regarding) -> &str {
    match regarding {
        Regarding::Node => "default",
        Regarding::Service(service) => &service.namespace,
    }
}

fn subject<'n>(regarding: &'n Regarding, node_name: &'n str) -> &'n str {
    match regarding {
        Regarding::Node => node_name,
        Regarding::Service(service) => &service.name,
    }
}

/// Whether an event can have the object's names in its own and in a URL; those of a cluster can.
fn can_be_named(regarding: &Regarding) -> bool {
    let is_name = |text: &str| {
        let is_good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !text.is_empty() && text.bytes().all(is_good)
    };
    match regarding {
        Regarding::Node => true,
        Regarding::Service(service) => is_name(&service.namespace) && is_name(&service.name),
    }
}

/// A name that no other event has: the object's and the time, as client-go makes them.
fn event_name(subject: &str, time: Timestamp) -> String {
    let subject = cut(subject.to_owned(), LONGEST_NAME);
    format!("{}.{:x}", subject.trim_end_matches(['.', '-']), time.as_nanosecond())
}

/// The text, no longer than this many bytes.
fn cut(mut text: String, limit: usize) -> String {
    let end = (0..=limit).rev().find(|end| text.is_char_boundary(*end));
    text.truncate(end.unwrap_or(0));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_between_characters() {
        assert_eq!(cut("aé".to_owned(), 2), "a");
        assert_eq!(cut("aé".to_owned(), 3), "aé");
        let name = event_name(&"n.".repeat(200), Timestamp::UNIX_EPOCH);
        assert!(name.len() <= 253 && name.ends_with("n.0"), "{name}");
    }

    #[test]
    fn names_that_would_change_a_url_are_left_out() {
        let service = |namespace, name| Regarding::Service(ServiceName::new(namespace, name));
        assert!(can_be_named(&service("shop-1", "cart")));
        for (namespace, name) in [("..", "a"), ("a/b", "c"), ("a", "b?c"), ("", "a"), ("a", "É")] {
            assert!(!can_be_named(&service(namespace, name)), "{namespace} {name}");
        }
    }
}
