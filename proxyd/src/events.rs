//! Events in the cluster: what people should know of this node without reading its log (S17).
//!
//! Only what is wrong with this node is told. What is wrong with an object is the same on all nodes
//! and goes to log and metrics, or each of them would write it. With a folder of manifests there is no
//! cluster to tell, and everything here does nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use proxy_core::address::IpFamily;
use proxy_core::driver::DriverEvent;
use proxy_core::names::ServiceName;
use proxy_core::sync::SyncReport;
#[cfg(feature = "kube")]
use source::kube::events::{ClusterEvent, EventRecorder, Regarding, Severity};

use crate::config::{KubeProxyConfiguration, Mode};
use crate::objects::ObjectSource;

/// Failures in a row of one family until they are told; most do not last so long.
const FAILURES: u32 = 5;

/// Tells of events. Never waits; clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Events {
    node_name: String,
    #[cfg(feature = "kube")]
    recorder: Option<EventRecorder>,
}

/// An event in the making.
#[cfg_attr(not(feature = "kube"), expect(dead_code, reason = "no cluster"))]
struct Notice<'n> {
    is_warning: bool,
    reason: &'static str,
    action: &'static str,
    /// The Service it is about; else the Node.
    service: Option<&'n ServiceName>,
    /// What tells a repetition from another event.
    series: String,
    note: String,
}

impl Events {
    /// Events for the cluster that the objects come from, written by a task of this runtime.
    #[cfg_attr(not(feature = "kube"), expect(unused_variables, reason = "no cluster"))]
    pub fn start(source: &ObjectSource, config: &KubeProxyConfiguration, node_name: &str) -> Self {
        let node_name = node_name.to_owned();
        #[cfg(feature = "kube")]
        let recorder = match source {
            ObjectSource::Kube(source) if config.settings.events_enabled => {
                let (recorder, writer) = source.events();
                tokio::spawn(writer.run());
                Some(recorder)
            }
            _ => None,
        };
        Self {
            node_name,
            #[cfg(feature = "kube")]
            recorder,
        }
    }

    /// The program serves.
    pub fn starting(&self, mode: Mode) {
        self.tell(Notice {
            is_warning: false,
            reason: "Starting",
            action: "StartKubeProxy",
            service: None,
            series: String::new(),
            note: format!("proxyd {} in mode {mode}", env!("CARGO_PKG_VERSION")),
        });
    }

    /// A health check of load balancers cannot listen.
    pub fn health_check_refused(
        &self,
        service: &ServiceName,
        address: SocketAddr,
        error: &std::io::Error,
    ) {
        let node = &self.node_name;
        self.tell(Notice {
            is_warning: true,
            reason: "FailedToStartServiceHealthcheck",
            action: "Listen",
            service: Some(service),
            series: address.to_string(),
            note: format!(
                "node {node} failed to start healthcheck \"{service}\" on {address}: {error}"
            ),
        });
    }

    /// The configuration file has changed to something that cannot be used.
    pub fn config_unusable(&self, file: &str, error: &str) {
        self.tell(Notice {
            is_warning: true,
            reason: "ConfigurationUnusable",
            action: "Reload",
            service: None,
            series: error.to_owned(),
            note: format!("{file} cannot be used, the old configuration stays in force: {error}"),
        });
    }

    /// The configuration file says something else than what is in force.
    pub fn config_pending(&self, file: &str, fields: &str) {
        self.tell(Notice {
            is_warning: false,
            reason: "ConfigurationPending",
            action: "Reload",
            service: None,
            series: fields.to_owned(),
            note: format!("{file} has changed; a restart takes it in: {fields}"),
        });
    }

    #[cfg(feature = "kube")]
    fn tell(&self, notice: Notice<'_>) {
        let Some(recorder) = &self.recorder else { return };
        let Notice { is_warning, reason, action, service, series, note } = notice;
        let severity = if is_warning { Severity::Warning } else { Severity::Normal };
        let regarding =
            service.map_or(Regarding::Node, |service| Regarding::Service(service.clone()));
        let event = ClusterEvent { severity, reason, action, regarding, series, note };
        if !recorder.record(event) {
            tracing::debug!(reason, "too many events wait to be written; one is dropped");
        }
    }

    #[cfg(not(feature = "kube"))]
    #[expect(clippy::unused_self, reason = "no cluster")]
    fn tell(&self, _: Notice<'_>) {}
}

/// Tells what the driver's events mean for people.
#[derive(Debug)]
pub struct EventObserver {
    events: Events,
    left_out: BTreeMap<IpFamily, BTreeSet<ServiceName>>,
    /// Failures in a row.
    failures: BTreeMap<IpFamily, u32>,
}

impl EventObserver {
    /// An observer that tells these events.
    pub fn new(events: Events) -> Self {
        Self { events, left_out: BTreeMap::new(), failures: BTreeMap::new() }
    }

    /// Takes a look at an event.
    pub fn observe(&mut self, event: &DriverEvent) {
        match event {
            DriverEvent::Synced { family, report, .. } => {
                self.failures.remove(family);
                self.note_left_out(*family, report);
            }
            DriverEvent::SyncFailed { family, error, .. } => {
                let failures = self.failures.entry(*family).or_default();
                *failures = failures.saturating_add(1);
                if *failures >= FAILURES {
                    self.tell_failure(*family, error);
                }
            }
            DriverEvent::Drift { family, description, repaired_objects } => {
                self.tell_repair(*family, description, *repaired_objects);
            }
            _ => {}
        }
    }

    fn note_left_out(&mut self, family: IpFamily, report: &SyncReport) {
        let node = &self.events.node_name;
        let known = self.left_out.entry(family).or_default();
        let mut now = BTreeSet::new();
        for (service, reason) in &report.left_out {
            now.insert(service.clone());
            if known.contains(service) {
                continue;
            }
            self.events.tell(Notice {
                is_warning: true,
                reason: "ServiceNotProgrammed",
                action: "Sync",
                service: Some(service),
                series: format!("{family} {reason}"),
                note: format!("not programmed for {family} on node {node}, because {reason}"),
            });
        }
        for service in known.difference(&now) {
            self.events.tell(Notice {
                is_warning: false,
                reason: "ServiceProgrammed",
                action: "Sync",
                service: Some(service),
                series: family.to_string(),
                note: format!("no longer left out for {family} on node {node}"),
            });
        }
        *known = now;
    }

    fn tell_failure(&self, family: IpFamily, error: &str) {
        self.events.tell(Notice {
            is_warning: true,
            reason: "FailedToSync",
            action: "Sync",
            service: None,
            series: family.to_string(),
            note: format!("rules of {family} cannot be written, changes wait: {error}"),
        });
    }

    fn tell_repair(&self, family: IpFamily, description: &str, objects: usize) {
        self.events.tell(Notice {
            is_warning: true,
            reason: "RulesRepaired",
            action: "Repair",
            service: None,
            // Who did it may be another process each time.
            series: family.to_string(),
            note: format!(
                "somebody else changed rules of {family}, {objects} objects were repaired: \
                 {description}"
            ),
        });
    }
}

#[cfg(all(test, feature = "kube"))]
mod tests {
    use std::time::Duration;

    use proxy_core::table::TableErrorKind;
    use serde_json::Value;
    use source::kube::{KubeConnection, KubeSource};
    use testbed::apiserver::ApiServer;
    use testbed::wait_until;

    use super::*;
    use crate::config::{Flags, load};

    fn synced(left_out: &[(&str, &str)]) -> DriverEvent {
        let left_out = left_out
            .iter()
            .map(|(service, reason)| (ServiceName::new("shop", *service), (*reason).to_owned()));
        let report = SyncReport { left_out: left_out.collect(), ..SyncReport::default() };
        DriverEvent::Synced {
            family: IpFamily::V4,
            report,
            duration: Duration::ZERO,
            queued_for: Duration::ZERO,
            trigger_times: Vec::new(),
        }
    }

    fn failed() -> DriverEvent {
        DriverEvent::SyncFailed {
            family: IpFamily::V4,
            kind: TableErrorKind::Transient,
            error: "no memory".to_owned(),
            retry_in: Duration::ZERO,
        }
    }

    fn observer(server: &ApiServer) -> EventObserver {
        let connection = KubeConnection {
            master: Some(server.url()),
            node_name: "node-1".to_owned(),
            ..KubeConnection::default()
        };
        let source = ObjectSource::Kube(Box::new(
            KubeSource::new(connection).expect("an address is enough"),
        ));
        let flags = Flags::parse(["--proxy-mode=nftables"]).expect("a flag");
        let loaded = load(&flags, &|path| std::fs::read_to_string(path)).expect("defaults");
        EventObserver::new(Events::start(&source, &loaded.config, "node-1"))
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_is_not_programmed_is_told_once_with_its_reason_and_when_that_is_over() {
        let server = ApiServer::start().unwrap();
        let mut observer = observer(&server);
        observer.observe(&synced(&[("cart", "the set is full")]));
        observer.observe(&synced(&[("cart", "the set is full"), ("web", "it is too big")]));
        for _ in 0..=FAILURES {
            observer.observe(&failed());
        }
        observer.observe(&synced(&[("web", "it is too big")]));
        // Too short to be told.
        observer.observe(&failed());
        let notes = || -> Vec<String> {
            let events = server.objects("events");
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let mut notes: Vec<String> = events
                .iter()
                .map(|event| format!("{} {}", text(&event["type"]), text(&event["note"])))
                .collect();
            notes.sort_unstable();
            notes
        };
        let expected = [
            "Normal no longer left out for IPv4 on node node-1",
            "Warning not programmed for IPv4 on node node-1, because it is too big",
            "Warning not programmed for IPv4 on node node-1, because the set is full",
            "Warning rules of IPv4 cannot be written, changes wait: no memory",
        ];
        let told = wait_until(Duration::from_secs(20), "events", || notes() == expected);
        assert!(told.is_ok(), "{:#?}", notes());
    }
}
