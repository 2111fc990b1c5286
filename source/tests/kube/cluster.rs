//! A source, the pretended API server it watches, and what has come of its events.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proxy_core::event::{Kind, Object, ObjectRef, SourceEvent};
use serde_json::{Value, json};
use source::kube::{KubeConnection, KubeSource, SourceMetrics, Timing};
use testbed::apiserver::ApiServer;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Every wait ends after this time, well or badly.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// Times that make tests quick.
pub(crate) fn timing() -> Timing {
    let mut timing = Timing::default();
    timing.first_pause = Duration::from_millis(20);
    timing.longest_pause = Duration::from_millis(200);
    timing.absent_pause = Duration::from_millis(300);
    timing.answer = Duration::from_millis(500);
    timing.silence = Duration::from_millis(500);
    timing.watch_silence = Duration::from_millis(500);
    timing.steady = Duration::from_millis(100);
    timing
}

pub(crate) fn service(name: &str, address: &str) -> Value {
    json!({
        "kind": "Service", "apiVersion": "v1",
        "metadata": {"name": name, "namespace": "d", "managedFields": [{"f:spec": {}}]},
        "spec": {"clusterIP": address, "ports": [{"port": 80}]}
    })
}

pub(crate) fn slice(name: &str, endpoints: usize) -> Value {
    let endpoint = |number| {
        json!({"addresses": [format!("10.1.{}.{}", number / 250, number % 250 + 1)],
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": "node-1", "targetRef": {"kind": "Pod", "name": format!("pod-{number}")}})
    };
    json!({
        "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1",
        "metadata": {"name": name, "namespace": "d",
            "labels": {"kubernetes.io/service-name": "web"},
            "managedFields": [{"f:endpoints": {}, "f:metadata": {"f:labels": {}}}]},
        "addressType": "IPv4", "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
        "endpoints": (0..endpoints).map(endpoint).collect::<Vec<_>>()
    })
}

pub(crate) fn node(name: &str) -> Value {
    json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": name}})
}

/// An object whose `spec` cannot be read.
pub(crate) fn bad_service(name: &str) -> Value {
    let mut service = service(name, "10.0.0.9");
    service["spec"]["ports"] = json!("none");
    service
}

/// A pretended API server with a few objects.
pub(crate) fn server() -> ApiServer {
    let server = ApiServer::start().unwrap();
    server.apply(node("node-1"));
    server.apply(node("node-2"));
    for number in 1..=5 {
        server.apply(service(&format!("svc-{number}"), &format!("10.0.0.{number}")));
        server.apply(slice(&format!("slice-{number}"), 2));
    }
    server.apply(json!({
        "kind": "ServiceCIDR", "apiVersion": "networking.k8s.io/v1",
        "metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.0.0.0/16"]}
    }));
    server
}

pub(crate) fn connection(server: &ApiServer) -> KubeConnection {
    KubeConnection {
        master: Some(server.url()),
        qps: -1.0,
        node_name: "node-1".to_owned(),
        user_agent: "proxyd/test".to_owned(),
        ..KubeConnection::default()
    }
}

/// A kubeconfig for the server whose user has a token file.
pub(crate) fn kubeconfig(server: &ApiServer, dir: &std::path::Path) -> PathBuf {
    let path = dir.join("kubeconfig");
    let text = format!(
        "{{current-context: c, contexts: [{{name: c, context: {{cluster: c, user: u}}}}],\n\
         clusters: [{{name: c, cluster: {{server: '{}'}}}}],\n\
         users: [{{name: u, user: {{tokenFile: token}}}}]}}\n",
        server.url()
    );
    std::fs::write(&path, text).unwrap();
    path
}

/// The object as the source should hand it over, if it can be read.
fn decode(kind: Kind, object: &Value) -> Option<Object> {
    let object = object.clone();
    match kind {
        Kind::Service => serde_json::from_value(object).map(Object::Service),
        Kind::EndpointSlice => serde_json::from_value(object).map(Object::EndpointSlice),
        Kind::Node => serde_json::from_value(object).map(Object::Node),
        Kind::ServiceCidr => serde_json::from_value(object).map(Object::ServiceCidr),
    }
    .ok()
}

/// What a store would hold.
#[derive(Debug, Default)]
struct Known {
    objects: BTreeMap<ObjectRef, Object>,
    /// Objects of the list under way.
    listed: BTreeMap<Kind, Vec<ObjectRef>>,
}

impl Known {
    fn apply(&mut self, event: &SourceEvent) {
        match event {
            SourceEvent::ListStarted(kind) => {
                self.listed.insert(*kind, Vec::new());
            }
            SourceEvent::Applied(object) => {
                let reference = object.reference();
                if let Some(listed) = self.listed.get_mut(&reference.kind) {
                    listed.push(reference.clone());
                }
                self.objects.insert(reference, object.clone());
            }
            SourceEvent::Deleted(reference) => {
                self.objects.remove(reference);
            }
            SourceEvent::Unreadable(reference) => {
                if let Some(listed) = self.listed.get_mut(&reference.kind) {
                    listed.push(reference.clone());
                }
            }
            SourceEvent::ListDone(kind) => {
                let listed = self.listed.remove(kind).expect("a list ended that had not begun");
                self.objects
                    .retain(|reference, _| reference.kind != *kind || listed.contains(reference));
            }
            SourceEvent::Findings(_) => {}
        }
    }
}

/// A running source.
pub(crate) struct Running {
    events: mpsc::Receiver<SourceEvent>,
    known: Known,
    pub(crate) findings: Vec<String>,
    pub(crate) history: Vec<SourceEvent>,
    pub(crate) metrics: Arc<SourceMetrics>,
    task: JoinHandle<()>,
}

impl Running {
    pub(crate) fn start(server: &ApiServer) -> Self {
        Self::with(connection(server), timing())
    }

    pub(crate) fn with(connection: KubeConnection, timing: Timing) -> Self {
        let source = KubeSource::new(connection).unwrap().timing(timing);
        let metrics = source.metrics();
        let (sender, events) = mpsc::channel(16);
        let task = tokio::spawn(async move { source.run(sender).await.unwrap() });
        let (known, findings, history) = Default::default();
        Self { events, known, findings, history, metrics, task }
    }

    /// Takes in the next event, unless none comes in this time.
    pub(crate) async fn next(&mut self, limit: Duration) -> bool {
        let Ok(event) = tokio::time::timeout(limit, self.events.recv()).await else { return false };
        let event = event.expect("the source has ended");
        if let SourceEvent::Findings(findings) = &event {
            self.findings = findings.iter().map(ToString::to_string).collect();
        }
        self.known.apply(&event);
        self.history.push(event);
        true
    }

    /// Takes in events until the predicate holds.
    pub(crate) async fn until(&mut self, what: &str, mut is: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !is(self) {
            assert!(Instant::now() < deadline, "not {what}; findings: {:?}", self.findings);
            self.next(Duration::from_millis(20)).await;
        }
    }

    /// Takes in events for this time.
    pub(crate) async fn during(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.next(end.saturating_duration_since(Instant::now())).await;
        }
    }

    pub(crate) fn names(&self, kind: Kind) -> Vec<&str> {
        let of_kind = |reference: &&ObjectRef| reference.kind == kind;
        self.known.objects.keys().filter(of_kind).map(|reference| &*reference.name).collect()
    }

    /// Whether every kind was listed, and what is known is what the server holds, but for those
    /// that nobody can read.
    pub(crate) fn agrees(&self, server: &ApiServer) -> bool {
        let is_listed = |kind| self.metrics.lists(kind) > 0;
        let agrees = |kind: Kind| {
            let resource = format!("{}s", kind.as_str().to_lowercase());
            let expected: Vec<_> = server
                .objects(&resource)
                .iter()
                .filter(|object| kind != Kind::Node || object["metadata"]["name"] == "node-1")
                .filter_map(|object| decode(kind, object))
                .collect();
            let known = self.known.objects.values().filter(|object| object.kind() == kind);
            known.eq(expected.iter())
        };
        Kind::ALL.into_iter().all(|kind| is_listed(kind) && agrees(kind))
            && self.known.listed.is_empty()
    }

    pub(crate) async fn until_it_agrees(&mut self, server: &ApiServer) {
        self.until("in agreement", |running| running.agrees(server)).await;
    }

    /// Ends the source by dropping the receiver.
    pub(crate) async fn stop(self) {
        drop(self.events);
        tokio::time::timeout(LIMIT, self.task).await.unwrap().unwrap();
    }
}
