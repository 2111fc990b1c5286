//! Unit tests of decoding.

use std::fmt::Write as _;

use proptest::prelude::*;
use proxy_core::event::Object;

use super::document::{self, Format};
use super::object::{Context, Seed};
use super::{DecodeError, decode, simple};

fn objects(file: &str, text: &str) -> Result<Vec<Object>, DecodeError> {
    let mut objects = Vec::new();
    decode(file, text.as_bytes(), &mut |object| objects.push(object)).map(|_| objects)
}

/// Names of the objects, or the error.
fn outcome(file: &str, text: &str) -> String {
    match objects(file, text) {
        Ok(objects) => {
            let names: Vec<_> =
                objects.iter().map(|object| object.reference().to_string()).collect();
            names.join(" ")
        }
        Err(error) => error.to_string(),
    }
}

fn check(file: &str, text: &str, expected: &str) {
    assert_eq!(outcome(file, text), expected, "{text}");
}

const WEB: &str = "apiVersion: v1\nkind: Service\nmetadata:\n  name: web\n";

#[test]
fn all_kinds_in_one_text() {
    let text = "
# a comment
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
---
---
kind: EndpointSlice
apiVersion: discovery.k8s.io/v1
metadata:
  name: web-1
--- # the nodes
apiVersion: v1
kind: Node
metadata: {name: n1, namespace: ignored}
...
---
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: kubernetes}
";
    check(
        "all.yaml",
        text,
        "Service/shop/web EndpointSlice/default/web-1 Node/n1 ServiceCIDR/kubernetes",
    );
    check("all.yaml", &text.replace('\n', "\r\n"), &outcome("all.yaml", text));
    check("all.yaml", &format!("\u{feff}%YAML 1.2\n{text}"), &outcome("all.yaml", text));
}

#[test]
fn nothing_is_no_object() {
    for text in ["", "\n\n", "# only a comment\n", "---\n", "---\n---\n...\n", "null\n", "[]"] {
        check("empty.yaml", text, "");
    }
    check("empty.json", " ", "");
}

#[test]
fn fields_are_read() {
    let text = format!("{WEB}spec:\n  ports:\n  - port: 80\n    nodePort: null\nstatus: null\n");
    let Ok([Object::Service(service)]) = <[_; 1]>::try_from(objects("a.yaml", &text).unwrap())
    else {
        panic!("not a service");
    };
    assert_eq!(service.spec.ports[0].port, 80);
    assert_eq!(service.spec.ports[0].node_port, 0);
}

#[test]
fn lists() {
    // As kubectl writes them: fields in alphabetical order.
    let text = "apiVersion: v1
items:
- addressType: IPv4
  apiVersion: discovery.k8s.io/v1
  endpoints:
  - addresses:
    - 10.0.0.1
  kind: EndpointSlice
  metadata:
    name: a
  ports:
  - port: 80
- apiVersion: v1
  kind: ConfigMap
  data:
    endpoints: x
- apiVersion: v1
  kind: Service
  metadata:
    name: b
kind: List
metadata: {}
";
    check("list.yaml", text, "EndpointSlice/default/a Service/default/b");
    let slices = objects("list.yaml", text).unwrap();
    assert!(
        matches!(&slices[0], Object::EndpointSlice(slice)
            if slice.endpoints[0].addresses == ["10.0.0.1"] && slice.ports[0].port == Some(80)),
        "{slices:?}"
    );
    // As the API server writes them: items say nothing of their kind.
    check(
        "list.json",
        r#"{"items": [{"metadata": {"name": "a"}, "spec": {"ports": [{"port": 1}]}}],
            "kind": "ServiceList", "apiVersion": "v1"}
           {"kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1", "items": [
            {"metadata": {"name": "b"}, "endpoints": null}]}"#,
        "Service/default/a EndpointSlice/default/b",
    );
    check("list.yaml", "{kind: List, apiVersion: v1, items: null}", "");
    check(
        "list.yaml",
        "kind: List\napiVersion: v1\nitems:\n- {}\n",
        "list.yaml:4: items[0].kind: missing",
    );
    check(
        "list.yaml",
        "kind: ServiceList\napiVersion: v1\nitems:\n- metadata:\n    name: ''\n",
        "list.yaml:4: items[0].metadata.name: missing in a Service",
    );
    check(
        "array.json",
        r#"[{"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n"}}]"#,
        "Node/n",
    );
}

#[test]
fn items_whose_kind_comes_last() {
    let item =
        "spec: {ports: [{port: 80}]}\n  metadata: {name: a}\n  apiVersion: v1\n  kind: Service";
    let text = format!("kind: List\napiVersion: v1\nitems:\n- {item}\n");
    check("list.yaml", &text, "Service/default/a");
    assert!(matches!(&objects("list.yaml", &text).unwrap()[0], Object::Service(service)
        if service.spec.ports[0].port == 80));
    check(
        "list.yaml",
        &text.replace("80", "x"),
        "list.yaml:4: Service/default/a: items[0].spec: invalid type: string \"x\", expected i64",
    );
}

#[test]
fn other_kinds_are_skipped() {
    let text = "kind: Deployment\napiVersion: apps/v1\nmetadata: 5\nspec: [1]\n---
kind: Service\napiVersion: serving.knative.dev/v1\nspec: 5\n---
{apiVersion: v1, kind: PodList, items: [5]}\n";
    let mut count = 0;
    let skipped = decode("a.yaml", text.as_bytes(), &mut |_| count += 1).unwrap();
    let skipped: Vec<_> = skipped.iter().map(String::as_str).collect();
    assert_eq!(skipped, ["apps/v1/Deployment", "serving.knative.dev/v1/Service", "v1/PodList"]);
    assert_eq!(count, 0);
}

#[test]
fn errors_name_file_line_object_and_field() {
    for (tail, expected) in [
        (
            "spec:\n  ports:\n  - port: abc\n",
            "web.yaml:7: Service/default/web: spec.ports[0].port: invalid value: abc, expected i64",
        ),
        (
            "spec:\n  ports:\n  - port: 1\n  - port: [1]\n",
            "web.yaml:8: Service/default/web: spec.ports[1].port: expected string scalar",
        ),
        (
            "spec:\n  ports: 5\n",
            "web.yaml:6: Service/default/web: spec.ports: expected sequence start",
        ),
        (
            "spec:\n  ports: [\n",
            "web.yaml:6: Service/default/web: spec.ports: unclosed bracket '['",
        ),
        (
            "kind: Service\n",
            "web.yaml:5: Service/default/web: duplicate mapping key `kind` is not allowed here",
        ),
        ("  labels: {a: b: c}\n", "web.yaml:5: metadata.labels: "),
        (
            "---\nkind: Service\napiVersion: v1\n",
            "web.yaml:6: document 2: metadata.name: missing in a Service",
        ),
    ] {
        let text = format!("{WEB}{tail}");
        let message = outcome("web.yaml", &text);
        assert!(message.starts_with(expected), "{message}\n{expected}");
    }
    check(
        "eps.yaml",
        "\n\nkind: EndpointSlice\napiVersion: discovery.k8s.io/v1beta1\nmetadata: {name: a}\n",
        "eps.yaml:3: apiVersion: discovery.k8s.io/v1beta1 EndpointSlice is not supported, only discovery.k8s.io/v1 is",
    );
    check(
        "a.yaml",
        "kind: Service\nmetadata: {name: a}\n",
        "a.yaml:1: Service/default/a: apiVersion: missing",
    );
    check("a.yaml", "apiVersion: v1\n", "a.yaml:1: kind: missing");
    check("a.yaml", "hello", "a.yaml:1: invalid type: string \"hello\", expected an object");
    check("a.yaml", "a: b: c", "a.yaml:1: mapping values are not allowed in this context");
    let json = "{\"apiVersion\": \"v1\",\n \"kind\": \"Service\", \"metadata\": {\"name\": \"web\"},\n \"spec\": {\"ports\": [{\"port\": \"abc\"}]}}";
    check(
        "web.json",
        json,
        "web.json:3: Service/default/web: spec.ports[0].port: invalid type: string \"abc\", expected i64",
    );
    check(
        "web.json",
        &format!("{{\"apiVersion\": \"v1\", \"kind\": \"Pod\"}}\n{json}"),
        "web.json:4: Service/default/web: spec.ports[0].port: invalid type: string \"abc\", expected i64",
    );
    check("web.json", &json[..60], "web.json:2: EOF while parsing an object");
    check("web.json", "kind: Service", "web.json:1: expected value");
    let mut bytes = WEB.as_bytes().to_vec();
    bytes.push(0xff);
    let error = decode("web.yaml", &bytes, &mut drop).unwrap_err();
    assert_eq!(error.to_string(), "web.yaml:5: not UTF-8 text");
}

#[test]
fn flow_style_that_looks_like_json() {
    check(
        "a.yaml",
        "{kind: Node, apiVersion: v1,\nmetadata: {name: a}}\n---\n{\"kind\": \"Node\", \"apiVersion\": \"v1\", \"metadata\": {\"name\": \"b\"}}",
        "Node/a Node/b",
    );
}

#[test]
fn bombs_and_depth_are_refused() {
    let mut bomb = String::from("kind: Service\napiVersion: v1\na0: &a0 [x, x]\n");
    for level in 1..30 {
        let last = level - 1;
        writeln!(bomb, "a{level}: &a{level} [*a{last}, *a{last}, *a{last}]").unwrap();
    }
    assert!(objects("bomb.yaml", &bomb).is_err());
    for open in ["[", "{\"a\":", "- ", "a: {", "? "] {
        let deep = format!("kind: Node\napiVersion: v1\nx:\n  {}", open.repeat(100_000));
        assert!(objects("deep.yaml", &deep).is_err());
        assert!(objects("deep.json", &open.repeat(100_000)).is_err());
    }
}

/// What both readers of YAML make of a document.
fn both(text: &str) -> (Option<Vec<Object>>, Result<Vec<Object>, String>) {
    let Ok((Format::Yaml, documents)) = document::split("a.yaml", text) else {
        return (None, Ok(Vec::new()));
    };
    let Some(document) = documents.first() else { return (None, Ok(Vec::new())) };
    let head = document::head(Format::Yaml, document);
    let mut fast = Vec::new();
    let mut sink = |object| fast.push(object);
    let mut context = Context::new(None, &mut sink);
    let read = simple::read(document.text, Seed::document(&mut context, &head)).is_ok();
    let mut full = Vec::new();
    let mut sink = |object| full.push(object);
    let mut context = Context::new(None, &mut sink);
    let result = document::read(Format::Yaml, document, Seed::document(&mut context, &head));
    (read.then_some(fast), result.map(|()| full))
}

const SIMPLE: &str = "---
# written by a program
apiVersion: v1
items:
- addressType: IPv6
  apiVersion: discovery.k8s.io/v1
  endpoints:
  - addresses:
    - fd00::1
    conditions:
      ready: true
    hints:
      forZones:
        - name: zone-a
    nodeName: 'n1'
    targetRef: {}
  -
    addresses: [] 
    nodeName: null
  kind: EndpointSlice
  metadata:
    labels:
      \"kubernetes.io/service-name\": web
      x: ::1
    name: web-1
  ports:
  - name: \"\"
    port: 8080
- kind: Service
  apiVersion: v1
  metadata:
    annotations: {}
    name: \"web\"
    generation: -1
    lists:
    - - a
      - - b
    -   c: d
        e: f:g
  spec:
    clusterIP: 10.0.0.1
    ports:
    - port: 80
    - port: 443
      nodePort: 30000
kind: List
metadata:
";

#[test]
fn the_fast_reader_reads_simple_text() {
    let (fast, full) = both(SIMPLE);
    assert_eq!(fast.unwrap(), full.unwrap());
}

#[test]
fn the_fast_reader_leaves_the_rest_to_the_full_one() {
    let text = |tail: &str| format!("kind: Node\napiVersion: v1\nmetadata:\n  name: a\n{tail}");
    assert!(both(&text("")).0.is_some());
    for tail in [
        "spec: []\n",
        "spec:\n- a\n",
        "spec: {a: b}\n",
        "x: |\n  y\n",
        "x: 1\nx: 2\n",
        "x: a\n  b\n",
    ] {
        assert_eq!(both(&text(tail)).0, None, "{tail}");
    }
}

#[test]
fn objects_are_handed_over_once_if_the_fast_reader_gives_up_halfway() {
    let text = format!("{SIMPLE}more: |\n  text\n");
    assert_eq!(both(&text).0, None);
    check("a.yaml", &text, "EndpointSlice/default/web-1 Service/default/web");
}

/// Pieces that mean something in YAML.
const PIECES: [&str; 40] = [
    " ", "  ", "-", "- ", ":", ": ", "#", " #", "\"", "'", "{}", "[]", "{", "]", ",", "null", "~",
    "|\n", ">-\n", "a", "a: ", "b: c\n", "\n", "\n\n", "true", "no", "0", "-1", "0x1", "1.5", "08",
    "&a ", "*a", "!!str ", "<<: ", "? ", "\t", "\u{e9}", "\\", "---\n",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn what_the_fast_reader_accepts_means_the_same(
        edits in prop::collection::vec(
            (0..SIMPLE.len(), 0..6usize, prop::option::of(0..PIECES.len())), 1..4),
    ) {
        let mut text = SIMPLE.to_owned();
        for (at, cut, piece) in edits {
            let at = at.min(text.len());
            if text.is_char_boundary(at) {
                let rest = text.split_off(at);
                text.push_str(piece.map_or("", |piece| PIECES[piece]));
                text.push_str(rest.get(cut..).unwrap_or_default());
            }
        }
        if let (Some(fast), full) = both(&text) {
            prop_assert_eq!(Ok(fast), full, "{}", text);
        }
    }

    #[test]
    fn rubbish_never_panics(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        pieces in prop::collection::vec(0..PIECES.len(), 0..40),
    ) {
        let mut text: String = pieces.iter().map(|piece| PIECES[*piece]).collect();
        for file in ["a.yaml", "a.json"] {
            let _ = decode(file, &bytes, &mut drop);
            let _ = decode(file, text.as_bytes(), &mut drop);
        }
        text.insert_str(0, WEB);
        let _ = decode("a.yaml", text.as_bytes(), &mut drop);
    }
}
