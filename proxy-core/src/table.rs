//! What a backend is: a kernel's table of Service rules for one IP family.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use async_trait::async_trait;

use crate::address::IpFamily;
use crate::node::NodeFacts;
use crate::resolved::{PoolKind, ResolvedPort, ResolvedService};
use crate::rules::{RuleDelta, RuleSet};

/// A kernel's table of Service rules for one IP family.
///
/// `compile_*` are pure. `observe` and `commit` touch only objects that the table recognises as
/// its own, and need no memory of an earlier process to do so.
///
/// Implementations may block for as long as the kernel takes (milliseconds; a fraction of a
/// second for a whole table): give them a thread of their own.
#[async_trait]
pub trait ServiceTable: Send {
    /// Identifies a kernel object. Its order is the order of dependency, see [`RuleSet`].
    type Key: Ord + Clone + fmt::Debug + Send + Sync + 'static;
    /// Contents of a kernel object; equal contents need no write.
    type Rule: Eq + Clone + fmt::Debug + Send + Sync + 'static;

    /// The family this table is for.
    fn family(&self) -> IpFamily;

    /// Takes note of the node before anything is compiled. Returns whether what Services need has
    /// changed with it, so that all of them have to be compiled anew.
    fn note_node(&mut self, _node: &NodeFacts) -> bool {
        false
    }

    /// The objects that are needed whatever the Services are.
    fn compile_node(&self, node: &NodeFacts, out: &mut RuleSet<Self::Key, Self::Rule>);

    /// The objects of one Service.
    fn compile_service(&self, service: &ResolvedService, out: &mut RuleSet<Self::Key, Self::Rule>);

    /// Whether several Services may need the same object. Such an object stays until the last of
    /// them is gone; its contents are a function of its key.
    fn is_shared(key: &Self::Key) -> bool;

    /// The numbers that the installed objects give the endpoints of a pool. Layouts that do not
    /// number endpoints know none.
    fn installed_numbers(
        &self,
        _installed: &RuleSet<Self::Key, Self::Rule>,
        _port: &ResolvedPort,
        _pool: PoolKind,
    ) -> Vec<(usize, (IpAddr, u16))> {
        Vec::new()
    }

    /// Reads what is installed, of what is ours.
    async fn observe(&mut self) -> Result<RuleSet<Self::Key, Self::Rule>, TableError>;

    /// Takes the steps, in their order. Each Service keeps a path at every moment. After an error
    /// nothing is known of what was done.
    async fn commit(&mut self, delta: &RuleDelta<Self::Key, Self::Rule>) -> Result<(), TableError>;

    /// Whether the next commits only take effect as one, because what is installed has another
    /// layout and is replaced as a whole. Known after `observe`.
    fn replaces_all(&self) -> bool {
        false
    }

    /// About how many objects a comparison of everything commits at a time. Less lets the first
    /// Services work before the last ones are written; more suits kernels for which each commit
    /// costs as much as a whole table.
    fn commit_objects(&self) -> usize {
        4096
    }

    /// Removes everything that is ours.
    async fn clear(&mut self) -> Result<(), TableError>;

    /// When to call [`Self::tend`] next, if there is work that waits for time to pass.
    fn tend_in(&self) -> Option<Duration> {
        None
    }

    /// Does work that time has made due, such as removing what has drained. It changes nothing
    /// that `observe` shows.
    async fn tend(&mut self) -> Result<(), TableError> {
        Ok(())
    }

    /// A signal that somebody else changed what is ours, if the kernel gives one. Backends
    /// without it are compared at intervals.
    fn drift_signal(&mut self) -> Result<Option<Box<dyn DriftSignal>>, TableError> {
        Ok(None)
    }
}

/// Tells that somebody else changed a table's objects.
#[async_trait]
pub trait DriftSignal: Send {
    /// Resolves when something of ours was changed, or may have been; the text says what.
    async fn changed(&mut self) -> Result<String, TableError>;
}

/// How to answer a [`TableError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TableErrorKind {
    /// May succeed when tried again.
    Transient,
    /// Somebody else uses what only one can use at a time, such as a lock: it will succeed as soon
    /// as they are done, so it is tried again after a short time, however often it failed.
    Busy,
    /// What is installed is not what was assumed: observe and compare everything.
    OutOfSync,
    /// This kernel cannot do it.
    Unsupported,
    /// The process may not do it.
    Permission,
    /// The kernel refuses an object of this delta: leave it out.
    Rejected,
}

impl TableErrorKind {
    /// The word for logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Transient => "transient",
            Self::Busy => "busy",
            Self::OutOfSync => "out-of-sync",
            Self::Unsupported => "unsupported",
            Self::Permission => "permission",
            Self::Rejected => "rejected",
        }
    }
}

/// A backend could not read or write its table.
#[derive(Debug, thiserror::Error)]
#[error("failed to {operation}")]
pub struct TableError {
    kind: TableErrorKind,
    operation: String,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl TableError {
    /// An error of this kind; `operation` completes the sentence "failed to …" and names the
    /// object.
    pub fn new(kind: TableErrorKind, operation: impl Into<String>) -> Self {
        Self { kind, operation: operation.into(), source: None }
    }

    /// The same error with its cause.
    pub fn with_source(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.source = Some(source.into());
        self
    }

    /// How to answer it.
    pub fn kind(&self) -> TableErrorKind {
        self.kind
    }

    /// The error and its causes in one line.
    pub fn chain(&self) -> String {
        error_chain(self)
    }
}

/// An error and its causes in one line.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        line.push_str(": ");
        line.push_str(&error.to_string());
        cause = error.source();
    }
    line
}
