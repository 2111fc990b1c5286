//! Where all kinds' events go, and what is said of the server as a whole.

use std::collections::BTreeMap;
use std::sync::Arc;

use proxy_core::diagnostic::Diagnostic;
use proxy_core::event::{Kind, SourceEvent};
use tokio::sync::{Mutex, Notify, mpsc};

use super::metrics::SourceMetrics;
use super::reflector::Reflector;

/// What findings about the server are filed under.
const SERVER: &str = "api server";

/// Nobody receives the events any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Closed;

/// Where events go.
#[derive(Debug)]
pub(super) struct Outlet {
    events: mpsc::Sender<SourceEvent>,
    metrics: Arc<SourceMetrics>,
    /// Held while findings are sent, so that the last ones told are the last ones found.
    board: Mutex<Board>,
    reached: Notify,
}

impl Outlet {
    pub(super) fn new(events: mpsc::Sender<SourceEvent>, metrics: Arc<SourceMetrics>) -> Self {
        Self { events, metrics, board: Mutex::default(), reached: Notify::new() }
    }

    pub(super) async fn send(&self, event: SourceEvent) -> Result<(), Closed> {
        self.events.send(event).await.map_err(|_| Closed)
    }

    /// Waits until nobody receives events any more.
    pub(super) async fn closed(&self) -> Closed {
        self.events.closed().await;
        Closed
    }

    /// Waits until the server has answered for some kind.
    pub(super) async fn reached(&self) {
        self.reached.notified().await;
    }

    /// The server does not answer for this kind as it should.
    pub(super) async fn trouble(&self, of: &Reflector, reason: String) -> Result<(), Closed> {
        let kind = of.kind();
        let mut board = self.board.lock().await;
        let trouble = Trouble { reason, listed: of.is_listed() };
        if board.troubles.get(&kind) == Some(&trouble) {
            return Ok(());
        }
        tracing::warn!(%kind, reason = trouble.reason, "api server");
        board.troubles.insert(kind, trouble);
        if self.metrics.set_trouble(kind, true) {
            tracing::warn!("api server lost; what is known stays in force");
        }
        self.tell(&board).await
    }

    /// The server answers for this kind as it should.
    pub(super) async fn well(&self, of: &Reflector) -> Result<(), Closed> {
        let kind = of.kind();
        let mut board = self.board.lock().await;
        let had_trouble = board.troubles.remove(&kind).is_some();
        if self.metrics.set_trouble(kind, false) {
            tracing::info!("api server answers for every kind");
        }
        if had_trouble {
            self.reached.notify_waiters();
            self.tell(&board).await?;
        }
        Ok(())
    }

    /// Tells what is wrong with single objects, if that has changed.
    pub(super) async fn found(&self, of: &Reflector) -> Result<(), Closed> {
        let kind = of.kind();
        self.metrics.set_undecodable(kind, of.undecodable());
        let findings = of.findings();
        let mut board = self.board.lock().await;
        let known = board.objects.get(&kind).map(Vec::as_slice).unwrap_or_default();
        if known == findings {
            return Ok(());
        }
        for finding in findings.iter().filter(|finding| !known.contains(finding)) {
            tracing::warn!(%finding, "object skipped");
        }
        board.objects.insert(kind, findings);
        self.tell(&board).await
    }

    async fn tell(&self, board: &Board) -> Result<(), Closed> {
        self.send(SourceEvent::Findings(board.findings())).await
    }
}

/// What is wrong now.
#[derive(Debug, Default)]
struct Board {
    troubles: BTreeMap<Kind, Trouble>,
    objects: BTreeMap<Kind, Vec<Diagnostic>>,
}

#[derive(Debug, PartialEq, Eq)]
struct Trouble {
    reason: String,
    /// Whether a list of the kind is in force.
    listed: bool,
}

impl Board {
    fn findings(&self) -> Vec<Diagnostic> {
        // Kinds that have the same trouble share a finding.
        let mut reasons: BTreeMap<(&str, bool), Vec<&str>> = BTreeMap::new();
        for (kind, trouble) in &self.troubles {
            reasons.entry((&trouble.reason, trouble.listed)).or_default().push(kind.as_str());
        }
        let troubles = reasons.into_iter().map(|((reason, listed), kinds)| {
            let consequence = if listed { "what is known stays in force" } else { "waiting" };
            let message = format!("{}: {reason}; {consequence}", kinds.join(", "));
            Diagnostic::new(SERVER, "", message)
        });
        troubles.chain(self.objects.values().flatten().cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_server_is_one_finding_for_all_kinds() {
        let (sender, mut events) = mpsc::channel(16);
        let outlet = Outlet::new(sender, Arc::new(SourceMetrics::new()));
        let [node, slice] = [Kind::Node, Kind::EndpointSlice].map(|kind| Reflector::new(kind, "n"));
        outlet.trouble(&node, "refused".to_owned()).await.unwrap();
        outlet.trouble(&slice, "refused".to_owned()).await.unwrap();
        outlet.trouble(&slice, "refused".to_owned()).await.unwrap();
        outlet.well(&node).await.unwrap();
        outlet.well(&slice).await.unwrap();
        outlet.well(&slice).await.unwrap();
        drop(outlet);
        let mut told = Vec::new();
        while let Some(event) = events.recv().await {
            let SourceEvent::Findings(findings) = event else { panic!("{event:?}") };
            told.push(findings.iter().map(ToString::to_string).collect::<Vec<_>>());
        }
        let finding = |kinds: &str| vec![format!("api server: {kinds}: refused; waiting")];
        let expected =
            [finding("Node"), finding("EndpointSlice, Node"), finding("EndpointSlice"), vec![]];
        assert_eq!(told, expected);
    }
}
