//! A folder of Kubernetes objects, one JSON file each, that changes file by file and atomically.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tempfile::TempDir;

/// A temporary folder of manifests.
#[derive(Debug)]
pub struct Manifests {
    root: TempDir,
    objects: BTreeMap<String, Value>,
}

impl Manifests {
    /// An empty folder.
    pub fn new() -> Result<Self> {
        let root = tempfile::Builder::new().prefix("testbed-").tempdir()?;
        let manifests = Self { root, objects: BTreeMap::new() };
        fs::create_dir(manifests.folder())?;
        Ok(manifests)
    }

    /// The folder that a program watches.
    pub fn folder(&self) -> PathBuf {
        self.root.path().join("manifests")
    }

    /// A path beside the folder, for logs and configuration; it goes with the folder.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// Creates an object or replaces the one of the same kind, namespace and name.
    pub fn apply(&mut self, object: &Value) -> Result<()> {
        let key = key_of(object)?;
        self.write(&key, object)?;
        self.objects.insert(key, object.clone());
        Ok(())
    }

    /// Removes an object, given as `Kind/namespace/name` or, without namespace, `Kind/name`.
    pub fn delete(&mut self, key: &str) -> Result<()> {
        if self.objects.remove(key).is_none() {
            bail!("{key} is not among {:?}", self.objects.keys());
        }
        fs::remove_file(self.path(key)).with_context(|| format!("removing {key}"))
    }

    /// An object as last applied.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.objects.get(key)
    }

    /// Writes beside the folder first, so that nobody ever sees half a file.
    fn write(&self, key: &str, object: &Value) -> Result<()> {
        let new = self.beside("new.json");
        let write = || -> io::Result<()> {
            fs::write(&new, serde_json::to_vec_pretty(object)?)?;
            fs::rename(&new, self.path(key))
        };
        write().with_context(|| format!("writing {key}"))
    }

    fn path(&self, key: &str) -> PathBuf {
        self.folder().join(format!("{}.json", key.replace('/', ".")))
    }
}

/// `Kind/namespace/name`, without namespace for objects that have none.
pub fn key_of(object: &Value) -> Result<String> {
    let kind = object["kind"].as_str().context("object without kind")?;
    let name = object["metadata"]["name"].as_str().context("object without name")?;
    let namespace = object["metadata"]["namespace"].as_str();
    Ok(namespace.map_or_else(|| format!("{kind}/{name}"), |ns| format!("{kind}/{ns}/{name}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builders::{Port, node, service};

    #[test]
    fn objects_come_change_and_go() {
        let mut manifests = Manifests::new().unwrap();
        let files = |manifests: &Manifests| fs::read_dir(manifests.folder()).unwrap().count();
        manifests.apply(&node("node-a", &[], None)).unwrap();
        manifests.apply(&service("web", "172.30.0.1", &[Port::HTTP])).unwrap();
        manifests.apply(&service("web", "172.30.0.2", &[Port::HTTP])).unwrap();
        assert_eq!(files(&manifests), 2);
        let written = fs::read(manifests.folder().join("Service.default.web.json")).unwrap();
        let written: Value = serde_json::from_slice(&written).unwrap();
        assert_eq!(written["spec"]["clusterIP"], "172.30.0.2");
        manifests.delete("Service/default/web").unwrap();
        manifests.delete("Node/node-a").unwrap();
        assert_eq!(files(&manifests), 0);
        assert!(manifests.delete("Node/node-a").is_err());
    }
}
