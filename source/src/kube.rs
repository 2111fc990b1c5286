//! Objects from a cluster's API server.
//!
//! Four kinds are listed and watched, each for itself: Services, EndpointSlices, ServiceCIDRs and
//! the own Node, with the selectors that kube-proxy has (S2). Connections, TLS and credentials are
//! the `kube` crate's; what is asked and what answers mean is decided here.
//!
//! - The stream has the shape that [`crate::files`] gives it. `ListDone` follows the last object of
//!   a list, never an earlier one. After a relist, what it lacks is gone.
//! - Answers are cut into objects while they arrive and decoded one at a time, without the fields
//!   that no proxy reads. Memory is needed for the largest object, not for the list. Nothing is
//!   kept of the objects.
//! - While the server is out of reach nothing is sent but a finding, and everything stays as it
//!   is. Requests go on with pauses that grow to [`Timing::longest_pause`]. The first answer for one
//!   kind ends the pauses of all.
//! - An object that cannot be read is skipped, named in a finding, and counted. What was known of it
//!   stays in force, also after a relist, for as long as the server has it.
//! - A server without ServiceCIDRs has none: a complete, empty list.
//! - Tokens, certificates and exec plugins are read again when the server refuses them or cannot be
//!   reached.

mod connect;
pub mod events;
mod fault;
mod json;
mod metrics;
mod object;
mod outlet;
mod pace;
mod reflector;
mod requests;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ::kube::client::Body;
use bytes::Bytes;
use http::uri::Authority;
use http::{Request, Response, header};
use http_body_util::BodyExt as _;
use proxy_core::event::{Kind, SourceEvent};
use proxy_core::table::error_chain;
use tokio::sync::{Mutex, mpsc};
use tokio::time::{Instant, timeout};

use self::connect::Session;
pub use self::connect::{Reason, SourceError};
use self::events::{EventRecorder, EventWriter};
use self::fault::{Fault, Status};
use self::json::{Lines, ListItems, NotCut};
pub use self::metrics::{EventLoss, RestartReason, SourceMetrics};
use self::outlet::{Closed, Outlet};
use self::pace::Limiter;
pub use self::pace::Timing;
use self::reflector::{Mode, Pause, Reflector};
use self::requests::Observer;
pub use self::requests::{RequestNews, RequestStage};

/// A refusal longer than this is not read to its end.
const LONGEST_REFUSAL: usize = 64 << 10;
/// A watch should have ended by itself so long ago.
const GRACE: Duration = Duration::from_secs(30);
/// Kinds that wait for the same server do not all ask at once when it is back.
const STAGGER: Duration = Duration::from_millis(200);
/// The method of lists and watches.
const GET: &str = "GET";

/// How to reach the API server, and as whom.
#[derive(Clone, Debug, Default)]
pub struct KubeConnection {
    /// The kubeconfig file; its current context counts. Without it, and without `master`, the
    /// settings that every Pod of a cluster has are used.
    pub kubeconfig: Option<PathBuf>,
    /// Address of the API server, in place of the kubeconfig's.
    pub master: Option<String>,
    /// Requests per second after a burst; 0 means 5, negative no limit.
    pub qps: f64,
    /// Requests that may be made at once; 0 means 10.
    pub burst: u32,
    /// Name of the own Node.
    pub node_name: String,
    /// What to call ourselves to the server.
    pub user_agent: String,
}

/// A cluster's API server.
#[derive(Debug)]
pub struct KubeSource {
    node_name: String,
    session: Arc<Session>,
    limiter: Mutex<Limiter>,
    timing: Timing,
    metrics: Arc<SourceMetrics>,
    observer: Observer,
}

impl KubeSource {
    /// Reads the settings. Nothing is sent yet, and no exec plugin started.
    ///
    /// # Errors
    ///
    /// A kubeconfig, certificate, key or token file that cannot be used; the error names it.
    pub fn new(connection: KubeConnection) -> Result<Self, SourceError> {
        let config = connect::load(&connection)?;
        tracing::debug!(server = %config.cluster_url, "API server");
        let observer =
            Observer::nobody(config.cluster_url.authority().map_or("", Authority::as_str));
        Ok(Self {
            node_name: connection.node_name.clone(),
            limiter: Mutex::new(Limiter::new(connection.qps, connection.burst)),
            session: Arc::new(Session::new(connection, config)),
            timing: Timing::default(),
            metrics: Arc::new(SourceMetrics::new()),
            observer,
        })
    }

    /// With somebody who is told of each request, in the task that makes it; of those of
    /// [`KubeSource::events`] as well, if they are asked for later.
    pub fn on_request(mut self, tell: impl Fn(RequestNews<'_>) + Send + Sync + 'static) -> Self {
        self.observer = self.observer.telling(tell);
        self
    }

    /// With other times to wait.
    pub fn timing(mut self, timing: Timing) -> Self {
        self.timing = timing;
        self
    }

    /// What is counted, for reading while [`KubeSource::run`] runs.
    pub fn metrics(&self) -> Arc<SourceMetrics> {
        Arc::clone(&self.metrics)
    }

    /// A way to write Events of this node. They share connections and credentials with the source,
    /// not its limits; nothing waits for them.
    pub fn events(&self) -> (EventRecorder, EventWriter) {
        let telling = events::Telling {
            session: Arc::clone(&self.session),
            metrics: Arc::clone(&self.metrics),
            observer: self.observer.clone(),
        };
        EventWriter::new(telling, self.timing.clone(), self.node_name.clone())
    }

    /// Sends what the cluster has, then what changes, until the receiver of `events` is dropped.
    ///
    /// The kinds' lists come at the same time, in no order. While the server cannot be reached this
    /// goes on trying, from the start as well as later.
    ///
    /// # Errors
    ///
    /// None so far: whatever happens after [`KubeSource::new`] may pass.
    pub async fn run(self, events: mpsc::Sender<SourceEvent>) -> Result<(), SourceError> {
        let outlet = Outlet::new(events, Arc::clone(&self.metrics));
        let follow = |kind| {
            let reflector = Reflector::new(kind, &self.node_name);
            // All kinds share this task: should one panic, the source as a whole ends.
            Box::pin(Follower { source: &self, outlet: &outlet, reflector }.follow())
        };
        // Nothing but a dropped receiver ends them.
        let Closed = tokio::select! {
            closed = outlet.closed() => closed,
            closed = follow(Kind::Node) => closed,
            closed = follow(Kind::ServiceCidr) => closed,
            closed = follow(Kind::Service) => closed,
            closed = follow(Kind::EndpointSlice) => closed,
        };
        Ok(())
    }
}

/// Why a request is over.
enum Over {
    /// The next request can be made.
    Done,
    Fault(Fault),
    Closed,
}

impl From<Fault> for Over {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<Closed> for Over {
    fn from(Closed: Closed) -> Self {
        Self::Closed
    }
}

impl From<NotCut> for Over {
    fn from(NotCut(reason): NotCut) -> Self {
        Self::Fault(Fault::Garbage(reason.to_owned()))
    }
}

/// Follows one kind of object.
struct Follower<'s> {
    source: &'s KubeSource,
    outlet: &'s Outlet,
    reflector: Reflector,
}

impl Follower<'_> {
    async fn follow(mut self) -> Closed {
        let mut last = None;
        loop {
            let mut answered = Instant::now();
            let fault = match self.request(&mut answered, last.as_ref()).await {
                Over::Done => continue,
                Over::Closed => return Closed,
                Over::Fault(fault) => fault,
            };
            if self.settle(&fault, answered.elapsed()).await.is_err() {
                return Closed;
            }
            last = Some(fault);
        }
    }

    /// Draws conclusions from a fault, and waits as long as it takes.
    async fn settle(&mut self, fault: &Fault, lived: Duration) -> Result<(), Closed> {
        let kind = self.reflector.kind();
        let timing = &self.source.timing;
        tracing::debug!(%kind, %fault, lived = lived.as_secs_f64(), "request over");
        self.source.metrics.count_restart(kind, fault);
        let verdict = self.reflector.failed(fault, lived, timing.steady);
        self.outlet.found(&self.reflector).await?;
        for event in verdict.events {
            self.outlet.send(event).await?;
        }
        if let Some(trouble) = verdict.trouble {
            self.outlet.trouble(&self.reflector, trouble).await?;
        }
        self.source.session.doubt(fault).await;
        let pause = match verdict.pause {
            Pause::None => return Ok(()),
            Pause::Long => {
                self.outlet.well(&self.reflector).await?;
                timing.absent_pause
            }
            Pause::Backoff(failures, least) => timing.backoff(failures, pace::random()).max(least),
        };
        if fault.is_unreachable() {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.outlet.reached() => {
                    tokio::time::sleep(STAGGER.mul_f64(pace::random())).await;
                }
            }
        } else {
            tokio::time::sleep(pause).await;
        }
        Ok(())
    }

    /// Makes one request and takes in the answer. `answered` becomes when that began.
    async fn request(&mut self, answered: &mut Instant, last: Option<&Fault>) -> Over {
        let timing = &self.source.timing;
        let lifetime = timing.lifetime(pace::random());
        let mode = self.reflector.mode();
        let response = match self.ask(lifetime).await {
            Ok(response) => response,
            Err(fault) => return Over::Fault(fault),
        };
        *answered = Instant::now();
        // That a watch begins is well if this was what failed. If it was what came of it, time
        // will tell.
        let is_well = mode == Mode::Watch && last.is_some_and(Fault::is_refusal);
        let result = match mode {
            Mode::Page => self.take_page(response.into_body()).await,
            Mode::Stream | Mode::Watch => {
                self.source.metrics.count_watch(self.reflector.kind());
                self.take_watch(response.into_body(), lifetime, is_well).await
            }
        };
        match result {
            Ok(()) => Over::Done,
            Err(over) => over,
        }
    }

    /// Sends the next request and waits for the beginning of the answer.
    async fn ask(&mut self, lifetime: Duration) -> Result<Response<Body>, Fault> {
        let wait = self.source.limiter.lock().await.book(Instant::now());
        self.source.observer.tell(GET, RequestStage::Admitted(wait));
        tokio::time::sleep(wait).await;
        let client = self.source.session.client().await?;
        let url = self.reflector.url(lifetime);
        tracing::debug!(url, "request");
        let request = Request::get(url)
            .header(header::ACCEPT, "application/json")
            .body(Body::empty())
            .map_err(|error| Fault::Unreachable(error.to_string()))?;
        let limit = self.source.timing.answer;
        let sent = Instant::now();
        let answer = timeout(limit, client.send(request)).await;
        let code = answer.as_ref().ok().and_then(|it| Some(it.as_ref().ok()?.status().as_u16()));
        let answered = RequestStage::Answered { code, duration: sent.elapsed(), sent: 0 };
        self.source.observer.tell(GET, answered);
        let response = match answer {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(Fault::Unreachable(reason(&error))),
            Err(_) => return Err(Fault::Unreachable(Fault::Silent(limit).to_string())),
        };
        if response.status().is_success() {
            Ok(response)
        } else {
            Err(refusal(response, limit).await)
        }
    }

    async fn take_page(&mut self, mut body: Body) -> Result<(), Over> {
        self.begin().await?;
        let mut list = ListItems::default();
        let mut received = 0;
        while let Some(chunk) = next_chunk(&mut body, self.source.timing.silence).await? {
            received += chunk.len();
            list.push(&chunk)?;
            while let Some(item) = list.next()? {
                if let Some(event) = self.reflector.item(item) {
                    self.outlet.send(event).await?;
                }
            }
        }
        self.source.observer.tell(GET, RequestStage::Received(received));
        if list.lacks_items() {
            return Err(Fault::Garbage("a list without items".to_owned()).into());
        }
        let Some(envelope) = list.envelope() else {
            return Err(Fault::Cut("in the middle of a list".to_owned()).into());
        };
        match self.reflector.page_done(envelope)? {
            Some(event) => self.list_done(event).await,
            None => Ok(()),
        }
    }

    async fn take_watch(
        &mut self,
        mut body: Body,
        lifetime: Duration,
        mut is_well: bool,
    ) -> Result<(), Over> {
        self.begin().await?;
        let mut lines = Lines::default();
        if is_well {
            self.outlet.well(&self.reflector).await?;
        }
        while let Some(chunk) = self.next_of_watch(&mut body, lifetime, &mut is_well).await? {
            lines.push(&chunk)?;
            while let Some(line) = lines.next() {
                self.take_line(line).await?;
                if !is_well && !self.reflector.is_listing() {
                    is_well = true;
                    self.outlet.well(&self.reflector).await?;
                }
            }
        }
        let open = lines.is_open();
        Err(if open { Fault::Cut("in the middle of a line".to_owned()) } else { Fault::Ended }
            .into())
    }

    /// The next piece of a watch. One that is silent for a while, but stands, is well too.
    async fn next_of_watch(
        &self,
        body: &mut Body,
        lifetime: Duration,
        is_well: &mut bool,
    ) -> Result<Option<Bytes>, Over> {
        let silence = self.silence(lifetime);
        let steady = self.source.timing.steady;
        if *is_well || self.reflector.is_listing() || silence <= steady {
            return Ok(next_chunk(body, silence).await?);
        }
        match next_chunk(body, steady).await {
            Err(Fault::Silent(_)) => {}
            other => return Ok(other?),
        }
        *is_well = true;
        self.outlet.well(&self.reflector).await?;
        Ok(next_chunk(body, silence.saturating_sub(steady)).await?)
    }

    async fn take_line(&mut self, line: &[u8]) -> Result<(), Over> {
        let was_listing = self.reflector.is_listing();
        match self.reflector.line(line)? {
            Some(event @ SourceEvent::ListDone(_)) => return self.list_done(event).await,
            Some(event) => self.outlet.send(event).await?,
            None => {}
        }
        if !was_listing {
            self.outlet.found(&self.reflector).await?;
        }
        Ok(())
    }

    /// How long a watch may be silent.
    fn silence(&self, lifetime: Duration) -> Duration {
        let timing = &self.source.timing;
        if self.reflector.is_listing() {
            timing.silence
        } else if self.reflector.hears_bookmarks() {
            timing.watch_silence
        } else {
            lifetime + GRACE
        }
    }

    async fn begin(&mut self) -> Result<(), Closed> {
        match self.reflector.answered() {
            Some(event) => self.outlet.send(event).await,
            None => Ok(()),
        }
    }

    async fn list_done(&self, event: SourceEvent) -> Result<(), Over> {
        self.source.metrics.count_list(self.reflector.kind());
        self.outlet.send(event).await?;
        self.outlet.found(&self.reflector).await?;
        self.outlet.well(&self.reflector).await?;
        Ok(())
    }
}

/// The next piece of an answer.
async fn next_chunk(body: &mut Body, silence: Duration) -> Result<Option<Bytes>, Fault> {
    loop {
        match timeout(silence, body.frame()).await {
            Ok(Some(Ok(frame))) => {
                if let Ok(chunk) = frame.into_data() {
                    return Ok(Some(chunk));
                }
            }
            Ok(Some(Err(error))) => return Err(Fault::Cut(reason(&error))),
            Ok(None) => return Ok(None),
            Err(_) => return Err(Fault::Silent(silence)),
        }
    }
}

/// What a server says when it refuses.
async fn refusal(response: Response<Body>, limit: Duration) -> Fault {
    let code = response.status().as_u16();
    let retry_after = response.headers().get(header::RETRY_AFTER);
    let retry_after = retry_after.and_then(|value| value.to_str().ok()?.parse().ok());
    let mut body = response.into_body();
    let mut text = Vec::new();
    while text.len() < LONGEST_REFUSAL {
        // What came is enough.
        let Ok(Some(chunk)) = next_chunk(&mut body, limit).await else { break };
        text.extend_from_slice(&chunk);
    }
    Fault::Refused(Status::of_answer(code, retry_after, &text))
}

/// Why a request failed. The library's errors repeat their causes.
fn reason(error: &::kube::Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => error_chain(cause),
        None => error.to_string(),
    }
}
