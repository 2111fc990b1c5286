//! As much of kustomize as the manifests use; a field that is not known here fails the test.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Kustomization {
    api_version: String,
    kind: String,
    resources: Vec<String>,
    #[serde(default)]
    config_map_generator: Vec<Generator>,
    #[serde(default)]
    patches: Vec<Patch>,
    #[serde(default)]
    images: Vec<Image>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Generator {
    name: String,
    namespace: String,
    files: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Patch {
    target: Target,
    /// A list of JSON Patch operations (RFC 6902), as text.
    patch: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Target {
    kind: String,
    name: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Operation {
    op: String,
    path: String,
    value: Value,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Image {
    name: String,
    new_name: String,
    new_tag: String,
}

/// Objects, and the files that they were made from.
#[derive(Debug, Default)]
pub(crate) struct Built {
    pub(crate) objects: Vec<Value>,
    pub(crate) files: BTreeSet<PathBuf>,
}

impl Built {
    /// The only object of a kind.
    pub(crate) fn only(&self, kind: &str) -> &Value {
        let found: Vec<_> = self.objects.iter().filter(|object| object["kind"] == kind).collect();
        assert_eq!(found.len(), 1, "objects of kind {kind}");
        found[0]
    }

    /// Whether there is such an object.
    pub(crate) fn has(&self, kind: &str, name: &Value) -> bool {
        self.objects.iter().any(|it| it["kind"] == kind && it["metadata"]["name"] == *name)
    }
}

/// What `kubectl kustomize FOLDER` gives, but for the hash in the name of a generated ConfigMap.
pub(crate) fn build(folder: &Path) -> Built {
    let path = folder.join("kustomization.yaml");
    let text = read(&path);
    let layer: Kustomization =
        serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(layer.api_version, "kustomize.config.k8s.io/v1beta1");
    assert_eq!(layer.kind, "Kustomization");
    let mut built = Built::default();
    built.files.insert(path.canonicalize().unwrap());
    for resource in &layer.resources {
        let path = folder.join(resource);
        if path.is_dir() {
            let below = build(&path);
            built.objects.extend(below.objects);
            built.files.extend(below.files);
        } else {
            built.objects.extend(documents(&path));
            built.files.insert(path.canonicalize().unwrap());
        }
    }
    for generator in &layer.config_map_generator {
        let object = generator.generate(folder, &mut built.files);
        built.objects.push(object);
    }
    for patch in &layer.patches {
        patch.apply(&mut built.objects);
    }
    for image in &layer.images {
        assert!(built.objects.iter_mut().any(|it| image.apply(it)), "unused: {image:?}");
    }
    built
}

/// The documents of a file of manifests.
pub(crate) fn documents(path: &Path) -> Vec<Value> {
    serde_saphyr::from_multiple(&read(path))
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub(crate) fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

impl Generator {
    fn generate(&self, folder: &Path, files: &mut BTreeSet<PathBuf>) -> Value {
        let mut data = json!({});
        for file in &self.files {
            let path = folder.join(file);
            data[file] = read(&path).into();
            files.insert(path.canonicalize().unwrap());
        }
        let metadata = json!({"name": self.name, "namespace": self.namespace});
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    }
}

impl Patch {
    fn apply(&self, objects: &mut [Value]) {
        let operations: Vec<Operation> = serde_saphyr::from_str(&self.patch).unwrap();
        let target = objects.iter_mut().find(|object| {
            object["kind"] == *self.target.kind && object["metadata"]["name"] == *self.target.name
        });
        let target = target.unwrap_or_else(|| panic!("no target: {:?}", self.target));
        for operation in operations {
            operation.apply(target);
        }
    }
}

impl Operation {
    fn apply(self, object: &mut Value) {
        let (parent, last) = self.path.rsplit_once('/').unwrap();
        let key = last.replace("~1", "/").replace("~0", "~");
        let place = object.pointer_mut(parent).unwrap_or_else(|| panic!("no {parent}"));
        let place = place.as_object_mut().unwrap_or_else(|| panic!("{parent} is no mapping"));
        match self.op.as_str() {
            "add" => assert!(!place.contains_key(&key), "{} is there already", self.path),
            "replace" => assert!(place.contains_key(&key), "{} is not there", self.path),
            other => panic!("unknown operation {other}"),
        }
        place.insert(key, self.value);
    }
}

impl Image {
    /// Puts the image in wherever its name stands; returns whether it did.
    fn apply(&self, object: &mut Value) -> bool {
        let mut applied = false;
        for list in ["initContainers", "containers"] {
            let list = object.pointer_mut(&format!("/spec/template/spec/{list}"));
            for container in list.and_then(Value::as_array_mut).into_iter().flatten() {
                if container["image"] == *self.name {
                    container["image"] = format!("{}:{}", self.new_name, self.new_tag).into();
                    applied = true;
                }
            }
        }
        applied
    }
}
