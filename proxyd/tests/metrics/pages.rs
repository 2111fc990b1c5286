//! The status server (S15) and health (S14), over real connections.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use proxy_core::address::IpFamily;
use proxyd::config::{Flags, KubeProxyConfiguration, load};
use proxyd::healthz::{self, SharedHealth};
use proxyd::metrics::Metrics;
use proxyd::status::{self, StatusPages};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::exposition::{parse, value};

/// An answer as a client sees it.
#[derive(Debug)]
struct Answer {
    status: u16,
    headers: BTreeMap<String, String>,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        assert_eq!(self.headers["content-type"], "application/json");
        serde_json::from_str(&self.body).unwrap()
    }
}

/// A port that was free a moment ago.
fn free_address() -> SocketAddr {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.local_addr().unwrap()
}

async fn connect(address: SocketAddr) -> TcpStream {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    loop {
        match TcpStream::connect(address).await {
            Ok(stream) => return stream,
            Err(error) => assert!(tokio::time::Instant::now() < deadline, "{error}"),
        }
        tokio::task::yield_now().await;
    }
}

async fn get(address: SocketAddr, path: &str, accept: &str) -> Answer {
    let mut stream = connect(address).await;
    let accept = if accept.is_empty() { String::new() } else { format!("Accept: {accept}\r\n") };
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n{accept}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    Answer { status, headers, body: body.to_owned() }
}

struct World {
    address: SocketAddr,
    metrics: Metrics,
}

fn loaded(flags: &[&str]) -> (Flags, KubeProxyConfiguration) {
    let flags = Flags::parse([&["--proxy-mode=nftables"], flags].concat()).unwrap();
    let config = load(&flags, &|_| Ok(String::new())).unwrap().config;
    (flags, config)
}

/// A server of a process with these flags, in a task of this test's runtime.
fn serve(flags: &[&str]) -> World {
    let (flags, config) = loaded(flags);
    let metrics = Metrics::new(&config, &IpFamily::ALL, &[]).unwrap();
    let pages = StatusPages::new(&config, &flags, metrics.clone());
    let address = free_address();
    tokio::spawn(status::serve(address, pages, true));
    World { address, metrics }
}

#[tokio::test]
async fn s15_metrics() {
    let world = serve(&[]);
    let answer = get(world.address, "/metrics", "application/openmetrics-text").await;
    assert_eq!(answer.status, 200);
    assert_eq!(
        answer.headers["content-type"],
        "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"
    );
    let started: u64 = answer.headers["process-start-time-unix"].parse().unwrap();
    let age = world.metrics.started().elapsed().unwrap();
    assert!(started > 1_700_000_000 && age < Duration::from_secs(60));
    assert!(parse(&answer.body).contains_key("process_cpu_seconds_total"));
    let slis = get(world.address, "/metrics/slis", "").await;
    assert!(slis.headers.contains_key("process-start-time-unix"));
    let ping = [("name", "ping"), ("type", "healthz")];
    assert_eq!(value(&slis.body, "kubernetes_healthcheck", &ping), Some(1.0));
    let success = [ping[0], ("status", "success"), ping[1]];
    assert_eq!(value(&slis.body, "kubernetes_healthchecks_total", &success), Some(1.0));
}

#[tokio::test]
async fn s15_plain_pages() {
    let world = serve(&[]);
    for (path, status, body) in [
        ("/healthz", 200, "ok"),
        ("/healthz/ping", 200, "ok"),
        ("/healthz?verbose", 200, "[+]ping ok\nhealthz check passed\n"),
        ("/healthz?verbose=1", 200, "[+]ping ok\nhealthz check passed\n"),
        ("/proxyMode", 200, "nftables"),
        ("/", 404, "404 page not found\n"),
        ("/livez", 404, "404 page not found\n"),
        ("/metrics/", 404, "404 page not found\n"),
        ("/debug/pprof/", 404, "404 page not found\n"),
    ] {
        let answer = get(world.address, path, "").await;
        assert_eq!((answer.status, answer.body.as_str()), (status, body), "{path}");
    }
    let mode = get(world.address, "/proxyMode", "").await;
    assert_eq!(mode.headers["content-type"], "text/plain; charset=utf-8");
    assert_eq!(mode.headers["x-content-type-options"], "nosniff");
}

#[tokio::test]
async fn s15_configz() {
    let world = serve(&["--conntrack-min=7"]);
    let page = get(world.address, "/configz", "").await.json();
    let config = &page["kubeproxy.config.k8s.io"];
    assert_eq!(config["kind"], "KubeProxyConfiguration");
    assert_eq!(config["apiVersion"], "kubeproxy.config.k8s.io/v1alpha1");
    assert_eq!(config["conntrack"]["min"], 7);
    assert_eq!(config["nodePortAddresses"][0], "primary", "as it was written");
    assert_eq!(page["proxyd.io"]["configChange"], "Report");
}

#[tokio::test]
async fn s15_statusz() {
    let world = serve(&[]);
    let text = get(world.address, "/statusz", "").await;
    assert!(text.body.starts_with("\nkube-proxy statusz\nWarning: "), "{}", text.body);
    assert!(text.body.contains("\nMode: nftables\n"));
    let json = "application/json;v=v1beta1;g=config.k8s.io;as=Statusz";
    let answer = get(world.address, "/statusz", json).await;
    assert!(!answer.headers.contains_key("warning"));
    let page = answer.json();
    assert_eq!(
        (&page["kind"], &page["metadata"]["name"]),
        (&"Statusz".into(), &"kube-proxy".into())
    );
    assert_eq!(page["apiVersion"], "config.k8s.io/v1beta1");
    for field in ["startTime", "goVersion", "binaryVersion", "emulationVersion"] {
        assert!(page[field].is_string(), "{field}");
    }
    assert!(page["uptimeSeconds"].is_u64());
    for path in page["paths"].as_array().unwrap() {
        assert_eq!(get(world.address, path.as_str().unwrap(), "").await.status, 200, "{path}");
    }
    let old = get(world.address, "/statusz", &json.replace("beta", "alpha")).await;
    assert!(old.headers["warning"].contains("deprecated"));
    assert_eq!(get(world.address, "/statusz", "application/json").await.status, 406);
}

#[tokio::test]
async fn s15_flagz() {
    let world = serve(&["--conntrack-min=7", "--feature-gates=AllBeta=false,ComponentFlagz=true"]);
    let json = "application/json;v=v1beta1;g=config.k8s.io;as=Flagz";
    let page = get(world.address, "/flagz", json).await.json();
    assert_eq!(page["flags"]["conntrack-min"], "7");
    assert_eq!(page["flags"]["oom-score-adj"], "-999", "not given");
    assert_eq!(page["flags"]["feature-gates"], "AllBeta=false,ComponentFlagz=true");
    let text = get(world.address, "/flagz", "text/plain").await.body;
    assert!(text.contains("\nproxy-mode=nftables\n"), "{text}");
    assert_eq!(get(world.address, "/statusz", "").await.status, 404, "its gate is off");
}

#[tokio::test]
async fn s15_a_port_that_is_taken_is_an_error_if_so_configured() {
    let taken = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (flags, config) = loaded(&[]);
    let metrics = Metrics::new(&config, &IpFamily::ALL, &[]).unwrap();
    let pages = StatusPages::new(&config, &flags, metrics);
    let served = status::serve(taken.local_addr().unwrap(), pages, true).await;
    assert_eq!(served.unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
}

#[tokio::test]
async fn s16_answers_about_health_are_counted_by_code() {
    let world = serve(&[]);
    let health = SharedHealth::new(Duration::from_secs(60));
    let address = free_address();
    tokio::spawn(healthz::serve(address, health.clone(), world.metrics.clone(), true));
    assert_eq!(get(address, "/healthz", "").await.status, 503);
    health.set_node_eligible(true);
    for path in ["/healthz", "/healthz", "/livez", "/other"] {
        get(address, path, "").await;
    }
    let text = get(world.address, "/metrics", "").await.body;
    let count = |name: &str, code| {
        value(&text, &format!("kubeproxy_proxy_{name}_total"), &[("code", code)])
    };
    assert_eq!((count("healthz", "200"), count("healthz", "503")), (Some(2.0), Some(1.0)));
    assert_eq!((count("livez", "200"), count("livez", "503")), (Some(1.0), None));
}
