//! The server at `metricsBindAddress`: metrics, and what this process is and was told (S15).

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http_body_util::Full;
use hyper::StatusCode;
use hyper::header::ACCEPT;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::{Rfc2822, Rfc3339};

use crate::config::{self, Flags, KubeProxyConfiguration};
use crate::http::{self, Handler, Request, Response};
use crate::metrics::{KUBERNETES_RELEASE, Metrics};

/// Pause before a port that was taken is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// `text/plain; version=0.0.4` as Prometheus' own servers spell it.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";
const TEXT_TYPE: &str = "text/plain; charset=utf-8";
const JSON_TYPE: &str = "application/json";

/// The name that tools which know kube-proxy look for.
const COMPONENT: &str = "kube-proxy";

/// What the flags are that were not given, in kube-proxy's spelling.
const FLAG_DEFAULTS: &[(&str, &str)] = &[
    ("bind-address", "0.0.0.0"),
    ("bind-address-hard-fail", "false"),
    ("boot-id-file", "/proc/sys/kernel/random/boot_id"),
    ("cleanup", "false"),
    ("cluster-cidr", ""),
    ("config", ""),
    ("config-sync-period", "15m0s"),
    ("conntrack-max-per-core", "32768"),
    ("conntrack-min", "131072"),
    ("conntrack-tcp-be-liberal", "false"),
    ("conntrack-tcp-timeout-close-wait", "1h0m0s"),
    ("conntrack-tcp-timeout-established", "24h0m0s"),
    ("conntrack-udp-timeout", "0s"),
    ("conntrack-udp-timeout-stream", "0s"),
    ("detect-local-mode", "ClusterCIDR"),
    ("feature-gates", ""),
    ("healthz-bind-address", "0.0.0.0:10256"),
    ("healthz-port", "10256"),
    ("hostname-override", ""),
    ("init-only", "false"),
    ("iptables-localhost-nodeports", "true"),
    ("iptables-masquerade-bit", "14"),
    ("iptables-min-sync-period", "1s"),
    ("iptables-sync-period", "30s"),
    ("ipvs-exclude-cidrs", ""),
    ("ipvs-min-sync-period", "0s"),
    ("ipvs-scheduler", ""),
    ("ipvs-strict-arp", "false"),
    ("ipvs-sync-period", "30s"),
    ("ipvs-tcp-timeout", "0s"),
    ("ipvs-tcpfin-timeout", "0s"),
    ("ipvs-udp-timeout", "0s"),
    ("kube-api-burst", "10"),
    ("kube-api-content-type", "application/vnd.kubernetes.protobuf"),
    ("kube-api-qps", "5"),
    ("kubeconfig", ""),
    ("log-flush-frequency", "5s"),
    ("log-json-info-buffer-size", "0"),
    ("log-json-split-stream", "false"),
    ("log-text-info-buffer-size", "0"),
    ("log-text-split-stream", "false"),
    ("logging-format", "text"),
    ("machine-id-file", "/etc/machine-id,/var/lib/dbus/machine-id"),
    ("masquerade-all", "false"),
    ("master", ""),
    ("metrics-bind-address", "127.0.0.1:10249"),
    ("metrics-port", "10249"),
    ("nodeport-addresses", ""),
    ("oom-score-adj", "-999"),
    ("pod-bridge-interface", ""),
    ("pod-interface-name-prefix", ""),
    ("profiling", "false"),
    ("proxy-mode", "iptables"),
    ("show-hidden-metrics-for-version", ""),
    ("v", "0"),
    ("version", "false"),
    ("vmodule", ""),
    ("write-config-to", ""),
];

/// The value of a flag that is not given; empty for those of ours.
pub fn flag_default(name: &str) -> &'static str {
    FLAG_DEFAULTS.iter().find(|(known, _)| *known == name).map_or("", |(_, default)| default)
}

/// Every flag with its value, whether it was given or not.
pub fn all_flags(flags: &Flags) -> Vec<(String, String)> {
    let given = flags.given();
    let value = |name: &str| given.iter().find(|(known, _)| known == name).map(|it| it.1.clone());
    let command = Flags::command();
    let names = command.get_arguments().filter_map(clap::Arg::get_long);
    let mut flags: Vec<(String, String)> = names
        .map(|name| {
            let value = value(name).unwrap_or_else(|| flag_default(name).to_owned());
            (name.to_owned(), value)
        })
        .collect();
    flags.sort_unstable();
    flags
}

/// Answers the requests.
#[derive(Debug)]
pub struct StatusPages {
    metrics: Metrics,
    mode: &'static str,
    config: Value,
    flags: Vec<(String, String)>,
    has_statusz: bool,
    has_flagz: bool,
    /// How often this server's own health was asked for.
    checks: AtomicU64,
}

impl StatusPages {
    /// Pages about a process that runs with this configuration.
    pub fn new(config: &KubeProxyConfiguration, flags: &Flags, metrics: Metrics) -> Self {
        Self {
            metrics,
            mode: config.mode.as_str(),
            config: json!({
                "kubeproxy.config.k8s.io": config::config_json(config),
                "proxyd.io": config.settings.to_json(),
            }),
            flags: all_flags(flags),
            has_statusz: config.feature_gates.enabled("ComponentStatusz"),
            has_flagz: config.feature_gates.enabled("ComponentFlagz"),
            checks: AtomicU64::new(0),
        }
    }

    /// The paths that are served.
    fn paths(&self) -> Vec<&'static str> {
        let mut paths = vec![
            "/configz",
            "/healthz",
            "/healthz/ping",
            "/metrics",
            "/metrics/slis",
            "/proxyMode",
        ];
        paths.extend(self.has_flagz.then_some("/flagz"));
        paths.extend(self.has_statusz.then_some("/statusz"));
        paths.sort_unstable();
        paths
    }

    fn handler(self) -> Handler {
        Arc::new(move |request: &Request| {
            let accept = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok());
            self.answer(request.uri().path(), request.uri().query(), accept.unwrap_or_default())
        })
    }

    fn answer(&self, path: &str, query: Option<&str>, accept: &str) -> Response {
        match path {
            "/metrics" => self.metrics_page(self.metrics.text()),
            "/metrics/slis" => self.metrics_page(self.indicators()),
            "/healthz" => self.health(query),
            "/healthz/ping" => self.health(None),
            "/proxyMode" => page(StatusCode::OK, TEXT_TYPE, self.mode.to_owned()),
            "/configz" => page(StatusCode::OK, JSON_TYPE, self.config.to_string()),
            "/statusz" if self.has_statusz => {
                negotiated(accept, "Statusz", || self.status_text(), || self.status_fields())
            }
            "/flagz" if self.has_flagz => {
                negotiated(accept, "Flagz", || self.flags_text(), || self.flag_fields())
            }
            _ => http::not_found(),
        }
    }

    fn metrics_page(&self, text: String) -> Response {
        let mut response = page(StatusCode::OK, METRICS_TYPE, text);
        let started = unix_seconds(self.metrics.started());
        response.headers_mut().insert("Process-Start-Time-Unix", started.into());
        response
    }

    /// This answers, so the only check succeeds.
    fn health(&self, query: Option<&str>) -> Response {
        self.checks.fetch_add(1, Ordering::Relaxed);
        let mut parameters = query.unwrap_or_default().split('&');
        let is_verbose = parameters.any(|it| it.split('=').next() == Some("verbose"));
        let text = if is_verbose { "[+]ping ok\nhealthz check passed\n" } else { "ok" };
        page(StatusCode::OK, TEXT_TYPE, text.to_owned())
    }

    fn indicators(&self) -> String {
        let checks = self.checks.fetch_add(1, Ordering::Relaxed) + 1;
        format!(
            "# HELP kubernetes_healthcheck [STABLE] This metric records the result of a single \
             healthcheck.\n\
             # TYPE kubernetes_healthcheck gauge\n\
             kubernetes_healthcheck{{name=\"ping\",type=\"healthz\"}} 1\n\
             # HELP kubernetes_healthchecks_total [STABLE] This metric records the results of all \
             healthcheck.\n\
             # TYPE kubernetes_healthchecks_total counter\n\
             kubernetes_healthchecks_total{{name=\"ping\",status=\"success\",type=\"healthz\"}} \
             {checks}\n"
        )
    }

    // === /statusz ===

    fn uptime(&self) -> Duration {
        SystemTime::now().duration_since(self.metrics.started()).unwrap_or_default()
    }

    fn status_text(&self) -> String {
        let started = OffsetDateTime::from(self.metrics.started());
        let up = self.uptime().as_secs();
        let (hours, minutes, seconds) = (up / 3600, up / 60 % 60, up % 60);
        format!(
            "\n{COMPONENT} statusz\n{WARNING}\n\n\
             Started: {}\n\
             Up: {hours} hr {minutes:02} min {seconds:02} sec\n\
             Program: proxyd {version}\n\
             Mode: {mode}\n\
             {variants}\
             Binary version: {version}\n\
             Emulation version: {KUBERNETES_RELEASE}\n\
             Paths: {paths}\n",
            started.format(&Rfc2822).unwrap_or_default(),
            version = env!("CARGO_PKG_VERSION"),
            mode = self.mode,
            variants = self.iptables_variants(),
            paths = self.paths().join(" "),
        )
    }

    /// A line that tells which kind of iptables holds the rules; empty in other modes.
    fn iptables_variants(&self) -> String {
        let variants = self.metrics.iptables_variants();
        let variants: Vec<_> =
            variants.iter().map(|(family, variant)| format!("{family} {variant}")).collect();
        if variants.is_empty() {
            String::new()
        } else {
            format!("Variant of iptables: {}\n", variants.join(", "))
        }
    }

    fn status_fields(&self) -> Value {
        let started = OffsetDateTime::from(self.metrics.started());
        let started = started.replace_nanosecond(0).unwrap_or(started);
        json!({
            "startTime": started.format(&Rfc3339).unwrap_or_default(),
            "uptimeSeconds": self.uptime().as_secs(),
            // The field is mandatory; there is no Go here.
            "goVersion": "",
            "binaryVersion": env!("CARGO_PKG_VERSION"),
            "emulationVersion": KUBERNETES_RELEASE,
            "paths": self.paths(),
        })
    }

    // === /flagz ===

    fn flags_text(&self) -> String {
        let flags: Vec<String> =
            self.flags.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
        format!("\n{COMPONENT} flagz\n{WARNING}\n\n{}", flags.concat())
    }

    fn flag_fields(&self) -> Value {
        let flags: serde_json::Map<String, Value> =
            self.flags.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
        json!({ "flags": flags })
    }
}

/// Programs shall ask for JSON.
const WARNING: &str = "Warning: This endpoint is not meant to be machine parseable, has no \
     formatting compatibility guarantees and is for debugging purposes only.";

fn page(status: StatusCode, content_type: &str, body: String) -> Response {
    hyper::Response::builder()
        .status(status)
        .header("Content-Type", content_type)
        .header("X-Content-Type-Options", "nosniff")
        .body(Full::from(Bytes::from(body)))
        .unwrap_or_default()
}

fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// A form in which a page can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Text,
    Json(&'static str),
}

const VERSIONS: [&str; 2] = ["v1beta1", "v1alpha1"];

/// The page in the form that is asked for first.
fn negotiated(
    accept: &str,
    kind: &str,
    text: impl FnOnce() -> String,
    fields: impl FnOnce() -> Value,
) -> Response {
    match choose(accept, kind) {
        Some(Form::Text) => page(StatusCode::OK, TEXT_TYPE, text()),
        Some(Form::Json(version)) => {
            let mut object = fields();
            object["kind"] = json!(kind);
            object["apiVersion"] = json!(format!("config.k8s.io/{version}"));
            object["metadata"] = json!({ "name": COMPONENT });
            let mut response = page(StatusCode::OK, JSON_TYPE, object.to_string());
            if version != VERSIONS[0] {
                let warning = format!("299 - \"config.k8s.io/{version} {kind} is deprecated\"");
                if let Ok(warning) = warning.parse() {
                    response.headers_mut().insert("Warning", warning);
                }
            }
            response
        }
        None => {
            let json = format!("application/json;v={};g=config.k8s.io;as={kind}", VERSIONS[0]);
            let body = format!("406 not acceptable; there are: text/plain, {json}\n");
            page(StatusCode::NOT_ACCEPTABLE, TEXT_TYPE, body)
        }
    }
}

/// The first form in an `Accept` header that exists. JSON must be asked for with its version.
fn choose(accept: &str, kind: &str) -> Option<Form> {
    if accept.trim().is_empty() {
        return Some(Form::Text);
    }
    let mut ranges: Vec<(f32, Option<Form>)> =
        accept.split(',').map(|range| media_range(range, kind)).collect();
    ranges.sort_by(|a, b| b.0.total_cmp(&a.0));
    ranges.into_iter().find_map(|(quality, form)| form.filter(|_| quality > 0.0))
}

/// Quality and form of one of the ranges.
fn media_range(range: &str, kind: &str) -> (f32, Option<Form>) {
    let mut parts = range.split(';').map(str::trim);
    let media_type = parts.next().unwrap_or_default();
    let parameters: Vec<(&str, &str)> = parts.filter_map(|part| part.split_once('=')).collect();
    let parameter = |name| parameters.iter().find(|(known, _)| *known == name).map(|it| it.1);
    let quality = parameter("q").and_then(|quality| quality.parse().ok()).unwrap_or(1.0);
    let form = match media_type {
        "*/*" | "text/*" | "text/plain" => Some(Form::Text),
        "application/json"
            if parameter("g") == Some("config.k8s.io") && parameter("as") == Some(kind) =>
        {
            VERSIONS.into_iter().find(|it| parameter("v") == Some(*it)).map(Form::Json)
        }
        _ => None,
    };
    (quality, form)
}

/// Serves the pages at the address. A port that is taken is tried again, unless `hard_fail`.
pub async fn serve(
    address: SocketAddr,
    pages: StatusPages,
    hard_fail: bool,
) -> std::io::Result<()> {
    let handler = pages.handler();
    loop {
        match http::bind(address) {
            Ok(listener) => http::serve(listener, Arc::clone(&handler)).await,
            Err(error) if hard_fail => return Err(error),
            Err(error) => {
                tracing::warn!(%address, %error, "failed to listen for /metrics; trying again");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s15_negotiation() {
        let json = |version| Some(Form::Json(version));
        let check = |accept: &str, expected| {
            assert_eq!(choose(accept, "Statusz"), expected, "{accept:?}");
        };
        for accept in ["", "*/*", "text/plain", "text/*;q=0.5", "text/html, text/plain"] {
            check(accept, Some(Form::Text));
        }
        check("application/json;v=v1beta1;g=config.k8s.io;as=Statusz", json("v1beta1"));
        check("application/json; as=Statusz; v=v1alpha1; g=config.k8s.io", json("v1alpha1"));
        check(
            "text/plain;q=0.1, application/json;v=v1beta1;g=config.k8s.io;as=Statusz",
            json("v1beta1"),
        );
        for accept in [
            "application/json",
            "application/json;v=v1beta1;g=config.k8s.io;as=Flagz",
            "application/json;v=v2;g=config.k8s.io;as=Statusz",
            "application/yaml",
            "text/plain;q=0",
        ] {
            check(accept, None);
        }
    }

    #[test]
    fn every_default_belongs_to_a_flag() {
        let command = Flags::command();
        let names: Vec<&str> = command.get_arguments().filter_map(clap::Arg::get_long).collect();
        for (name, _) in FLAG_DEFAULTS {
            assert!(names.contains(name), "{name}");
        }
        let ours = ["manifests", "mode", "service-latency"];
        for name in names {
            let is_known = FLAG_DEFAULTS.iter().any(|(known, _)| *known == name);
            assert!(is_known || ours.contains(&name), "{name} has no default");
        }
    }
}
