//! Names and references among the objects.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use testbed::apiserver::PolicyRule;

use crate::kustomize::{Built, build, documents};
use crate::{OVERLAYS, deploy};

/// What kubeadm made, and what therefore is there without our doing.
const KUBEADM: [(&str, &str); 2] = [("ServiceAccount", "kube-proxy"), ("ConfigMap", "kube-proxy")];

fn overlays() -> impl Iterator<Item = (&'static str, bool, Built)> {
    OVERLAYS.into_iter().map(|(path, complete)| (path, complete, build(&deploy(path))))
}

/// Whether an object that is referred to is there.
fn exists(built: &Built, complete: bool, kind: &str, name: &Value) -> bool {
    let of_kubeadm = KUBEADM.iter().any(|(known, it)| *known == kind && name == it);
    built.has(kind, name) != (of_kubeadm && !complete)
}

#[test]
fn every_file_is_part_of_an_overlay() {
    fn walk(folder: &Path, files: &mut BTreeSet<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, files);
            } else {
                files.insert(path.canonicalize().unwrap());
            }
        }
    }
    let mut present = BTreeSet::new();
    walk(&deploy(""), &mut present);
    present.remove(&deploy("Containerfile").canonicalize().unwrap());
    let used: BTreeSet<_> = overlays().flat_map(|(_, _, built)| built.files).collect();
    assert_eq!(present, used);
}

/// The object as the API knows it: a field that the type does not have is lost.
fn round_trip<T: DeserializeOwned + Serialize>(object: &Value) -> Value {
    let typed: T = serde_json::from_value(object.clone()).unwrap();
    serde_json::to_value(typed).unwrap()
}

#[test]
fn the_api_knows_every_field() {
    for (path, _, built) in overlays() {
        for object in &built.objects {
            let known = match object["kind"].as_str().unwrap() {
                "DaemonSet" => round_trip::<DaemonSet>(object),
                "ServiceAccount" => round_trip::<ServiceAccount>(object),
                "ConfigMap" => round_trip::<ConfigMap>(object),
                "ClusterRole" => round_trip::<ClusterRole>(object),
                "ClusterRoleBinding" => round_trip::<ClusterRoleBinding>(object),
                other => panic!("{path}: kind {other}"),
            };
            assert_eq!(known, *object, "{path}");
        }
    }
}

#[test]
fn objects_have_unique_names_and_one_namespace() {
    for (path, _, built) in overlays() {
        let mut seen = BTreeSet::new();
        for object in &built.objects {
            let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
            let (kind, name) = (text("/kind").unwrap(), text("/metadata/name").unwrap());
            assert!(text("/apiVersion").is_some(), "{path}: {kind} {name}");
            assert!(seen.insert((kind, name)), "{path}: {kind} {name} twice");
            let namespace = if kind.starts_with("Cluster") { None } else { Some("kube-system") };
            assert_eq!(text("/metadata/namespace"), namespace, "{path}: {kind} {name}");
        }
    }
}

#[test]
fn the_daemonset_refers_to_what_is_there() {
    for (path, complete, built) in overlays() {
        let set = built.only("DaemonSet");
        let pod = &set["spec"]["template"];
        let labels = &pod["metadata"]["labels"];
        for (label, value) in set["spec"]["selector"]["matchLabels"].as_object().unwrap() {
            assert_eq!(labels[label], *value, "{path}: selector {label}");
        }
        // A pod of ours must not count as one of kube-proxy's.
        assert_ne!(labels["k8s-app"], "kube-proxy");
        let spec = &pod["spec"];
        let account = &spec["serviceAccountName"];
        assert!(exists(&built, complete, "ServiceAccount", account), "{path}: {account}");
        let volumes = spec["volumes"].as_array().unwrap();
        let mut unused: BTreeSet<_> = volumes.iter().map(|it| it["name"].as_str()).collect();
        for volume in volumes {
            let name = &volume["configMap"]["name"];
            assert!(exists(&built, complete, "ConfigMap", name), "{path}: {volume}");
        }
        for list in ["initContainers", "containers"] {
            for container in spec[list].as_array().unwrap() {
                for mount in container["volumeMounts"].as_array().unwrap() {
                    let name = mount["name"].as_str();
                    assert!(volumes.iter().any(|it| it["name"].as_str() == name), "{mount}");
                    unused.remove(&name);
                }
            }
        }
        assert!(unused.is_empty(), "{path}: no container mounts {unused:?}");
    }
}

#[test]
fn the_binding_joins_role_and_account() {
    let built = build(&deploy("overlays/standalone"));
    let binding = built.only("ClusterRoleBinding");
    assert_eq!(binding["roleRef"]["kind"], "ClusterRole");
    assert!(built.has("ClusterRole", &binding["roleRef"]["name"]));
    let subjects = binding["subjects"].as_array().unwrap();
    assert_eq!(subjects.len(), 1);
    assert!(built.has("ServiceAccount", &subjects[0]["name"]));
    assert_eq!(subjects[0]["kind"], "ServiceAccount");
    assert_eq!(subjects[0]["namespace"], built.only("ServiceAccount")["metadata"]["namespace"]);
    assert_eq!(
        built.only("DaemonSet")["spec"]["template"]["spec"]["serviceAccountName"],
        subjects[0]["name"]
    );
}

/// With kubeadm's ServiceAccount, proxyd has the rights of the role `system:node-proxier` (C7).
#[test]
fn c7_kube_proxys_role_has_every_right_of_ours() {
    let rules = |role: &Value| -> Vec<PolicyRule> {
        serde_json::from_value(role["rules"].clone()).unwrap()
    };
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/deploy/node-proxier.yaml");
    let theirs = rules(&documents(&data)[0]);
    let ours = rules(build(&deploy("overlays/standalone")).only("ClusterRole"));
    for grant in ours.iter().flat_map(PolicyRule::grants) {
        assert!(theirs.iter().any(|rule| rule.allows(&grant)), "kube-proxy may not {grant}");
    }
}
