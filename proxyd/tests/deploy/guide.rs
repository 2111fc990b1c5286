//! The guide that replaces kube-proxy: its commands, as far as they go without a cluster.

use std::path::{Path, PathBuf};
use std::process::Command;

use k8s_openapi::api::core::v1::{Affinity, Pod};
use serde_json::Value;
use testbed::Netns;
use testbed::netns::namespaces_available;

use crate::deploy;
use crate::kustomize::{build, documents, read};

const GUIDE: &str = include_str!("../../../docs/guides/replace-kube-proxy.md");

/// A file of the repository.
fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// The lines of all blocks of shell commands.
fn commands() -> Vec<&'static str> {
    let blocks = GUIDE.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    blocks.flat_map(str::lines).collect()
}

#[test]
fn files_that_are_named_are_there() {
    let mut named = 0;
    for word in GUIDE.split([' ', '`', '(', ')', '\n']) {
        let word = word.trim_end_matches([',', '.']);
        if word.starts_with("deploy/") || word.starts_with("docs/guides/") {
            assert!(repository(word).exists(), "{word}");
            named += 1;
        }
    }
    assert!(named > 5, "the guide names {named} files");
    for file in std::fs::read_dir(repository("docs/guides")).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        assert!(name == "replace-kube-proxy.md" || GUIDE.contains(&name), "{name} is not used");
    }
}

/// The lines that start proxyd, run on the file as kubeadm writes it.
#[test]
fn c7_its_command_lines_run() {
    if !namespaces_available() {
        println!("skipped: network namespaces cannot be made here");
        return;
    }
    let netns = Netns::with_loopback().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let config = include_str!("../data/config/kubeadm.yaml");
    std::fs::write(folder.path().join("config.conf"), config).unwrap();
    let lines = commands().into_iter().filter_map(|line| line.strip_prefix("proxyd "));
    let lines: Vec<_> = lines.collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    for line in lines {
        let mut command = Command::new(env!("CARGO_BIN_EXE_proxyd"));
        command.args(line.split(' ')).current_dir(folder.path());
        netns.output(&mut command).unwrap();
    }
    let effective = read(&folder.path().join("effective.yaml"));
    assert!(effective.contains("mode: nftables"), "{effective}");
}

#[test]
fn its_patches_are_sound() {
    let quoted = commands().into_iter().filter_map(|line| line.split_once("--patch '"));
    let mut patches = 0;
    for (_, patch) in quoted {
        let patch: Value = serde_json::from_str(patch.trim_end_matches('\'')).unwrap();
        assert_eq!(patch[0]["op"], "remove");
        // What the file below brought, and nothing of kubeadm's.
        assert_eq!(patch[0]["path"], "/spec/template/spec/affinity");
        patches += 1;
    }
    assert_eq!(patches, 1);

    let patch = &documents(&repository("docs/guides/kube-proxy-affinity.yaml"))[0];
    let affinity = &patch["spec"]["template"]["spec"]["affinity"];
    let typed: Affinity = serde_json::from_value(affinity.clone()).unwrap();
    assert_eq!(serde_json::to_value(&typed).unwrap(), *affinity, "unknown fields");
    let terms = typed.node_affinity.unwrap();
    let terms = terms.required_during_scheduling_ignored_during_execution.unwrap();
    let wanted = &terms.node_selector_terms[0].match_expressions.as_ref().unwrap()[0];
    assert_eq!(wanted.operator, "DoesNotExist");
    // The one label decides on both sides.
    let overlay = build(&deploy("overlays/kubeadm"));
    let selector = &overlay.only("DaemonSet")["spec"]["template"]["spec"]["nodeSelector"];
    assert_eq!(selector[&wanted.key], "true");
    let label = format!("kubectl label node NODE {}", wanted.key);
    assert!(commands().contains(&format!("{label}=true").as_str()), "{label}");
    assert!(commands().contains(&format!("{label}-").as_str()), "{label}");
}

#[test]
fn its_pods_are_sound() {
    for (file, program) in [("kube-proxy-cleanup", "kube-proxy"), ("proxyd-cleanup", "proxyd")] {
        let pod = &documents(&repository(&format!("docs/guides/{file}.yaml")))[0];
        let typed: Pod = serde_json::from_value(pod.clone()).unwrap();
        assert_eq!(serde_json::to_value(typed).unwrap(), *pod, "{file}: unknown fields");
        assert_eq!(pod["metadata"]["name"], file);
        let spec = &pod["spec"];
        assert_eq!((spec["nodeName"].as_str(), &spec["hostNetwork"]), (Some("NODE"), &true.into()));
        let container = &spec["containers"][0];
        assert_eq!(container["image"], "IMAGE");
        assert_eq!(container["command"][0], format!("/usr/local/bin/{program}"));
        for text in [&format!("wait pod/{file} "), &format!("delete pod {file}")] {
            assert!(commands().iter().any(|line| line.contains(text.as_str())), "{text}");
        }
    }
}
