//! Where the objects come from: a folder of manifests or a cluster.

use std::time::Duration;

#[cfg(feature = "kube")]
use anyhow::Context as _;
use proxy_core::event::SourceEvent;
use source::files::FileSource;
use tokio::sync::mpsc;

use crate::config::{Flags, KubeProxyConfiguration};
use crate::metrics::Metrics;

/// How long to wait for the Node object, from the end of the first list of Nodes (S1.5).
#[cfg(feature = "kube")]
const NODE_WAIT: Duration = Duration::from_secs(30);
/// How long to wait for its pod ranges, where local traffic is told by them (S1.5).
#[cfg(feature = "kube")]
const POD_CIDR_WAIT: Duration = Duration::from_secs(300);

/// What is heard of the cluster.
#[derive(Debug, Default)]
pub struct Outage {
    #[cfg(feature = "kube")]
    metrics: Option<std::sync::Arc<source::kube::SourceMetrics>>,
}

impl Outage {
    /// Why nothing is heard, if that is so.
    pub fn reason(&self) -> Option<String> {
        #[cfg(feature = "kube")]
        if let Some(metrics) = self.metrics.as_ref().filter(|metrics| !metrics.is_connected()) {
            let seconds = metrics.since().elapsed().unwrap_or_default().as_secs();
            return Some(format!("the API server does not answer, for {seconds} s now"));
        }
        None
    }
}

/// A source of objects, ready to run.
#[derive(Debug)]
pub enum ObjectSource {
    /// A folder of manifests.
    Files(FileSource),
    /// A cluster's API server.
    #[cfg(feature = "kube")]
    Kube(Box<source::kube::KubeSource>),
}

/// What a source owes to be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// For the Node object.
    pub node: Duration,
    /// For its pod ranges, if they are needed.
    pub pod_cidrs: Duration,
    /// Whether a node that was never seen is unfit for traffic from load balancers (S7.7).
    pub needs_node: bool,
}

impl ObjectSource {
    /// Chooses the source: `--manifests` if given, else the cluster.
    pub fn open(
        config: &KubeProxyConfiguration,
        flags: &Flags,
        node_name: &str,
    ) -> anyhow::Result<Self> {
        match &flags.manifests {
            Some(folder) => Ok(Self::Files(FileSource::new(folder))),
            None => Self::cluster(config, flags, node_name),
        }
    }

    #[cfg(feature = "kube")]
    fn cluster(
        config: &KubeProxyConfiguration,
        flags: &Flags,
        node_name: &str,
    ) -> anyhow::Result<Self> {
        let client = &config.client_connection;
        let connection = source::kube::KubeConnection {
            kubeconfig: client.kubeconfig.clone(),
            master: flags.master.clone(),
            qps: client.qps,
            burst: client.burst,
            node_name: node_name.to_owned(),
            user_agent: concat!("proxyd/", env!("CARGO_PKG_VERSION")).to_owned(),
        };
        let source = source::kube::KubeSource::new(connection)
            .context("failed to read how to reach the API server (or give --manifests DIR)")?;
        Ok(Self::Kube(Box::new(source)))
    }

    #[cfg(not(feature = "kube"))]
    fn cluster(_: &KubeProxyConfiguration, _: &Flags, _: &str) -> anyhow::Result<Self> {
        anyhow::bail!("--manifests is missing: this build cannot watch a cluster")
    }

    /// What the source's objects are worth waiting for at the start. Files are either there or
    /// not; a Node may come to be while its kubelet starts.
    pub fn patience(&self) -> Patience {
        match self {
            Self::Files(_) => {
                Patience { node: Duration::ZERO, pod_cidrs: Duration::ZERO, needs_node: false }
            }
            #[cfg(feature = "kube")]
            Self::Kube(_) => {
                Patience { node: NODE_WAIT, pod_cidrs: POD_CIDR_WAIT, needs_node: true }
            }
        }
    }

    /// Lets metrics tell of the source.
    #[cfg_attr(not(feature = "kube"), expect(unused_variables, reason = "files ask no server"))]
    pub fn observed_by(self, metrics: &Metrics) -> Self {
        match self {
            Self::Files(source) => Self::Files(source),
            #[cfg(feature = "kube")]
            Self::Kube(source) => {
                metrics.follow_source(source.metrics());
                let metrics = metrics.clone();
                let source = source.on_request(move |news| metrics.api_request(&news));
                Self::Kube(Box::new(source))
            }
        }
    }

    /// Who knows whether anything is heard of the cluster.
    pub fn outage(&self) -> Outage {
        match self {
            Self::Files(_) => Outage::default(),
            #[cfg(feature = "kube")]
            Self::Kube(source) => Outage { metrics: Some(source.metrics()) },
        }
    }

    /// Hands over objects until the receiver is dropped.
    pub async fn run(self, events: mpsc::Sender<SourceEvent>) -> anyhow::Result<()> {
        match self {
            Self::Files(source) => Ok(source.run(events).await?),
            #[cfg(feature = "kube")]
            Self::Kube(source) => Ok(source.run(events).await?),
        }
    }
}

impl std::fmt::Display for ObjectSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Files(_) => "manifests",
            #[cfg(feature = "kube")]
            Self::Kube(_) => "cluster",
        })
    }
}
