//! The image.

use crate::kustomize::{build, read};
use crate::{OVERLAYS, deploy};

/// The instructions of a Containerfile, with lines joined that end in a backslash.
fn instructions() -> Vec<String> {
    let text = read(&deploy("Containerfile")).replace("\\\n", " ");
    let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
}

#[test]
fn the_image_has_the_program_where_the_pods_start_it() {
    let instructions = instructions();
    let last_stage = instructions.iter().rposition(|line| line.starts_with("FROM ")).unwrap();
    let copies: Vec<_> =
        instructions[last_stage..].iter().filter(|line| line.starts_with("COPY ")).collect();
    assert!(copies.iter().all(|line| line.contains("--from=")), "sources in the image: {copies:?}");
    for (path, _) in OVERLAYS {
        let built = build(&deploy(path));
        let spec = &built.only("DaemonSet")["spec"]["template"]["spec"];
        for list in ["initContainers", "containers"] {
            for container in spec[list].as_array().unwrap() {
                let command = container["command"][0].as_str().unwrap();
                let wanted = format!(" {command}");
                assert!(copies.iter().any(|line| line.ends_with(&wanted)), "{path}: {command}");
                assert!(
                    instructions.contains(&format!("ENTRYPOINT [\"{command}\"]")),
                    "{path}: the image starts something else than {command}"
                );
            }
        }
    }
}

#[test]
fn the_image_is_built_by_the_toolchain_of_the_workspace() {
    let toolchain = include_str!("../../../rust-toolchain.toml");
    let channel = toolchain.lines().find_map(|line| line.strip_prefix("channel = ")).unwrap();
    let channel = channel.trim_matches('"');
    let wanted = format!("FROM docker.io/library/rust:{channel}-");
    let first = instructions().into_iter().find(|line| line.starts_with("FROM ")).unwrap();
    assert!(first.starts_with(&wanted), "{first}: not {wanted}");
}
