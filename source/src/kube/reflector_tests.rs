use super::*;
use proxy_core::event::{Object, ObjectRef};
use serde_json::{Value, json};

const STEADY: Duration = Duration::from_secs(30);

fn reflector() -> Reflector {
    Reflector::new(Kind::Service, "n1")
}

fn service(name: &str, version: u32) -> Value {
    json!({"metadata": {"name": name, "namespace": "d", "resourceVersion": version.to_string()}})
}

fn garbage(name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "d", "resourceVersion": "9"}, "spec": 5})
}

fn line(reflector: &mut Reflector, change: &str, object: &Value) -> Option<String> {
    let text = json!({"type": change, "object": object}).to_string();
    reflector.line(text.as_bytes()).unwrap().map(|event| told(&event))
}

fn told(event: &SourceEvent) -> String {
    match event {
        SourceEvent::ListStarted(_) => "start".to_owned(),
        SourceEvent::ListDone(_) => "done".to_owned(),
        SourceEvent::Applied(object) => format!("+{}", object.reference().name),
        SourceEvent::Deleted(reference) => format!("-{}", reference.name),
        SourceEvent::Findings(_) => "findings".to_owned(),
        SourceEvent::Unreadable(reference) => format!("?{}", reference.name),
    }
}

fn page(version: &str, next: &str) -> Vec<u8> {
    let metadata = json!({"resourceVersion": version, "continue": next});
    json!({"kind": "ServiceList", "metadata": metadata, "items": []}).to_string().into_bytes()
}

fn end(version: u32) -> Value {
    json!({"metadata": {
        "resourceVersion": version.to_string(),
        "annotations": {"k8s.io/initial-events-end": "true"}
    }})
}

fn refused(code: u16, reason: &str) -> Fault {
    Fault::Refused(Status { code, reason: reason.to_owned(), ..Status::default() })
}

/// Listed by pages, watching from this version.
fn watching(version: &str) -> Reflector {
    let mut reflector = reflector();
    reflector.failed(&refused(422, "Invalid"), Duration::ZERO, STEADY);
    reflector.answered();
    reflector.page_done(&page(version, "")).unwrap();
    assert_eq!(reflector.mode(), Mode::Watch);
    reflector
}

/// The query without what never changes.
fn query(reflector: &Reflector) -> String {
    let url = reflector.url(Duration::from_secs(7));
    url.strip_prefix(&reflector.path).unwrap().to_owned()
}

const WATCH: &str = "watch=true&allowWatchBookmarks=true&timeoutSeconds=7";

#[test]
fn selectors_are_those_of_kube_proxy() {
    let paths = Kind::ALL.map(|kind| path(kind, "n 1"));
    let expected = [
        "/api/v1/services?labelSelector=%21service.kubernetes.io%2Fservice-proxy-name\
         &fieldSelector=spec.clusterIP%21%3DNone&",
        "/apis/discovery.k8s.io/v1/endpointslices\
         ?labelSelector=%21service.kubernetes.io%2Fheadless&",
        "/api/v1/nodes?fieldSelector=metadata.name%3Dn%201&",
        "/apis/networking.k8s.io/v1/servicecidrs?",
    ];
    assert_eq!(paths, expected);
}

#[test]
fn a_streaming_list_becomes_a_watch() {
    let mut reflector = reflector();
    assert_eq!(reflector.mode(), Mode::Stream);
    let streaming = "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=";
    assert_eq!(query(&reflector), format!("{WATCH}{streaming}"));
    assert_eq!(reflector.answered(), Some(SourceEvent::ListStarted(Kind::Service)));
    assert_eq!(line(&mut reflector, "ADDED", &service("a", 3)).as_deref(), Some("+a"));
    assert_eq!(line(&mut reflector, "BOOKMARK", &service("", 4)), None);
    assert!(reflector.is_listing() && !reflector.is_listed());
    assert_eq!(line(&mut reflector, "BOOKMARK", &end(5)).as_deref(), Some("done"));
    assert!(!reflector.is_listing() && reflector.is_listed());
    assert_eq!(line(&mut reflector, "MODIFIED", &service("a", 8)).as_deref(), Some("+a"));
    assert_eq!(line(&mut reflector, "DELETED", &service("a", 9)).as_deref(), Some("-a"));
    assert_eq!(query(&reflector), format!("{WATCH}&resourceVersion=9"));
    assert!(!reflector.hears_bookmarks());
    assert_eq!(line(&mut reflector, "BOOKMARK", &service("", 12)), None);
    assert!(reflector.hears_bookmarks());
    assert_eq!(query(&reflector), format!("{WATCH}&resourceVersion=12"));
    assert_eq!(reflector.answered(), None);
}

#[test]
fn servers_without_streaming_lists_are_asked_for_pages_at_once() {
    let no_progress =
        Fault::Refused(Status::of_answer(500, None, b"RequestWatchProgress is disabled"));
    let faults = [no_progress, refused(422, "Invalid"), refused(400, ""), Fault::Ended];
    for fault in faults.into_iter().chain([Fault::Silent(STEADY)]) {
        let mut reflector = reflector();
        reflector.answered();
        let verdict = reflector.failed(&fault, Duration::ZERO, STEADY);
        assert_eq!((verdict.pause, verdict.trouble), (Pause::None, None), "{fault}");
        assert_eq!(query(&reflector), "limit=500&resourceVersion=0");
    }
    for fault in [refused(429, ""), refused(401, ""), Fault::Cut(String::new())] {
        let mut reflector = reflector();
        let verdict = reflector.failed(&fault, Duration::ZERO, STEADY);
        assert_eq!(verdict.pause, Pause::Backoff(0, Duration::ZERO));
        assert!(verdict.trouble.is_some());
        assert_eq!(reflector.mode(), Mode::Stream, "{fault}");
    }
}

#[test]
fn pages_make_one_list() {
    let mut reflector = reflector();
    reflector.failed(&refused(422, "Invalid"), Duration::ZERO, STEADY);
    assert!(reflector.answered().is_some());
    assert_eq!(reflector.page_done(&page("", "a/b=")), Ok(None));
    assert_eq!(query(&reflector), "limit=500&continue=a%2Fb%3D");
    assert_eq!(reflector.answered(), None);
    // A page that is lost is asked for again; what came before stands.
    let verdict = reflector.failed(&Fault::Cut(String::new()), Duration::ZERO, STEADY);
    assert!(verdict.trouble.is_some());
    assert_eq!(query(&reflector), "limit=500&continue=a%2Fb%3D");
    let done = reflector.page_done(&page("7", "")).unwrap();
    assert_eq!(done, Some(SourceEvent::ListDone(Kind::Service)));
    assert_eq!(query(&reflector), format!("{WATCH}&resourceVersion=7"));
}

#[test]
fn a_mark_that_is_too_old_begins_the_list_again() {
    let mut reflector = reflector();
    reflector.failed(&refused(422, "Invalid"), Duration::ZERO, STEADY);
    reflector.answered();
    reflector.page_done(&page("", "next")).unwrap();
    reflector.failed(&refused(410, "Expired"), Duration::ZERO, STEADY);
    assert_eq!(query(&reflector), "limit=500");
    assert!(reflector.answered().is_some());
}

#[test]
fn what_is_no_list_ends_no_list() {
    let mut reflector = reflector();
    let answers = [
        "{}",
        "[]",
        r#"{"kind":"Status","metadata":{"resourceVersion":"1"},"items":[]}"#,
        r#"{"kind":"NodeList","metadata":{"resourceVersion":"1"},"items":[]}"#,
        r#"{"metadata":{},"items":[]}"#,
        r#"{"metadata":{"resourceVersion":""},"items":[]}"#,
        r#"{"metadata":{"resourceVersion":"1"},"items":5}"#,
    ];
    for answer in answers {
        assert!(
            matches!(reflector.page_done(answer.as_bytes()), Err(Fault::Garbage(_))),
            "{answer}"
        );
        assert!(reflector.is_listing());
    }
}

#[test]
fn a_version_that_is_too_old_leads_to_a_list_not_older_than_it() {
    let mut reflector = watching("7");
    let verdict = reflector.failed(&refused(410, "Expired"), Duration::ZERO, STEADY);
    assert_eq!(verdict.trouble, None);
    let newer = "resourceVersionMatch=NotOlderThan&resourceVersion=7";
    assert_eq!(query(&reflector), newer);
    // A server that cannot do that is asked for whatever it has.
    let too_new = Status { message: "Too large resource version: 7".into(), ..Status::default() };
    reflector.failed(&Fault::Refused(too_new), Duration::ZERO, STEADY);
    assert_eq!(query(&reflector), "limit=500");
    reflector.page_done(&page("3", "")).unwrap();
    assert_eq!(query(&reflector), format!("{WATCH}&resourceVersion=3"));
}

#[test]
fn expiry_inside_a_watch_is_understood() {
    let mut reflector = watching("7");
    let text = json!({"type": "ERROR", "object": {"code": 410, "reason": "Expired"}}).to_string();
    let fault = reflector.line(text.as_bytes()).unwrap_err();
    assert!(fault.is_expiry());
    reflector.failed(&fault, STEADY, STEADY);
    assert!(reflector.is_listing());
}

#[test]
fn cut_watches_go_on_where_they_were() {
    let mut reflector = watching("7");
    line(&mut reflector, "ADDED", &service("a", 9));
    let verdict = reflector.failed(&Fault::Cut("x".into()), STEADY, STEADY);
    assert_eq!(verdict.trouble, None);
    assert_eq!(verdict.pause, Pause::Backoff(0, Duration::ZERO));
    assert_eq!(query(&reflector), format!("{WATCH}&resourceVersion=9"));
}

#[test]
fn only_a_watch_that_lasted_is_followed_at_once() {
    let mut reflector = watching("7");
    let at_once = reflector.failed(&Fault::Ended, STEADY, STEADY);
    assert_eq!((at_once.pause, at_once.trouble), (Pause::None, None));
    for failures in 0..9 {
        let verdict = reflector.failed(&Fault::Ended, Duration::from_millis(1), STEADY);
        assert_eq!(verdict.pause, Pause::Backoff(failures, Duration::ZERO));
        assert_eq!(verdict.trouble.is_some(), failures + 1 >= FUTILE);
    }
    // Progress makes the next pause short, though not the shortest.
    line(&mut reflector, "BOOKMARK", &service("", 8));
    let verdict = reflector.failed(&Fault::Ended, Duration::ZERO, STEADY);
    assert_eq!(verdict.pause, Pause::Backoff(PROGRESS, Duration::ZERO));
    assert!(!reflector.is_listing());
}

#[test]
fn refusals_of_a_watch_are_told_and_lead_to_a_list_in_the_end() {
    let mut reflector = watching("7");
    for _ in 1..HOPELESS {
        let verdict = reflector.failed(&refused(500, "InternalError"), Duration::ZERO, STEADY);
        assert!(verdict.trouble.is_some() && !reflector.is_listing());
    }
    reflector.failed(&refused(500, "InternalError"), Duration::ZERO, STEADY);
    assert_eq!(query(&reflector), "limit=500");
    // Being locked out, told to wait or without a network is no reason to list.
    let faults = [refused(401, ""), refused(403, ""), refused(429, ""), refused(503, "")];
    for fault in faults.into_iter().chain([Fault::Unreachable("x".into())]) {
        let mut reflector = watching("7");
        let verdicts: Vec<_> =
            (0..50).map(|_| reflector.failed(&fault, Duration::ZERO, STEADY)).collect();
        assert!(verdicts.iter().all(|verdict| verdict.trouble.is_some()));
        assert_eq!(query(&reflector), format!("{WATCH}&resourceVersion=7"), "{fault}");
    }
}

#[test]
fn servers_say_how_long_to_wait() {
    let mut reflector = watching("7");
    let fault = Fault::Refused(Status::of_answer(429, Some(4), b"{}"));
    let verdict = reflector.failed(&fault, Duration::ZERO, STEADY);
    assert_eq!(verdict.pause, Pause::Backoff(0, Duration::from_secs(4)));
    let fault = Fault::Refused(Status::of_answer(429, Some(4_000_000), b"{}"));
    assert_eq!(fault.retry_after(), Some(Duration::from_secs(60)));
}

#[test]
fn a_kind_that_need_not_exist_is_an_empty_list() {
    let missing = refused(404, "NotFound");
    let mut reflector = Reflector::new(Kind::ServiceCidr, "n1");
    let verdict = reflector.failed(&missing, Duration::ZERO, STEADY);
    let events: Vec<_> = verdict.events.iter().map(told).collect();
    assert_eq!(events, ["start", "done"]);
    assert_eq!((verdict.pause, verdict.trouble), (Pause::Long, None));
    assert!(reflector.is_listed());
    assert!(reflector.url(STEADY).contains("sendInitialEvents"), "and asked for again");
    let verdict = watching("7").failed(&missing, Duration::ZERO, STEADY);
    assert!(verdict.trouble.is_some() && verdict.events.is_empty());
}

#[test]
fn bad_objects_are_skipped_and_named_until_they_are_good_or_gone() {
    let mut reflector = watching("7");
    let names = |reflector: &Reflector| -> Vec<_> {
        reflector.findings().into_iter().map(|finding| finding.object).collect()
    };
    assert_eq!(line(&mut reflector, "ADDED", &garbage("a")), None);
    assert_eq!(line(&mut reflector, "MODIFIED", &garbage("b")), None);
    assert_eq!(names(&reflector), ["Service/d/a", "Service/d/b"]);
    assert_eq!(query(&reflector), format!("{WATCH}&resourceVersion=9"), "its version counts");
    line(&mut reflector, "MODIFIED", &service("a", 10));
    assert_eq!(line(&mut reflector, "DELETED", &garbage("b")).as_deref(), Some("-b"));
    assert_eq!(names(&reflector), [""; 0]);
    line(&mut reflector, "ADDED", &garbage("c"));
    reflector.failed(&refused(410, ""), STEADY, STEADY);
    reflector.answered();
    let listed = reflector.item(garbage("d").to_string().as_bytes());
    assert!(matches!(listed, Some(SourceEvent::Unreadable(_))), "{listed:?}");
    assert_eq!(names(&reflector), ["Service/d/c"], "until the list is complete");
    reflector.page_done(&page("20", "")).unwrap();
    assert_eq!(names(&reflector), ["Service/d/d"]);
    assert_eq!(reflector.undecodable(), 4);
}

#[test]
fn findings_about_objects_are_limited() {
    let mut reflector = reflector();
    reflector.answered();
    for number in 0..200 {
        reflector.item(garbage(&number.to_string()).to_string().as_bytes());
    }
    line(&mut reflector, "BOOKMARK", &end(5));
    let findings = reflector.findings();
    assert_eq!(findings.len(), NAMED + 1);
    assert!(findings[NAMED].message.starts_with("150 or more others"));
}

#[test]
fn lines_that_make_no_sense_end_a_watch() {
    let mut reflector = watching("7");
    for text in ["{", "5", r#"{"type":"X","object":{}}"#, r#"{"type":"ADDED"}"#] {
        assert!(matches!(reflector.line(text.as_bytes()), Err(Fault::Garbage(_))), "{text}");
    }
    assert_eq!(query(&reflector), format!("{WATCH}&resourceVersion=7"));
}

#[test]
fn deletions_need_no_more_than_a_name() {
    let mut reflector = watching("7");
    let text = json!({"type": "DELETED", "object": garbage("a")}).to_string();
    let event = reflector.line(text.as_bytes()).unwrap();
    let namespace = "d".to_owned();
    let expected = ObjectRef { kind: Kind::Service, namespace, name: "a".to_owned() };
    assert_eq!(event, Some(SourceEvent::Deleted(expected)));
    let Some(SourceEvent::Applied(Object::Service(service))) =
        reflector.item(service("a", 1).to_string().as_bytes())
    else {
        panic!("not a Service")
    };
    assert_eq!(service.metadata.namespace, "d");
}
