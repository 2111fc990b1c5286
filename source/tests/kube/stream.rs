//! The ordinary course of things.

use std::collections::BTreeSet;
use std::time::Duration;

use proxy_core::event::{Kind, SourceEvent};
use serde_json::json;
use testbed::apiserver::{ApiServer, On, Streaming, What};

use crate::cluster::{LIMIT, Running, connection, server, service, slice, timing};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_lists_then_changes() {
    for streaming in [Streaming::On, Streaming::Refused, Streaming::NoProgress, Streaming::Ignored]
    {
        let server = server();
        server.set_streaming(streaming);
        let mut running = Running::start(&server);
        running.until_it_agrees(&server).await;
        running.until("connected", |running| running.metrics.is_connected()).await;
        assert_eq!(running.findings, [""; 0], "{streaming:?}");
        server.apply(service("svc-1", "10.0.0.77"));
        server.apply(service("svc-new", "10.0.0.78"));
        server.delete("services", "d", "svc-2");
        server.delete("endpointslices", "d", "slice-2");
        running.until_it_agrees(&server).await;
        assert_eq!(running.names(Kind::Node), ["node-1"]);
        running.stop().await;
        assert!(server.wait_for_watchers("services", 0, LIMIT), "the source has gone");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_those_of_kube_proxy() {
    let server = server();
    server.set_streaming(Streaming::Refused);
    let mut running = Running::start(&server);
    running.until_it_agrees(&server).await;
    for resource in ["nodes", "services", "endpointslices", "servicecidrs"] {
        assert!(server.wait_for_watchers(resource, 1, LIMIT));
    }
    let requests = server.requests();
    let selectors: BTreeSet<_> = requests
        .iter()
        .map(|request| {
            let [labels, fields] =
                ["labelSelector", "fieldSelector"].map(|name| request.parameter(name));
            (&*request.path, labels, fields)
        })
        .collect();
    let expected = [
        ("/api/v1/nodes", "", "metadata.name=node-1"),
        ("/api/v1/services", "!service.kubernetes.io/service-proxy-name", "spec.clusterIP!=None"),
        ("/apis/discovery.k8s.io/v1/endpointslices", "!service.kubernetes.io/headless", ""),
        ("/apis/networking.k8s.io/v1/servicecidrs", "", ""),
    ];
    assert_eq!(selectors, BTreeSet::from(expected));
    assert_eq!(requests.len(), 12, "a streaming list, a list and a watch of each kind");
    assert!(requests.iter().all(|request| request.headers["user-agent"] == "proxyd/test"));
    let lists: Vec<_> = requests.iter().filter(|request| !request.is_watch()).collect();
    assert!(lists.iter().all(|list| list.parameter("limit") == "500"));
    assert!(lists.iter().all(|list| list.parameter("resourceVersion") == "0"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_proxied_is_not_sent() {
    let server = server();
    let mut running = Running::start(&server);
    running.until_it_agrees(&server).await;
    let mut labelled = service("svc-1", "10.0.0.1");
    labelled["metadata"]["labels"] = json!({"service.kubernetes.io/service-proxy-name": ""});
    server.apply(labelled);
    server.apply(service("svc-2", "None"));
    let mut headless = slice("slice-1", 1);
    headless["metadata"]["labels"] = json!({"service.kubernetes.io/headless": ""});
    server.apply(headless);
    running
        .until("gone", |running| {
            running.names(Kind::Service) == ["svc-3", "svc-4", "svc-5"]
                && running.names(Kind::EndpointSlice).len() == 4
        })
        .await;
    server.apply(service("svc-1", "10.0.0.1"));
    running.until("back", |running| running.names(Kind::Service).contains(&"svc-1")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_is_done_after_its_last_object_and_not_before() {
    for streaming in [Streaming::On, Streaming::Refused] {
        let server = ApiServer::start().unwrap();
        server.set_streaming(streaming);
        for number in 0..1200 {
            server.apply(service(&format!("svc-{number}"), "10.0.0.1"));
        }
        // Half of it arrives; the rest takes its time. A streaming list comes line by line.
        let pause = Duration::from_millis(if streaming == Streaming::On { 1 } else { 30 });
        server.fault("services", On::Any, What::Slow(50_000, pause), 9);
        let mut running = Running::start(&server);
        running.until_it_agrees(&server).await;
        let of_services: Vec<_> = running
            .history
            .iter()
            .filter(|event| match event {
                SourceEvent::Applied(object) => object.kind() == Kind::Service,
                SourceEvent::ListDone(kind) => *kind == Kind::Service,
                _ => false,
            })
            .collect();
        let done = SourceEvent::ListDone(Kind::Service);
        let place = of_services.iter().position(|event| **event == done);
        assert_eq!((place, of_services.len()), (Some(1200), 1201), "{streaming:?}");
        assert_eq!(running.metrics.lists(Kind::Service), 1);
        let pages = server
            .requests()
            .into_iter()
            .filter(|request| request.resource() == "services" && !request.is_watch());
        assert_eq!(pages.count(), if streaming == Streaming::On { 0 } else { 3 });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_server_has_no_service_ranges_and_that_is_no_error() {
    let server = server();
    server.set_absent("servicecidrs", true);
    let mut running = Running::start(&server);
    running
        .until("listed", |running| {
            running.history.contains(&SourceEvent::ListDone(Kind::ServiceCidr))
                && running.names(Kind::EndpointSlice).len() == 5
        })
        .await;
    running.until("connected", |running| running.metrics.is_connected()).await;
    assert_eq!(running.findings, [""; 0]);
    server.set_absent("servicecidrs", false);
    running.until_it_agrees(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_burst_is_not_exceeded() {
    let server = server();
    server.set_streaming(Streaming::Refused);
    let mut settings = connection(&server);
    (settings.qps, settings.burst) = (20.0, 4);
    let mut running = Running::with(settings, timing());
    running.until_it_agrees(&server).await;
    assert!(server.wait_for_watchers("endpointslices", 1, LIMIT));
    let times: Vec<_> = server.requests().iter().map(|request| request.at).collect();
    assert!(times.len() >= 9);
    // The burst, then one in 50 ms. The first may be late as well.
    assert!(times[8] - times[0] >= Duration::from_millis(100), "{times:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bookmarks_move_a_watch_on() {
    let server = server();
    let mut running = Running::start(&server);
    running.until_it_agrees(&server).await;
    assert!(server.wait_for_watchers("servicecidrs", 1, LIMIT));
    server.apply(service("svc-9", "10.0.0.9"));
    server.send_bookmarks();
    running.during(Duration::from_millis(200)).await;
    server.end_watches();
    let version = |resource: &str| {
        let requests = server.requests();
        let last = requests.iter().rev().find(|request| request.resource() == resource);
        last.map(|request| request.parameter("resourceVersion").to_owned())
    };
    running
        .until("watching from the bookmark", |_| version("servicecidrs").as_deref() == Some("14"))
        .await;
    assert_eq!(running.metrics.lists(Kind::ServiceCidr), 1);
}
