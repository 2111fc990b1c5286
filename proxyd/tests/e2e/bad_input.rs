//! Manifests that are wrong: what was good stays in force, and nobody else suffers.

use anyhow::{Context, Result, ensure};
use testbed::world::Families;

use crate::rig::Rig;

const WEB: &str = "\
apiVersion: v1
kind: Service
metadata: {namespace: default, name: web}
spec:
  clusterIP: 172.30.0.10
  ports: [{name: http, port: 80, targetPort: 8080}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: default, name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.180.0.11]}]
";

/// What may be in a file, and what of it the log has to name.
const BROKEN: [(&str, &str); 4] = [
    ("port: 80,", "web.yaml:6: Service/default/web: spec.ports[0].port"),
    ("clusterIP: 172.30.0.10", "web.yaml:5"),
    ("kind: EndpointSlice", "web.yaml:10"),
    ("endpoints: [", "web.yaml:"),
];

#[test]
fn a_file_that_cannot_be_read_keeps_its_last_good_content_in_force() -> Result<()> {
    let Some(mut rig) = Rig::new(Families::Ipv4)? else { return Ok(()) };
    rig.write("web.yaml", WEB)?;
    rig.start()?;
    rig.answer("172.30.0.10:80/TCP")?;
    let rules = rig.rules()?;
    for (good, named) in BROKEN {
        let bad = match good {
            "port: 80," => "port: eighty,",
            "clusterIP: 172.30.0.10" => "clusterIP: {a: 1}",
            "endpoints: [" => "endpoints: [[",
            _ => "kind: EndpointSlice\nkind: [",
        };
        let said = rig.log().len();
        rig.write("web.yaml", &WEB.replace(good, bad))?;
        rig.wait(&format!("a line about {bad:?}"), crate::rig::LIMIT, |rig| {
            rig.log()[said..].contains("web.yaml:")
        })?;
        let line = rig.log()[said..].to_owned();
        ensure!(line.contains(named), "{bad:?}: {line}");
        ensure!(rig.rules()? == rules, "{bad:?} changed the rules");
    }
    // Good again: what it says now counts.
    rig.write("web.yaml", &WEB.replace("10.180.0.11", "10.180.0.12"))?;
    rig.wait("the new content is in force", crate::rig::LIMIT, |rig| {
        rig.answer("172.30.0.10:80/TCP")
            .is_ok_and(|it| it.backend.to_string() == "10.180.0.12:8080")
    })
}

#[test]
fn objects_that_make_no_sense_do_not_stop_others() -> Result<()> {
    let Some(mut rig) = Rig::new(Families::Ipv4)? else { return Ok(()) };
    rig.write("a-text.yaml", "neither: [one, nor the other")?;
    rig.write("b-binary.json", "\u{0}\u{1}{{{{")?;
    rig.write("c-empty.yaml", "")?;
    rig.write("d-kinds.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n")?;
    let odd = serde_json::json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": "default", "name": "odd\u{1}\"; flush ruleset"},
        "spec": {
            "clusterIP": "172.30.0.66", "externalIPs": ["not an address", "0.0.0.0", "127.0.0.1"],
            "sessionAffinity": "Sometimes", "externalTrafficPolicy": "Maybe",
            "ports": [
                {"name": "x", "port": 0, "protocol": "TCP"},
                {"name": "y".repeat(500), "port": 99, "protocol": "QUIC"},
                {"name": "z", "port": 99, "protocol": "UDP", "nodePort": 70000},
            ],
        },
    });
    rig.write("e-odd.json", &odd.to_string())?;
    rig.service("web", "172.30.0.10", &["10.180.0.11"])?;
    rig.start()?;
    rig.answer("172.30.0.10:80/TCP")?;
    rig.wait_for_log("b-binary.json")?;
    rig.service("later", "172.30.0.11", &["10.180.0.12"])?;
    rig.wait_for_answer("172.30.0.11:80/TCP")?;
    let log = rig.log();
    let line = log.lines().find(|line| line.contains("a-text.yaml:1"));
    line.context("a-text.yaml is not named").with_context(|| log.clone())?;
    ensure!(!log.contains("sync failed"), "{log}");
    Ok(())
}
