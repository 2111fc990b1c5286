//! What the pods start, and with which privileges.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use proxyd::config::{Flags, Loaded, Mode, load};
use serde_json::{Value, json};

use crate::kustomize::{Built, build, read};
use crate::{OVERLAYS, deploy};

/// The Node that pods believe to be on.
const NODE: &str = "node-7";

/// Each container of an overlay's pods, those that run first first.
fn containers(built: &Built) -> Vec<Value> {
    let spec = &built.only("DaemonSet")["spec"]["template"]["spec"];
    let lists = ["initContainers", "containers"].map(|list| spec[list].as_array().unwrap().clone());
    lists.concat()
}

/// The files that a container of this overlay sees.
fn files(built: &Built, complete: bool, container: &Value) -> BTreeMap<String, String> {
    let spec = &built.only("DaemonSet")["spec"]["template"]["spec"];
    let data = if complete {
        built.only("ConfigMap")["data"].clone()
    } else {
        let config = include_str!("../data/config/kubeadm.yaml");
        json!({"config.conf": config, "kubeconfig.conf": "kind: Config"})
    };
    let mut files = BTreeMap::new();
    for mount in container["volumeMounts"].as_array().unwrap() {
        let volumes = spec["volumes"].as_array().unwrap();
        let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]).unwrap();
        assert!(volume["configMap"].is_object(), "{volume}: not known to this test");
        for (key, text) in data.as_object().unwrap() {
            let path = format!("{}/{key}", mount["mountPath"].as_str().unwrap());
            files.insert(path, text.as_str().unwrap().to_owned());
        }
    }
    files
}

/// The arguments of a container as the kubelet hands them over.
fn arguments(container: &Value) -> Vec<String> {
    let env = container["env"].as_array().unwrap();
    let is_node = |it: &Value| it["valueFrom"]["fieldRef"]["fieldPath"] == "spec.nodeName";
    assert!(env.len() == 1 && env[0]["name"] == "NODE_NAME" && is_node(&env[0]), "{env:?}");
    let arguments = container["args"].as_array().unwrap().iter();
    arguments.map(|it| it.as_str().unwrap().replace("$(NODE_NAME)", NODE)).collect()
}

fn loaded(built: &Built, complete: bool, container: &Value) -> (Flags, Loaded) {
    let arguments = arguments(container);
    assert!(!arguments.iter().any(|it| it.contains("$(")), "{arguments:?}");
    let flags = Flags::parse(arguments.iter().map(String::as_str))
        .unwrap_or_else(|error| panic!("{arguments:?}: {error}"));
    let files = files(built, complete, container);
    let read = |path: &Path| -> io::Result<String> {
        let path = path.display().to_string();
        files.get(&path).cloned().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, path))
    };
    let loaded = load(&flags, &read).unwrap_or_else(|error| panic!("{error}"));
    (flags, loaded)
}

#[test]
fn flags_and_configuration_load_without_a_warning() {
    for (path, complete) in OVERLAYS {
        let built = build(&deploy(path));
        for container in containers(&built) {
            let (flags, loaded) = loaded(&built, complete, &container);
            let name = &container["name"];
            assert_eq!(loaded.warnings, [""; 0], "{path}: {name}");
            assert_eq!(loaded.config.mode, Mode::Nftables, "{path}: {name}");
            assert_eq!(loaded.config.hostname_override.as_deref(), Some(NODE));
            assert_eq!(flags.init_only == Some(true), *name == "kernel-settings", "{path}: {name}");
        }
    }
}

#[test]
fn the_probes_ask_where_health_is_served() {
    for (path, complete) in OVERLAYS {
        let built = build(&deploy(path));
        let container = containers(&built).pop().unwrap();
        let (_, loaded) = loaded(&built, complete, &container);
        let served = loaded.config.healthz_bind_address.unwrap();
        assert!(served.ip().is_unspecified(), "the kubelet asks the node's address");
        let port = &container["ports"][0];
        assert_eq!(port["containerPort"], served.port());
        for (probe, asked) in [("livenessProbe", "/livez"), ("readinessProbe", "/healthz")] {
            let get = &container[probe]["httpGet"];
            assert_eq!((&get["path"], &get["port"]), (&json!(asked), &port["name"]), "{path}");
        }
    }
}

/// Pinned, so that nobody widens them by the way. `tests/e2e/privilege.rs` shows that they are
/// enough.
#[test]
fn the_long_running_container_has_one_capability() {
    for (path, _) in OVERLAYS {
        let built = build(&deploy(path));
        let container = containers(&built).pop().unwrap();
        let expected = json!({
            "privileged": false,
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        });
        assert_eq!(container["securityContext"], expected, "{path}");
        let spec = &built.only("DaemonSet")["spec"]["template"]["spec"];
        assert_eq!(spec["hostNetwork"], true);
        assert_eq!(spec["hostPID"], Value::Null);
        assert_eq!(spec["priorityClassName"], "system-node-critical");
    }
}

#[test]
fn the_kubeconfig_is_whole() {
    let text = read(&deploy("overlays/standalone/kubeconfig.conf"));
    let config: Value = serde_saphyr::from_str(&text).unwrap();
    let named = |list: &str, name: &Value| {
        let list = config[list].as_array().unwrap();
        list.iter().find(|it| it["name"] == *name).unwrap_or_else(|| panic!("no {name}")).clone()
    };
    let context = named("contexts", &config["current-context"])["context"].clone();
    let cluster = named("clusters", &context["cluster"]);
    let user = named("users", &context["user"]);
    // Where the kubelet mounts them.
    let secrets = "/var/run/secrets/kubernetes.io/serviceaccount";
    assert_eq!(cluster["cluster"]["certificate-authority"], format!("{secrets}/ca.crt"));
    assert_eq!(user["user"]["tokenFile"], format!("{secrets}/token"));
}
