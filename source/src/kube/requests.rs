//! What is told of requests, for metrics.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What is known of a request to the API server by now.
#[derive(Clone, Copy, Debug)]
pub struct RequestNews<'a> {
    /// Host and port of the server.
    pub host: &'a str,
    /// The method of HTTP.
    pub method: &'static str,
    /// How far it has come.
    pub stage: RequestStage,
}

/// How far a request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestStage {
    /// It may be sent; so long it had to wait for the limits on requests.
    Admitted(Duration),
    /// An answer has begun, or it has failed.
    Answered {
        /// Status code, if there was an answer.
        code: Option<u16>,
        /// Time to the beginning of the answer; a watch goes on after it.
        duration: Duration,
        /// Length of the request's body, in bytes.
        sent: usize,
    },
    /// A list was read to its end: so many bytes, decompressed. Watches have no size.
    Received(usize),
}

/// Who is told of requests to one server. Clones tell the same.
#[derive(Clone)]
pub(super) struct Observer {
    host: Arc<str>,
    tell: Arc<dyn Fn(RequestNews<'_>) + Send + Sync>,
}

impl Observer {
    /// Nobody, for the server with this host and port.
    pub(super) fn nobody(host: &str) -> Self {
        Self { host: host.into(), tell: Arc::new(|_| {}) }
    }

    pub(super) fn telling(self, tell: impl Fn(RequestNews<'_>) + Send + Sync + 'static) -> Self {
        Self { tell: Arc::new(tell), ..self }
    }

    pub(super) fn tell(&self, method: &'static str, stage: RequestStage) {
        (self.tell)(RequestNews { host: &self.host, method, stage });
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").field("host", &self.host).finish_non_exhaustive()
    }
}
