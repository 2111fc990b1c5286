//! Health checks of load balancers: one small server per Service and family (S13).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hyper::StatusCode;
use proxy_core::address::IpFamily;
use proxy_core::names::ServiceName;
use proxy_core::node::NodePortAddresses;
use proxy_core::resolved::HealthCheck;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::events::Events;
use crate::http::{self, Handler, Response};

/// Pause before a port that was taken is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// What one family's health checks have to answer, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WantedChecks {
    /// The checks by Service.
    pub checks: BTreeMap<ServiceName, HealthCheck>,
    /// Addresses to listen on (S9.5).
    pub addresses: BTreeSet<IpAddr>,
}

impl WantedChecks {
    /// The addresses that health checks listen on: where node ports answer.
    pub fn listen_addresses(family: IpFamily, accepting: &NodePortAddresses) -> BTreeSet<IpAddr> {
        match accepting {
            NodePortAddresses::All => [family.unspecified()].into(),
            NodePortAddresses::Only(addresses) => addresses.clone(),
        }
    }
}

/// Tells whether the proxy is alive (`/livez`).
pub type Liveness = Arc<dyn Fn() -> bool + Send + Sync>;

/// Identity of a server.
type ServerKey = (ServiceName, SocketAddr);

struct Server {
    local_endpoints: Arc<AtomicUsize>,
    task: AbortHandle,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Keeps the servers of one family in step with what is wanted, until the sender is gone; tells
/// how many of them cannot listen.
pub async fn run(
    mut wanted: watch::Receiver<WantedChecks>,
    is_live: Liveness,
    events: Events,
    tell_refused: impl Fn(usize),
) {
    let (running, refused) = (BTreeMap::new(), BTreeSet::new());
    let mut servers = Servers { running, refused, is_live, events };
    loop {
        let checks = wanted.borrow_and_update().clone();
        servers.update(&checks);
        tell_refused(servers.refused.len());
        let changed = async {
            if servers.refused.is_empty() {
                wanted.changed().await
            } else {
                // A port is taken by another process: wait for a change, but not for ever.
                let waited = tokio::time::timeout(RETRY, wanted.changed()).await;
                waited.unwrap_or(Ok(()))
            }
        };
        if changed.await.is_err() {
            return;
        }
    }
}

struct Servers {
    running: BTreeMap<ServerKey, Server>,
    /// Ports that could not be bound, so that each is reported once.
    refused: BTreeSet<ServerKey>,
    is_live: Liveness,
    events: Events,
}

impl Servers {
    fn update(&mut self, wanted: &WantedChecks) {
        let keys: BTreeMap<ServerKey, usize> = wanted
            .checks
            .iter()
            .flat_map(|(name, check)| {
                wanted.addresses.iter().map(|address| {
                    let socket = SocketAddr::new(*address, check.port);
                    ((name.clone(), socket), check.local_endpoints)
                })
            })
            .collect();
        // Close first: a port may pass from one Service to another.
        self.running.retain(|key, _| keys.contains_key(key));
        self.refused.retain(|key| keys.contains_key(key));
        for (key, local_endpoints) in keys {
            match self.running.get(&key) {
                Some(server) => {
                    server.local_endpoints.store(local_endpoints, Ordering::Relaxed);
                }
                None => self.open(key, local_endpoints),
            }
        }
    }

    fn open(&mut self, key: ServerKey, local_endpoints: usize) {
        let (service, address) = &key;
        match http::bind(*address) {
            Ok(listener) => {
                let local_endpoints = Arc::new(AtomicUsize::new(local_endpoints));
                let handler = handler(service, &local_endpoints, &self.is_live);
                let task = tokio::spawn(http::serve(listener, handler)).abort_handle();
                if self.refused.remove(&key) {
                    tracing::info!(%service, %address, "health check listens now");
                }
                self.running.insert(key, Server { local_endpoints, task });
            }
            Err(error) => {
                if !self.refused.contains(&key) {
                    tracing::warn!(
                        %service, %address, %error,
                        "failed to listen for health checks; trying again"
                    );
                    self.events.health_check_refused(service, *address, &error);
                    self.refused.insert(key);
                }
            }
        }
    }
}

fn handler(
    service: &ServiceName,
    local_endpoints: &Arc<AtomicUsize>,
    is_live: &Liveness,
) -> Handler {
    let (service, is_live) = (service.clone(), Arc::clone(is_live));
    let local_endpoints = Arc::clone(local_endpoints);
    Arc::new(move |_| answer(&service, local_endpoints.load(Ordering::Relaxed), is_live()))
}

/// The answer to a probe (S13.2, S13.3): any path, any method.
fn answer(service: &ServiceName, local_endpoints: usize, is_live: bool) -> Response {
    let status = if local_endpoints > 0 && is_live {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    // Names are written as JSON strings: those of files may hold anything.
    let text = |name: &str| serde_json::Value::from(name).to_string();
    let body = format!(
        "{{\n\t\"service\": {{\n\t\t\"namespace\": {},\n\t\t\"name\": {}\n\t}},\n\t\
         \"localEndpoints\": {local_endpoints},\n\t\"serviceProxyHealthy\": {is_live}\n}}",
        text(&service.namespace),
        text(&service.name),
    );
    let weight = ("X-Load-Balancing-Endpoint-Weight", local_endpoints.to_string());
    http::json(status, body, &[weight])
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    async fn check(local_endpoints: usize, is_live: bool, status: u16) {
        let response = answer(&ServiceName::new("default", "web"), local_endpoints, is_live);
        assert_eq!(response.status(), status);
        let header = |name| response.headers().get(name).unwrap().to_str().unwrap().to_owned();
        assert_eq!(header("content-type"), "application/json");
        assert_eq!(header("x-content-type-options"), "nosniff");
        assert_eq!(header("x-load-balancing-endpoint-weight"), local_endpoints.to_string());
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let expected = format!(
            "{{\n\t\"service\": {{\n\t\t\"namespace\": \"default\",\n\t\t\"name\": \"web\"\n\t}},\n\t\"localEndpoints\": {local_endpoints},\n\t\"serviceProxyHealthy\": {is_live}\n}}"
        );
        assert_eq!(body, expected);
    }

    #[tokio::test]
    async fn s13_answers() {
        check(2, true, 200).await;
        check(0, true, 503).await;
        check(2, false, 503).await;
    }
}
