//! `/healthz` and `/livez` (S14).

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use proxy_core::health::{Health, HealthBody, HealthReport};
use serde::Serialize;

use crate::http::{self, Handler};
use crate::metrics::{HealthPath, Metrics};
use crate::objects::Outage;

/// Pause before a port that was taken is tried again (S14.1).
const RETRY: Duration = Duration::from_secs(5);

/// The proxy's health, shared by the servers and the thread that syncs.
#[derive(Clone, Debug)]
pub struct SharedHealth {
    state: Arc<Mutex<State>>,
    /// Fixed before the first answer.
    outage: Arc<OnceLock<Outage>>,
}

/// An answer to `/healthz`, with the reason why nothing changes any more.
#[derive(Serialize)]
struct Body<'a> {
    #[serde(flatten)]
    health: &'a HealthBody,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<String>,
}

#[derive(Debug)]
struct State {
    health: Health,
    node_eligible: bool,
}

impl SharedHealth {
    /// Health that turns bad when a family is behind for longer than `limit`.
    pub fn new(limit: Duration) -> Self {
        let state = State { health: Health::new(limit), node_eligible: false };
        Self { state: Arc::new(Mutex::new(state)), outage: Arc::default() }
    }

    /// Names who knows whether anything is heard of the cluster. An outage is told of in the
    /// answer to `/healthz` and changes no status code: rules stay good without the API server.
    pub fn set_outage(&self, outage: Outage) {
        // The first to know is the only one.
        let _known = self.outage.set(outage);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state; the closure gets the present time in both forms.
    pub fn update(&self, change: impl FnOnce(&mut Health, Instant, SystemTime)) {
        change(&mut self.lock().health, Instant::now(), SystemTime::now());
    }

    /// Notes whether the node takes new connections from load balancers (S7.7).
    pub fn set_node_eligible(&self, eligible: bool) {
        self.lock().node_eligible = eligible;
    }

    /// Whether the proxy is alive, in the sense of `/livez`.
    pub fn is_live(&self) -> bool {
        self.report().is_healthy()
    }

    fn report(&self) -> HealthReport {
        let state = self.lock();
        state.health.report(Instant::now(), SystemTime::now(), state.node_eligible)
    }

    fn handler(&self, metrics: Metrics) -> Handler {
        let health = self.clone();
        Arc::new(move |request| {
            let report = health.report();
            let outage = || health.outage.get().and_then(Outage::reason);
            let (path, is_good, body, source) = match request.uri().path() {
                "/healthz" => (HealthPath::Healthz, report.is_ready(), report.healthz(), outage()),
                "/livez" => (HealthPath::Livez, report.is_healthy(), report.livez(), None),
                _ => return http::not_found(),
            };
            let status = if is_good {
                hyper::StatusCode::OK
            } else {
                hyper::StatusCode::SERVICE_UNAVAILABLE
            };
            metrics.health_answered(path, status.as_u16());
            let body = Body { health: &body, source };
            http::json(status, serde_json::to_string(&body).unwrap_or_default(), &[])
        })
    }
}

/// Serves health at the address. A port that is taken is tried again, unless `hard_fail`.
pub async fn serve(
    address: SocketAddr,
    health: SharedHealth,
    metrics: Metrics,
    hard_fail: bool,
) -> std::io::Result<()> {
    let handler = health.handler(metrics);
    loop {
        match http::bind(address) {
            Ok(listener) => http::serve(listener, Arc::clone(&handler)).await,
            Err(error) if hard_fail => return Err(error),
            Err(error) => {
                tracing::warn!(%address, %error, "failed to listen for /healthz; trying again");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}
