//! The runner from end to end, with small shell scripts in the place of the program under test.

use std::fs;
use std::path::Path;

use anyhow::Result;
use tempfile::TempDir;
use testbed::cases::{Case, Mode, parse};
use testbed::conformance::{Flavour, Subject, run};
use testbed::netns::namespaces_available;

const CASE: &str = "
name: two-stages
feature: runner
family: ipv4
why: A Service gets an endpoint.
config: {clusterCIDR: 10.180.0.0/16}
objects:
  - apiVersion: v1
    kind: Service
    metadata: {namespace: default, name: web}
    spec: {clusterIP: 172.30.0.1, ports: [{port: 80, targetPort: 8080}]}
checks:
  - {from: local-pod, to: '172.30.0.1:80/TCP', expect: {result: reject}}
  - {from: outside, to: '192.168.0.2:30000/TCP', expect: {result: pass}}
steps:
  - apply:
      - apiVersion: discovery.k8s.io/v1
        kind: EndpointSlice
        metadata: {namespace: default, name: web-1}
        addressType: IPv4
        ports: [{port: 8080}]
        endpoints: [{addresses: [10.180.1.11]}]
    checks:
      - from: local-pod
        to: 172.30.0.1:80/TCP
        expect: {result: connect, backends: ['10.180.1.11:8080'], source: preserved}
  - delete: [EndpointSlice/default/web-1]
    checks:
      - {from: local-pod, to: '172.30.0.1:80/TCP', expect: {result: reject}}
";

/// Serves the canaries and, while a slice is in the folder, the Service.
const SCRIPT: &str = r#"
echo "started in $1 with $2"
had=none
while :; do
    has=$(ls "$1")
    if [ "$has" != "$had" ]; then
        had=$has
        case $has in *web-1*) verdict="dnat to 10.180.1.11:8080";; *) verdict="";; esac
        nft -f - <<END
table ip t
delete table ip t
table ip t {
    chain nat {
        type nat hook prerouting priority -100
        ip daddr 172.30.255.0/24 meta l4proto tcp dnat to 10.180.0.250:65000
        ip daddr 172.30.0.1 meta l4proto tcp $verdict
    }
    chain filter {
        type filter hook forward priority 0
        ip daddr 172.30.0.1 reject
    }
}
END
    fi
    sleep 0.02
done
"#;

fn case() -> Result<Case> {
    Ok(parse(CASE)?.remove(0))
}

fn subject(folder: &TempDir, script: &str) -> Result<Subject> {
    let path = folder.path().join("script");
    fs::write(&path, script)?;
    Ok(Subject::new(&format!("sh {} {{manifests}} {{mode}}", Path::display(&path))))
}

#[test]
fn a_case_is_played_through_its_stages() {
    if !namespaces_available() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let subject = subject(&folder, SCRIPT).unwrap();
    run(&case().unwrap(), Flavour::Mode(Mode::Nftables), &subject).unwrap();
}

#[test]
fn wrong_rules_fail_with_check_reason_and_log() {
    if !namespaces_available() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let subject = subject(&folder, &SCRIPT.replace("dnat to 10.180.1.11", "dnat to 10.180.1.12"));
    let error = run(&case().unwrap(), Flavour::Mode(Mode::Nftables), &subject.unwrap())
        .unwrap_err()
        .to_string();
    for said in ["after step 1", "172.30.0.1:80/TCP", "was answered by 10.180.1.12:8080"] {
        assert!(error.contains(said), "{error}");
    }
    assert!(
        error.contains("A Service gets an endpoint") && error.contains("started in"),
        "{error}"
    );
}

#[test]
fn a_program_that_ends_fails_at_once() {
    if !namespaces_available() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let subject = subject(&folder, "echo no such mode: $2; exit 3").unwrap();
    let error =
        run(&case().unwrap(), Flavour::Mode(Mode::Nftables), &subject).unwrap_err().to_string();
    assert!(
        error.contains("ended by itself") && error.contains("no such mode: nftables"),
        "{error}"
    );
}
