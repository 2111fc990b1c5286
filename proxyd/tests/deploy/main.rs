//! The manifests under `deploy/` against each other and against the program they start.
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail by panicking")]

mod container;
mod guide;
mod kustomize;
mod objects;
mod pods;

use std::path::{Path, PathBuf};

/// A file or folder under `deploy/`.
pub(crate) fn deploy(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(path)
}

/// The overlays, and whether they bring everything themselves.
pub(crate) const OVERLAYS: [(&str, bool); 2] =
    [("overlays/standalone", true), ("overlays/kubeadm", false)];
