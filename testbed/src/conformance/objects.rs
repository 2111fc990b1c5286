//! Where the program under test takes a case's objects from.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Error, Result, bail, ensure};
use serde_json::Value;

use crate::apiserver::ApiServer;
use crate::manifests::Manifests;
use crate::netns::Netns;

/// Where objects come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A folder of manifests.
    Manifests,
    /// An API server.
    Cluster,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Manifests => "manifests",
            Self::Cluster => "cluster",
        })
    }
}

impl FromStr for Origin {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(match text {
            "manifests" => Self::Manifests,
            "cluster" => Self::Cluster,
            _ => bail!("origin {text:?} is neither manifests nor cluster"),
        })
    }
}

/// The objects of a case as the program sees them.
#[derive(Debug)]
pub(super) struct Objects {
    /// Knows what there is, whatever the program looks at.
    manifests: Manifests,
    server: Option<ApiServer>,
}

impl Objects {
    /// None yet. An API server listens on the node itself.
    pub(super) fn new(origin: Origin, node: &Netns) -> Result<Self> {
        let server = match origin {
            Origin::Manifests => None,
            Origin::Cluster => Some(node.run(ApiServer::start).context("the API server")?),
        };
        Ok(Self { manifests: Manifests::new()?, server })
    }

    /// The folder's path or the server's URL.
    pub(super) fn place(&self) -> String {
        match &self.server {
            None => self.manifests.folder().display().to_string(),
            Some(server) => server.url(),
        }
    }

    /// A path for a file that goes with the objects.
    pub(super) fn beside(&self, name: &str) -> PathBuf {
        self.manifests.beside(name)
    }

    /// Creates or replaces an object.
    pub(super) fn apply(&mut self, object: &Value) -> Result<()> {
        self.manifests.apply(object)?;
        if let Some(server) = &self.server {
            server.apply(object.clone());
        }
        Ok(())
    }

    /// Removes an object, given as `Kind/namespace/name` or `Kind/name`.
    pub(super) fn delete(&mut self, key: &str) -> Result<()> {
        self.manifests.delete(key)?;
        let Some(server) = &self.server else { return Ok(()) };
        let (kind, path) = key.split_once('/').context("a key without a name")?;
        let (namespace, name) = path.split_once('/').unwrap_or(("", path));
        let resource = format!("{}s", kind.to_lowercase());
        ensure!(server.delete(&resource, namespace, name), "the server lacks {key}");
        Ok(())
    }
}
