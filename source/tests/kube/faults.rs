//! Everything that can go wrong.

use std::time::{Duration, Instant};

use proxy_core::event::{Kind, SourceEvent};
use source::kube::{KubeConnection, RestartReason};
use testbed::apiserver::{ApiServer, On, Streaming, What};

use crate::cluster::{
    LIMIT, Running, bad_service, connection, kubeconfig, server, service, slice, timing,
};

/// A source that agrees with its server and watches everything.
async fn settled(server: &ApiServer) -> Running {
    let mut running = Running::start(server);
    running.until_it_agrees(server).await;
    for resource in ["nodes", "services", "endpointslices", "servicecidrs"] {
        assert!(server.wait_for_watchers(resource, 1, LIMIT), "{resource}");
    }
    running
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_goes_wrong_ends_well_with_streaming_lists() {
    whatever_goes_wrong(Streaming::On).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_goes_wrong_ends_well_with_pages() {
    whatever_goes_wrong(Streaming::Refused).await;
}

/// Every fault happens, several times, to lists and to watches; events end equal to the objects.
async fn whatever_goes_wrong(streaming: Streaming) {
    let faults = [
        (On::Any, What::Body(b"<html>busy</html>".to_vec())),
        (On::Any, What::Body(b"{}".to_vec())),
        (On::Any, What::Body(b"{\"items\":[{]}]".to_vec())),
        (On::Any, What::CutAfter(1)),
        (On::Any, What::CutAfter(700)),
        (On::Any, What::Hang),
        (On::Any, What::Slow(100, Duration::from_millis(1))),
        (On::Any, What::status(401, "Unauthorized")),
        (On::Any, What::status(403, "Forbidden")),
        (On::Any, What::status(429, "TooManyRequests")),
        (On::Any, What::status(500, "InternalError")),
        (On::Any, What::status(503, "ServiceUnavailable")),
        (On::List, What::status(410, "Expired")),
        (On::NextPage, What::status(410, "Expired")),
        (On::NextPage, What::CutAfter(300)),
        (On::NextPage, What::status(500, "InternalError")),
        (On::StreamingList, What::status(504, "Timeout")),
        (On::Watch, What::Expired),
        (On::Watch, What::status(410, "Gone")),
    ];
    for (on, what) in faults {
        println!("{streaming:?}, {on:?}: {what:?}");
        let server = server();
        for number in 0..600 {
            server.apply(service(&format!("more-{number}"), "10.0.1.1"));
        }
        server.set_streaming(streaming);
        server.fault("", on, what.clone(), 6);
        let mut running = Running::start(&server);
        running.until_it_agrees(&server).await;
        // And once more, while it watches.
        server.fault("", on, what, 6);
        server.delete("services", "d", "svc-1");
        server.end_watches();
        server.apply(slice("slice-1", 3));
        running.until_it_agrees(&server).await;
        running
            .until("well", |running| running.metrics.is_connected() && running.findings.is_empty())
            .await;
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_vanished_during_an_outage_is_found() {
    let server = server();
    let mut running = settled(&server).await;
    server.stop();
    running.until("lost", |running| !running.metrics.is_connected()).await;
    let known = running.names(Kind::Service).len();
    server.delete("services", "d", "svc-1");
    server.delete("endpointslices", "d", "slice-1");
    server.apply(service("svc-9", "10.0.0.9"));
    server.expire_history();
    running.during(Duration::from_secs(1)).await;
    assert_eq!(running.names(Kind::Service).len(), known, "everything stays");
    assert_eq!(running.findings.len(), 1, "{:?}", running.findings);
    assert!(running.findings[0].contains("refused"), "{:?}", running.findings);
    assert!(running.findings[0].ends_with("what is known stays in force"));
    server.resume().unwrap();
    running.until_it_agrees(&server).await;
    running.until("well", |running| running.metrics.is_connected()).await;
    assert_eq!(running.findings, [""; 0]);
    assert!(running.metrics.restarts(Kind::Service, RestartReason::Unreachable) > 0);
    assert!(running.metrics.restarts(Kind::Service, RestartReason::Expired) > 0);
    assert_eq!(running.metrics.lists(Kind::Service), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_gap_in_history_nothing_is_listed_again() {
    let server = server();
    let mut running = settled(&server).await;
    server.stop();
    server.delete("services", "d", "svc-1");
    running.until("lost", |running| !running.metrics.is_connected()).await;
    server.resume().unwrap();
    running.until_it_agrees(&server).await;
    assert!(Kind::ALL.into_iter().all(|kind| running.metrics.lists(kind) == 1));
}

/// The real pauses: half a second, doubling. An outage of ten seconds costs each kind five
/// requests at most, and the first that is answered wakes the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_is_no_busy_loop_and_recovery_is_prompt() {
    let server = ApiServer::start().unwrap();
    server.fault("", On::Any, What::status(503, "ServiceUnavailable"), usize::MAX);
    let mut times = source::kube::Timing::default();
    times.longest_pause = Duration::from_secs(2);
    let mut running = Running::with(connection(&server), times);
    running.during(Duration::from_secs(6)).await;
    let requests = server.requests().len();
    // 0, 0.25, 0.75, 1.75, 2.75, 3.75, 4.75, 5.75 s at the earliest.
    assert!((12..=32).contains(&requests), "{requests}");
    server.clear_faults();
    let start = Instant::now();
    running.until_it_agrees(&server).await;
    assert!(start.elapsed() < Duration::from_secs(3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_answer_ends_the_pauses_of_all() {
    let server = server();
    server.stop();
    let mut times = timing();
    (times.first_pause, times.longest_pause) = (Duration::from_secs(4), Duration::from_secs(4));
    let mut running = Running::with(connection(&server), times);
    running.until("lost", |running| !running.findings.is_empty()).await;
    assert!(running.findings[0].ends_with("waiting"), "{:?}", running.findings);
    running.during(Duration::from_secs(1)).await;
    let connections = server.accepted();
    server.resume().unwrap();
    running.until_it_agrees(&server).await;
    running.during(Duration::from_millis(50)).await;
    let requests = server.requests();
    let first = requests.first().unwrap().at;
    assert!(requests.iter().all(|request| request.at - first < Duration::from_millis(800)));
    assert!(server.accepted() - connections <= 6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_ends_every_watch_at_once_is_not_pestered() {
    let server = server();
    server.set_streaming(Streaming::Refused);
    server.fault("services", On::Watch, What::Body(Vec::new()), usize::MAX);
    server.fault("endpointslices", On::Watch, What::Expired, usize::MAX);
    let mut running = Running::start(&server);
    running.until_it_agrees(&server).await;
    let before = server.requests().len();
    running.during(Duration::from_secs(2)).await;
    // Pauses of 100 to 200 ms; a list and a watch after each for the one that expires.
    let requests = server.requests().len() - before;
    assert!((10..=64).contains(&requests), "{requests}");
    assert!(!running.findings.is_empty());
    let told = running.history.iter().filter(|event| matches!(event, SourceEvent::Findings(_)));
    assert!(told.count() <= 4, "findings do not flicker");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_objects_are_named_and_the_others_go_on() {
    for streaming in [Streaming::On, Streaming::Refused] {
        let server = server();
        server.set_streaming(streaming);
        server.apply(bad_service("bad-1"));
        let mut running = settled(&server).await;
        running.until("named", |running| !running.findings.is_empty()).await;
        let expected = "Service/d/bad-1: spec.ports: cannot be read, skipped: invalid type";
        assert!(running.findings[0].starts_with(expected), "{:?}", running.findings);
        assert_eq!(running.metrics.undecodable(Kind::Service), 1);
        assert_eq!(running.names(Kind::Service).len(), 5);
        // One that was good stays as it was.
        server.apply(bad_service("svc-1"));
        server.apply(service("svc-6", "10.0.0.6"));
        running.until("named", |running| running.findings.len() == 2).await;
        running.until("on", |running| running.names(Kind::Service).len() == 6).await;
        server.apply(service("svc-1", "10.0.0.1"));
        server.delete("services", "d", "bad-1");
        running.until("good", |running| running.findings.is_empty()).await;
        running.until_it_agrees(&server).await;
        assert!(running.metrics.is_connected());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_read_in_a_relist_stays_as_it_was() {
    for streaming in [Streaming::On, Streaming::Refused] {
        let server = server();
        server.set_streaming(streaming);
        let mut running = settled(&server).await;
        let before = running.names(Kind::Service).len();
        server.apply(bad_service("svc-1"));
        running.until("named", |running| running.findings.len() == 1).await;
        let lists = running.metrics.lists(Kind::Service);
        server.expire_history();
        running.until("a relist", |it| it.metrics.lists(Kind::Service) > lists).await;
        running.until("named", |running| running.findings.len() == 1).await;
        assert_eq!(running.names(Kind::Service).len(), before);
        // Gone is gone, readable or not.
        let lists = running.metrics.lists(Kind::Service);
        server.delete("services", "d", "svc-1");
        server.expire_history();
        running.until("another", |it| it.metrics.lists(Kind::Service) > lists).await;
        running.until("gone", |it| it.names(Kind::Service).len() == before - 1).await;
        running.until("good", |running| running.findings.is_empty()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rotated_token_is_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let server = server();
    server.set_token("one");
    std::fs::write(dir.path().join("token"), "one").unwrap();
    let settings = KubeConnection {
        kubeconfig: Some(kubeconfig(&server, dir.path())),
        master: None,
        ..connection(&server)
    };
    let mut running = Running::with(settings, timing());
    running.until_it_agrees(&server).await;
    server.set_token("two");
    server.end_watches();
    server.delete("services", "d", "svc-1");
    running.until("refused", |running| !running.findings.is_empty()).await;
    assert!(running.findings[0].contains("401"), "{:?}", running.findings);
    let refused = server.requests().len();
    running.during(Duration::from_millis(500)).await;
    assert!(server.requests().len() - refused < 40);
    std::fs::write(dir.path().join("token"), "two\n").unwrap();
    running.until_it_agrees(&server).await;
    running.until("well", |running| running.findings.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_left_alone_as_long_as_it_asks() {
    let server = server();
    let what = What::Status {
        code: 429,
        reason: "TooManyRequests",
        message: "slow down",
        retry_after: Some(1),
    };
    server.fault("services", On::Any, what, 1);
    let mut running = Running::start(&server);
    running.until_it_agrees(&server).await;
    let times: Vec<_> = server
        .requests()
        .into_iter()
        .filter(|request| request.resource() == "services")
        .map(|request| request.at)
        .collect();
    assert!(times[1] - times[0] >= Duration::from_secs(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_falls_silent_is_begun_anew() {
    let server = server();
    let mut running = settled(&server).await;
    server.send_bookmarks();
    running
        .until("begun anew", |running| {
            running.metrics.restarts(Kind::Service, RestartReason::Silent) > 0
        })
        .await;
    server.delete("services", "d", "svc-1");
    running.until_it_agrees(&server).await;
    assert_eq!(running.metrics.lists(Kind::Service), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_receiver_ends_the_source_even_during_an_outage() {
    let server = server();
    server.stop();
    let mut running = Running::start(&server);
    running.until("lost", |running| !running.findings.is_empty()).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_that_fails_is_told_of_without_what_it_printed() {
    let dir = tempfile::tempdir().unwrap();
    let server = server();
    server.set_token("secret");
    let plugin = |text: &str| {
        let path = dir.path().join("plugin");
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let plugin_path = plugin("echo secret; echo no luck >&2; exit 3");
    let path = dir.path().join("kubeconfig");
    let text = format!(
        "{{current-context: c, contexts: [{{name: c, context: {{cluster: c, user: u}}}}],\n\
         clusters: [{{name: c, cluster: {{server: '{}'}}}}],\n\
         users: [{{name: u, user: {{exec: {{apiVersion: client.authentication.k8s.io/v1,\n\
         command: sh, args: ['{plugin_path}'], interactiveMode: Never}}}}}}]}}\n",
        server.url()
    );
    std::fs::write(&path, text).unwrap();
    let settings = KubeConnection { kubeconfig: Some(path), master: None, ..connection(&server) };
    let mut running = Running::with(settings, timing());
    running.until("told", |running| !running.findings.is_empty()).await;
    let finding = running.findings[0].clone();
    assert!(finding.contains("exit status: 3: no luck"), "{finding}");
    assert!(!finding.contains("secret"), "{finding}");
    plugin(
        "echo '{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\
         \"status\":{\"token\":\"secret\"}}'",
    );
    running.until_it_agrees(&server).await;
}
