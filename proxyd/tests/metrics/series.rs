//! What events do to metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use proxy_core::address::IpFamily;
use proxy_core::diagnostic::Diagnostic;
use proxy_core::driver::DriverEvent;
use proxy_core::event::{EventCounts, Kind};
use proxy_core::names::{Protocol, ServiceName, ServicePortName};
use proxy_core::node::NodeFacts;
use proxy_core::resolved::{
    Frontend, FrontendKey, FrontendKind, Pool, ResolvedPort, ResolvedService, Route, Routes,
};
use proxy_core::store::Trigger;
use proxy_core::sync::{SyncReport, TableSync};
use proxy_core::table::{DriftSignal, TableError, TableErrorKind};
use proxyd::metrics::catalog::{self, Definition};
use proxyd::metrics::{HealthPath, MeasuredTable, Metrics, RuleCount};

use crate::exposition::{parse, value};
use crate::upstream::{S16, b15, programming};
use crate::{config, metrics};

const V4: IpFamily = IpFamily::V4;
const V6: IpFamily = IpFamily::V6;
const F4: (&str, &str) = ("ip_family", "IPv4");
const F6: (&str, &str) = ("ip_family", "IPv6");

fn synced(family: IpFamily, report: SyncReport, triggers: Vec<Trigger>) -> DriverEvent {
    DriverEvent::Synced {
        family,
        report,
        duration: Duration::from_millis(3),
        queued_for: Duration::from_millis(5),
        trigger_times: triggers,
    }
}

fn plain_sync(family: IpFamily) -> DriverEvent {
    synced(family, SyncReport { changed_objects: 4, ..SyncReport::default() }, Vec::new())
}

fn failed(family: IpFamily, kind: TableErrorKind) -> DriverEvent {
    let (error, retry_in) = ("no".to_owned(), Duration::from_secs(1));
    DriverEvent::SyncFailed { family, kind, error, retry_in }
}

fn taken_in(kind: Kind, applied: usize, deleted: usize) -> DriverEvent {
    DriverEvent::TakenIn(EventCounts {
        applied: BTreeMap::from([(kind, applied)]),
        deleted: BTreeMap::from([(kind, deleted)]),
    })
}

fn name(name: &str) -> ServiceName {
    ServiceName::new("default", name)
}

fn trigger(service: &str, time: SystemTime) -> Trigger {
    Trigger { time: time.into(), service: name(service) }
}

/// A Service with a cluster IP and an external IP that go these ways.
fn service(service: &str, internal: Route, external: Route) -> Arc<ResolvedService> {
    let frontend = |kind, host: u8, route| Frontend {
        key: FrontendKey::Address {
            address: [10, 0, 0, host].into(),
            port: 80,
            protocol: Protocol::Tcp,
        },
        kind,
        source_ranges: None,
        routes: Routes { outside: route, ..Routes::all(Route::Reject) },
    };
    let port = ResolvedPort {
        name: ServicePortName { service: name(service), port: "".into(), protocol: Protocol::Tcp },
        frontends: vec![
            frontend(FrontendKind::ClusterIp, 1, internal),
            frontend(FrontendKind::ExternalIp, 2, external),
        ],
        cluster: Pool::empty(),
        local: Pool::empty(),
        affinity: None,
        flow_endpoints: Vec::new(),
    };
    Arc::new(ResolvedService {
        name: name(service),
        cluster_ip: [10, 0, 0, 1].into(),
        ports: vec![port],
        health_check: None,
        scheduler: None,
    })
}

/// A table that answers as told.
struct Scripted {
    family: IpFamily,
    answers: Vec<Result<SyncReport, TableError>>,
}

#[async_trait]
impl TableSync for Scripted {
    fn family(&self) -> IpFamily {
        self.family
    }
    fn stage(&mut self, _: Vec<(ServiceName, Option<Arc<ResolvedService>>)>, _: Option<NodeFacts>) {
    }
    fn is_pending(&self) -> bool {
        !self.answers.is_empty()
    }
    fn distrust(&mut self) {}
    async fn sync(&mut self) -> Result<SyncReport, TableError> {
        self.answers.remove(0)
    }
    async fn clear(&mut self) -> Result<(), TableError> {
        Ok(())
    }
    fn tend_in(&self) -> Option<Duration> {
        None
    }
    async fn tend(&mut self) -> Result<(), TableError> {
        Ok(())
    }
    fn drift_signal(&mut self) -> Result<Option<Box<dyn DriftSignal>>, TableError> {
        Ok(None)
    }
}

fn measured(metrics: &Metrics, answers: Vec<Result<SyncReport, TableError>>) -> MeasuredTable {
    MeasuredTable::new(Box::new(Scripted { family: V4, answers }), metrics.clone())
}

fn full() -> SyncReport {
    SyncReport { full: true, ..SyncReport::default() }
}

fn error() -> TableError {
    TableError::new(TableErrorKind::Transient, "commit")
}

/// Everything that can happen, once.
async fn exercise(metrics: &Metrics) {
    #[cfg(feature = "kube")]
    {
        use source::kube::{KubeConnection, KubeSource, RequestNews, RequestStage};
        let master = Some("http://127.0.0.1:1".to_owned());
        let source = KubeSource::new(KubeConnection { master, ..KubeConnection::default() });
        metrics.follow_source(source.unwrap().metrics());
        let stages = [
            RequestStage::Admitted(Duration::ZERO),
            RequestStage::Answered { code: Some(200), duration: Duration::from_millis(4), sent: 0 },
            RequestStage::Received(5000),
        ];
        for stage in stages {
            metrics.api_request(&RequestNews { host: "api:6443", method: "GET", stage });
        }
    }
    let later = metrics.started() + Duration::from_secs(5);
    for family in IpFamily::ALL {
        for event in [
            taken_in(Kind::Service, 1, 0),
            taken_in(Kind::EndpointSlice, 1, 1),
            DriverEvent::Queued { family },
            failed(family, TableErrorKind::Transient),
        ] {
            metrics.observe_at(&event, later);
        }
        let left_out = vec![(name("bad"), "the \"set\"\nis full".to_owned())];
        let report = SyncReport { left_out, ..full() };
        let triggers = vec![trigger("web", later - Duration::from_secs(1))];
        let mut table = MeasuredTable::new(
            Box::new(Scripted {
                family,
                answers: vec![Ok(full()), Err(error()), Ok(SyncReport::default())],
            }),
            metrics.clone(),
        )
        .with_rules(Box::new(|| vec![RuleCount { table: "nat", installed: 7, written: 3 }]));
        metrics.set_iptables_variant(family, "nft");
        table.stage(vec![(name("web"), Some(service("web", Route::Drop, Route::Drop)))], None);
        for _ in 0..3 {
            let _scripted = table.sync().await;
        }
        metrics.observe_at(&synced(family, report, triggers), later);
        let description = "somebody".to_owned();
        metrics.observe(&DriverEvent::Drift { family, description, repaired_objects: 3 });
        metrics.flows_cleaned(family, Duration::from_millis(1), 2);
    }
    let appeared = vec![Diagnostic::new("Service/default/bad", "", "refused")];
    metrics.observe(&DriverEvent::Findings { appeared, resolved: Vec::new() });
    metrics.observe(&DriverEvent::Node(proxy_core::store::NodeState::default()));
    for path in [HealthPath::Healthz, HealthPath::Livez] {
        metrics.health_answered(path, 200);
    }
}

/// Metrics that only a backend of another mode writes, or that the machine may lack.
fn may_be_absent(definition: &Definition) -> bool {
    [
        &catalog::INVALID_DROPPED,
        &catalog::LOCALHOST_ACCEPTED,
        &catalog::NFTABLES_CLEANUP_FAILURES,
        &catalog::FLOWS,
        &catalog::FLOWS_LIMIT,
        &catalog::INSERT_FAILED,
        &catalog::FLOWS_DROPPED,
        &catalog::FLOWS_EARLY_DROPPED,
    ]
    .iter()
    .any(|it| it.name == definition.name)
}

/// Every metric of the catalog is in the text, as the catalog says, in the modes that have it.
#[tokio::test]
async fn s16_every_metric_appears_as_described() {
    for mode in ["iptables", "ipvs", "nftables"] {
        let config = config(mode);
        let patterns = ["*/*".to_owned()];
        let metrics = Metrics::new(&config, &IpFamily::ALL, &patterns).unwrap();
        exercise(&metrics).await;
        let families = parse(&metrics.text());
        for definition in catalog::ALL {
            let family = families.get(definition.name);
            if !definition.modes.contains(&config.mode) {
                assert!(family.is_none(), "{} is of another mode than {mode}", definition.name);
                continue;
            }
            let Some(family) = family else {
                assert!(may_be_absent(definition), "{} is missing in {mode}", definition.name);
                continue;
            };
            assert_eq!(family.kind, definition.kind.as_str(), "{}", definition.name);
            assert_eq!(family.help, definition.help, "{}", definition.name);
            for sample in &family.samples {
                let labels: BTreeSet<&str> =
                    sample.labels.keys().map(String::as_str).filter(|it| *it != "le").collect();
                let expected: BTreeSet<&str> = definition.labels.iter().copied().collect();
                assert_eq!(labels, expected, "{}", definition.name);
            }
        }
        let known: BTreeSet<&str> = catalog::ALL.iter().map(|it| it.name).collect();
        for name in families.keys() {
            assert!(known.contains(name.as_str()), "{name} is not in the catalog");
        }
    }
}

/// The catalog against kube-proxy's list.
#[tokio::test]
async fn s16_kube_proxys_metrics_keep_their_shape() {
    let metrics = metrics();
    exercise(&metrics).await;
    let families = parse(&metrics.text());
    for (name, kind, labels, modes) in S16 {
        let name = format!("kubeproxy_{name}");
        let definition = catalog::ALL.iter().find(|it| it.name == name);
        let definition = definition.unwrap_or_else(|| panic!("{name} is missing"));
        assert_eq!(definition.labels, *labels, "{name}");
        let letters: String = definition
            .modes
            .iter()
            .map(|mode| match mode.as_str() {
                "iptables" => 'I',
                "ipvs" => 'V',
                _ => 'N',
            })
            .collect();
        assert_eq!(letters, *modes, "{name}");
        let bounds = match *kind {
            "histogram B15" => b15(),
            "histogram 80" => programming(),
            kind => {
                assert_eq!(definition.kind.as_str(), kind, "{name}");
                continue;
            }
        };
        assert_eq!(definition.kind.as_str(), "histogram");
        let samples = &families[&name].samples;
        let shown: Vec<f64> = samples
            .iter()
            .filter(|it| it.name.ends_with("_bucket") && it.labels["ip_family"] == "IPv4")
            .map(|it| it.labels["le"].replace("+Inf", "inf").parse().unwrap())
            .collect();
        assert_eq!(shown.len(), bounds.len() + 1, "{name}");
        for (shown, bound) in shown.iter().zip(bounds) {
            assert!((shown - bound).abs() < 1e-9, "{name}: {shown} is not {bound}");
        }
    }
    let ours = catalog::ALL.iter().filter(|it| it.name.starts_with("kubeproxy_"));
    assert_eq!(ours.count(), S16.len(), "a name of kube-proxy's with a meaning of ours");
}

#[test]
fn failure_57_last_queued_is_absent_before_the_first_use() {
    const NAME: &str = "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds";
    let metrics = metrics();
    assert!(!metrics.text().contains(NAME));
    let now = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_250);
    metrics.observe_at(&DriverEvent::Queued { family: V4 }, now);
    let text = metrics.text();
    assert_eq!(value(&text, NAME, &[F4]), Some(1_700_000_000.25));
    assert_eq!(value(&text, NAME, &[F6]), None);
    assert!(!text.contains("last_timestamp_seconds"));
}

#[test]
fn failure_55_latency_counts_only_what_happened_after_the_start() {
    let metrics = metrics();
    let started = metrics.started();
    let count = |metrics: &Metrics| {
        let name = "kubeproxy_network_programming_duration_seconds_count";
        value(&metrics.text(), name, &[F4])
    };
    let hour = Duration::from_secs(3600);
    let old = vec![trigger("a", started - hour), trigger("b", started)];
    metrics.observe_at(&synced(V4, full(), old), started + hour);
    assert_eq!(count(&metrics), None);
    let new = vec![trigger("a", started + hour), trigger("a", started + 3 * hour)];
    metrics.observe_at(&synced(V4, full(), new), started + hour + Duration::from_millis(1500));
    let text = metrics.text();
    assert_eq!(count(&metrics), Some(2.0));
    let bucket = |le| {
        let name = "kubeproxy_network_programming_duration_seconds_bucket";
        value(&text, name, &[F4, ("le", le)])
    };
    // One took 1.5 s; the other comes from a clock that is ahead.
    assert_eq!((bucket("0.25"), bucket("1"), bucket("2")), (Some(1.0), Some(1.0), Some(2.0)));
    assert!(!text.contains("proxyd_service_programming_duration_seconds"), "not asked for");
}

#[test]
fn failure_36_and_56_families_fail_apart_and_with_a_reason() {
    let metrics = metrics();
    metrics.observe(&plain_sync(V4));
    for kind in [TableErrorKind::Transient, TableErrorKind::Permission, TableErrorKind::Transient] {
        metrics.observe(&failed(V6, kind));
    }
    let text = metrics.text();
    let failures =
        |family, reason| value(&text, "proxyd_sync_failures_total", &[family, ("reason", reason)]);
    assert_eq!(failures(F6, "transient"), Some(2.0));
    assert_eq!(failures(F6, "permission"), Some(1.0));
    assert_eq!(failures(F4, "transient"), Some(0.0), "so that its increase can be seen");
    let upstream = "kubeproxy_sync_proxy_rules_nftables_sync_failures_total";
    assert_eq!(value(&text, upstream, &[F6]), Some(3.0));
    let last = "kubeproxy_sync_proxy_rules_last_timestamp_seconds";
    assert!(value(&text, last, &[F4]).is_some() && value(&text, last, &[F6]).is_none());
    assert_eq!(value(&text, "proxyd_changed_objects_total", &[F4]), Some(4.0));
}

#[test]
fn s16_changes_are_counted_and_pending_until_a_sync() {
    let metrics = metrics();
    let read = || {
        let text = metrics.text();
        let get = |name: &str| {
            let name = format!("kubeproxy_sync_proxy_rules_{name}");
            value(&text, &name, &[]).unwrap()
        };
        [
            get("service_changes_total"),
            get("service_changes_pending"),
            get("endpoint_changes_total"),
            get("endpoint_changes_pending"),
        ]
    };
    let check = |expected: [f64; 4]| {
        for (read, expected) in read().into_iter().zip(expected) {
            assert!((read - expected).abs() < 1e-9, "{read} is not {expected}");
        }
    };
    check([0.0; 4]);
    metrics.observe(&taken_in(Kind::Service, 3, 0));
    metrics.observe(&DriverEvent::Queued { family: V4 });
    check([6.0, 3.0, 0.0, 0.0]);
    metrics.observe(&taken_in(Kind::EndpointSlice, 2, 1));
    metrics.observe(&taken_in(Kind::Node, 1, 0));
    check([6.0, 3.0, 3.0, 3.0]);
    metrics.observe(&plain_sync(V4));
    check([6.0, 0.0, 3.0, 0.0]);
    // Repeats that change nothing do not stay pending.
    metrics.observe(&taken_in(Kind::EndpointSlice, 5, 0));
    check([6.0, 0.0, 8.0, 0.0]);
    metrics.observe(&taken_in(Kind::EndpointSlice, 1, 0));
    metrics.observe(&DriverEvent::Queued { family: V6 });
    check([6.0, 0.0, 9.0, 1.0]);
    let events = |kind, action| {
        let labels = [("kind", kind), ("action", action)];
        value(&metrics.text(), "proxyd_source_events_total", &labels)
    };
    assert_eq!(events("EndpointSlice", "applied"), Some(8.0));
    assert_eq!(events("EndpointSlice", "deleted"), Some(1.0));
    assert_eq!(events("Node", "applied"), Some(1.0));
}

#[test]
fn failure_58_series_of_services_that_are_left_out_go_with_the_reason() {
    let metrics = metrics();
    let sync = |left_out: &[(&str, &str)]| {
        let left_out: Vec<_> =
            left_out.iter().map(|(it, reason)| (name(it), (*reason).to_owned())).collect();
        metrics.observe(&synced(V4, SyncReport { left_out, ..full() }, Vec::new()));
        let families = parse(&metrics.text());
        let samples = families.get("proxyd_service_left_out_info").map(|it| &it.samples);
        let mut shown: Vec<String> = samples
            .into_iter()
            .flatten()
            .map(|it| format!("{} {}", it.labels["service"], it.labels["reason"]))
            .collect();
        shown.sort_unstable();
        shown
    };
    assert!(sync(&[]).is_empty());
    assert_eq!(sync(&[("a", "full \"x\""), ("b", "odd")]), ["a full \"x\"", "b odd"]);
    assert_eq!(sync(&[("a", "other"), ("b", "odd")]), ["a other", "b odd"]);
    assert_eq!(sync(&[("b", "odd")]), ["b odd"]);
    assert_eq!(value(&metrics.text(), "proxyd_services_left_out", &[F4]), Some(1.0));
    let many: Vec<String> = (0..150).map(|number| format!("s{number:03}")).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|name| (name.as_str(), "full")).collect();
    assert_eq!(sync(&many).len(), 100);
    assert_eq!(value(&metrics.text(), "proxyd_services_left_out", &[F4]), Some(150.0));
    assert!(sync(&[]).is_empty());
}

#[test]
fn failure_58_latency_by_service_goes_with_the_service() {
    let patterns = ["default/web", "other/*"].map(str::to_owned);
    let metrics = Metrics::new(&config("nftables"), &IpFamily::ALL, &patterns).unwrap();
    let mut table = measured(&metrics, Vec::new());
    let later = metrics.started() + Duration::from_secs(2);
    let sync = |metrics: &Metrics| {
        let triggers = ["web", "api"].map(|service| trigger(service, later));
        metrics.observe_at(&synced(V4, full(), triggers.to_vec()), later);
        let families = parse(&metrics.text());
        families.get("proxyd_service_programming_duration_seconds").map_or(0, |family| {
            family.samples.iter().filter(|sample| sample.name.ends_with("_count")).count()
        })
    };
    assert_eq!(sync(&metrics), 0, "not there yet");
    let some = |it| Some(service(it, Route::Reject, Route::Reject));
    table.stage(vec![(name("web"), some("web")), (name("api"), some("api"))], None);
    assert_eq!(sync(&metrics), 1, "only what was asked for");
    table.stage(vec![(name("web"), None)], None);
    assert_eq!(sync(&metrics), 0, "late times do not bring it back");
}

#[tokio::test]
async fn s16_syncs_are_measured_whether_they_succeed_or_not() {
    let metrics = metrics();
    let answers = vec![
        Err(error()),
        Ok(full()),
        Ok(SyncReport::default()),
        Err(error()),
        Err(error()),
        Ok(full()),
    ];
    let mut table = measured(&metrics, answers);
    while table.is_pending() {
        let _scripted = table.sync().await;
    }
    let text = metrics.text();
    let count = |kind: &str| {
        let name = format!("kubeproxy_sync_{kind}proxy_rules_duration_seconds_count");
        value(&text, &name, &[F4])
    };
    assert_eq!(count(""), Some(6.0));
    // The first failed as a full one; the later pair as a partial and a full one.
    assert_eq!((count("full_"), count("partial_")), (Some(4.0), Some(2.0)));
}

#[tokio::test]
async fn s16_ports_without_local_endpoints() {
    let metrics = metrics();
    let mut table = measured(&metrics, vec![Err(error()), Ok(full()), Ok(full())]);
    let read = || {
        let text = metrics.text();
        ["internal", "external"].map(|policy| {
            let labels = [F4, ("traffic_policy", policy)];
            value(&text, "kubeproxy_sync_proxy_rules_no_local_endpoints_total", &labels)
        })
    };
    let rows = [
        ("a", Route::Drop, Route::Reject),
        ("b", Route::Reject, Route::Drop),
        ("c", Route::Drop, Route::Drop),
        ("d", Route::Reject, Route::Reject),
    ];
    let services =
        rows.map(|(it, internal, external)| (name(it), Some(service(it, internal, external))));
    table.stage(services.to_vec(), None);
    assert!(table.sync().await.is_err());
    assert_eq!(read(), [None, None], "only what is in effect");
    table.sync().await.unwrap();
    assert_eq!(read(), [Some(2.0), Some(2.0)]);
    assert_eq!(value(&metrics.text(), "proxyd_services", &[F4]), Some(4.0));
    table.stage(
        vec![(name("c"), None), (name("a"), Some(service("a", Route::Reject, Route::Reject)))],
        None,
    );
    table.sync().await.unwrap();
    assert_eq!(read(), [Some(0.0), Some(1.0)]);
    assert_eq!(value(&metrics.text(), "proxyd_services", &[F4]), Some(3.0));
}

#[test]
fn follow_ups_drift_and_findings() {
    let metrics = metrics();
    metrics.set_flows_pending(V4, true);
    metrics.set_refused_health_checks(V6, 2);
    let description = "nft flushed".to_owned();
    metrics.observe(&DriverEvent::Drift { family: V4, description, repaired_objects: 7 });
    let finding = |number: u8| Diagnostic::new("Service/default/a", "", format!("{number}"));
    let appeared = vec![finding(1), finding(2)];
    metrics.observe(&DriverEvent::Findings { appeared, resolved: vec![] });
    metrics.observe(&DriverEvent::Findings { appeared: vec![], resolved: vec![finding(1)] });
    let text = metrics.text();
    let pending =
        |family, kind| value(&text, "proxyd_follow_ups_pending", &[family, ("kind", kind)]);
    assert_eq!(pending(F4, "conntrack"), Some(1.0));
    assert_eq!(pending(F6, "conntrack"), Some(0.0));
    assert_eq!(pending(F6, "health_check"), Some(2.0));
    assert_eq!(value(&text, "proxyd_drift_repairs_total", &[F4]), Some(1.0));
    assert_eq!(value(&text, "proxyd_drift_repaired_objects_total", &[F4]), Some(7.0));
    assert_eq!(value(&text, "proxyd_drift_repairs_total", &[F6]), Some(0.0));
    assert_eq!(value(&text, "proxyd_findings", &[]), Some(1.0));
}

#[test]
fn s16_of_every_component_and_process() {
    let text = metrics().text();
    let gate = |name, stage| {
        value(&text, "kubernetes_feature_enabled", &[("name", name), ("stage", stage)])
    };
    assert_eq!(gate("ComponentFlagz", "BETA"), Some(1.0));
    assert_eq!(gate("NativeHistograms", "ALPHA"), Some(0.0));
    for name in [
        "process_cpu_seconds_total",
        "process_open_fds",
        "process_max_fds",
        "process_resident_memory_bytes",
        "process_virtual_memory_bytes",
        "process_start_time_seconds",
    ] {
        assert!(value(&text, name, &[]).is_some(), "{name}");
    }
    assert!(text.contains("proxyd_build_info{kubernetes=\"1.36\",mode=\"nftables\""));
}
