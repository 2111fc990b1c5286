//! A pretended API server: objects as JSON, lists and watches as the real one has them, and every
//! fault on demand.
//!
//! It speaks plain HTTP/1.1 on loopback, with a thread for each connection. Any resource can be
//! held; kinds are told apart by the plural name in the URL.
//!
//! ```
//! let server = testbed::apiserver::ApiServer::start()?;
//! server.apply(serde_json::json!({
//!     "kind": "Service", "metadata": {"name": "web", "namespace": "default"}
//! }));
//! assert_eq!(server.objects("services").len(), 1);
//! # Ok::<(), std::io::Error>(())
//! ```

mod access;
mod connection;
mod objects;
mod selector;
mod write;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use socket2::{Domain, Socket, Type};

pub use self::access::{Access, PolicyRule};
use self::objects::Objects;

/// Which requests a fault is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// All.
    Any,
    /// Lists, from the first page or a later one.
    List,
    /// Pages of a list but the first.
    NextPage,
    /// Streaming lists.
    StreamingList,
    /// Watches, but for streaming lists.
    Watch,
    /// What creates or changes an object.
    Write,
}

/// What goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// The answer is a good one's head, then this.
    Body(Vec<u8>),
    /// The connection is closed after so many bytes of a good answer's body.
    CutAfter(usize),
    /// A watch says at once that its version is too old.
    Expired,
    /// No answer, and the connection stays open.
    Hang,
    /// The body comes in pieces of so many bytes, with this pause after each.
    Slow(usize, Duration),
    /// The request is refused.
    Status {
        /// Status code.
        code: u16,
        /// `reason` and `message` of the answer.
        reason: &'static str,
        /// See there.
        message: &'static str,
        /// The header `Retry-After`.
        retry_after: Option<u64>,
    },
}

impl What {
    /// A refusal with nothing but a code and a reason.
    pub fn status(code: u16, reason: &'static str) -> Self {
        Self::Status { code, reason, message: "on demand", retry_after: None }
    }
}

/// Something that is to go wrong.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Plural name of the resource; empty for all.
    pub resource: &'static str,
    /// Which requests.
    pub on: On,
    /// What goes wrong.
    pub what: What,
    /// How often.
    pub times: usize,
}

/// What the server makes of a request for a streaming list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Streaming {
    /// It does not know the parameters and skips them.
    Ignored,
    /// As a server whose etcd is too old: status 500.
    NoProgress,
    /// As it should be.
    #[default]
    On,
    /// As a server with the feature switched off: status 422.
    Refused,
}

/// A request that was made.
#[derive(Clone, Debug)]
pub struct Logged {
    /// When.
    pub at: Instant,
    /// `GET`, `POST` and so on.
    pub method: String,
    /// The path.
    pub path: String,
    /// The parameters, decoded.
    pub query: BTreeMap<String, String>,
    /// The headers, with names in lower case.
    pub headers: BTreeMap<String, String>,
    /// The body.
    pub body: Vec<u8>,
}

impl Logged {
    /// What the request is for, in the terms of RBAC; `None` if its path is not a resource's.
    pub fn access(&self) -> Option<Access> {
        Access::of(&self.method, &self.path, self.is_watch())
    }

    /// Plural name of the resource.
    pub fn resource(&self) -> &str {
        match self.object() {
            Some((_, resource, _)) => resource,
            None => self.path.rsplit('/').next().unwrap_or_default(),
        }
    }

    /// Namespace, resource and name, if the path has a namespace; a collection has an empty name.
    pub fn object(&self) -> Option<(&str, &str, &str)> {
        let (_, place) = self.path.split_once("/namespaces/")?;
        let (namespace, place) = place.split_once('/')?;
        let (resource, name) = place.split_once('/').unwrap_or((place, ""));
        Some((namespace, resource, name))
    }

    /// Whether it creates or changes an object.
    pub fn is_write(&self) -> bool {
        self.method != "GET"
    }

    /// A parameter's value; empty if it is missing.
    pub fn parameter(&self, name: &str) -> &str {
        self.query.get(name).map_or("", String::as_str)
    }

    /// Whether it is for a watch.
    pub fn is_watch(&self) -> bool {
        self.parameter("watch") == "true"
    }
}

/// Everything that the server's threads share.
#[derive(Debug, Default)]
struct State {
    objects: Objects,
    faults: VecDeque<Fault>,
    streaming: Streaming,
    /// Whether a list from version 0 comes in one piece whatever limit was asked for.
    unlimited: bool,
    /// Resources that the server does not have.
    absent: Vec<String>,
    token: Option<String>,
    /// What the client may do; `None` for everything.
    allowed: Option<Vec<PolicyRule>>,
    log: Vec<Logged>,
    /// Rises when watches are to send a bookmark.
    bookmarks: u64,
    /// Rises when watches are to end.
    epoch: u64,
    /// Rises when the server stops; connections of an earlier life are closed.
    life: u64,
    running: bool,
    /// The listening socket, so that waiting for connections can be ended.
    listener: Option<Socket>,
    connections: Vec<TcpStream>,
    watchers: BTreeMap<String, usize>,
    /// Connections that were accepted.
    accepted: usize,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A thread that died has left nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.lock());
        self.changed.notify_all();
        result
    }

    /// Waits until the predicate is false or the time is over.
    fn wait_while(&self, limit: Duration, mut wait: impl FnMut(&mut State) -> bool) -> bool {
        let guard = self.lock();
        let (_guard, result) = self
            .changed
            .wait_timeout_while(guard, limit, |state| wait(state))
            .unwrap_or_else(PoisonError::into_inner);
        !result.timed_out()
    }
}

/// A pretended API server. It stops when dropped.
#[derive(Debug)]
pub struct ApiServer {
    shared: Arc<Shared>,
    address: SocketAddr,
}

impl ApiServer {
    /// Starts on a free port of 127.0.0.1.
    pub fn start() -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let listener = listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        let address = listener.local_addr()?.as_socket();
        let address = address.ok_or_else(|| io::Error::other("a socket without an address"))?;
        let server = Self { shared, address };
        server.serve(listener)?;
        Ok(server)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it listens, as a URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Stops listening and closes all connections. Objects stay.
    pub fn stop(&self) {
        let (connections, listener) = self.shared.change(|state| {
            state.running = false;
            state.life += 1;
            (std::mem::take(&mut state.connections), state.listener.take())
        });
        for connection in connections {
            // It may be closed already.
            let _ = connection.shutdown(Shutdown::Both);
        }
        if let Some(listener) = listener {
            // Ends the wait of the accepting thread, in whichever network namespace it is.
            let _ = listener.shutdown(Shutdown::Both);
        }
        self.shared.wait_while(Duration::from_secs(5), |state| state.life % 2 == 1);
    }

    /// Listens again, on the same port.
    pub fn resume(&self) -> io::Result<()> {
        self.serve(listen(self.address)?)
    }

    fn serve(&self, listener: Socket) -> io::Result<()> {
        let clone = listener.try_clone()?;
        self.shared.change(|state| {
            state.running = true;
            state.listener = Some(clone);
        });
        let listener = TcpListener::from(listener);
        let shared = Arc::clone(&self.shared);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut state = shared.lock();
                if !state.running {
                    break;
                }
                let Ok(stream) = stream else { continue };
                state.accepted += 1;
                state.connections.extend(stream.try_clone());
                let shared = Arc::clone(&shared);
                thread::spawn(move || connection::serve(&shared, &stream));
            }
            drop(listener);
            // Says that the port is free.
            shared.change(|state| state.life += 1);
        });
        Ok(())
    }

    /// Creates or replaces an object. Its `kind`, namespace and name say which. Returns its version.
    pub fn apply(&self, object: Value) -> u64 {
        self.shared.change(|state| state.objects.apply(object))
    }

    /// Deletes an object. Returns whether there was one.
    pub fn delete(&self, resource: &str, namespace: &str, name: &str) -> bool {
        self.shared.change(|state| state.objects.delete(resource, namespace, name))
    }

    /// All objects of a resource.
    pub fn objects(&self, resource: &str) -> Vec<Value> {
        self.shared.lock().objects.all(resource)
    }

    /// Forgets what has happened: no watch can begin at a version before now, and no list go on.
    /// Watches that are going on are told so.
    pub fn expire_history(&self) {
        self.shared.change(|state| state.objects.expire());
    }

    /// Sends a bookmark on every watch.
    pub fn send_bookmarks(&self) {
        self.shared.change(|state| state.bookmarks += 1);
    }

    /// Ends every watch in good order.
    pub fn end_watches(&self) {
        self.shared.change(|state| state.epoch += 1);
    }

    /// Lets something go wrong.
    pub fn fault(&self, resource: &'static str, on: On, what: What, times: usize) {
        self.shared.change(|state| {
            state.faults.push_back(Fault { resource, on, what, times });
        });
    }

    /// Lets nothing go wrong any more.
    pub fn clear_faults(&self) {
        self.shared.change(|state| state.faults.clear());
    }

    /// Whether faults are left that have not happened.
    pub fn has_faults(&self) -> bool {
        !self.shared.lock().faults.is_empty()
    }

    /// What to make of requests for streaming lists.
    pub fn set_streaming(&self, streaming: Streaming) {
        self.shared.change(|state| state.streaming = streaming);
    }

    /// Whether a list from version 0 comes in one piece whatever limit was asked for.
    pub fn set_unlimited(&self, unlimited: bool) {
        self.shared.change(|state| state.unlimited = unlimited);
    }

    /// Whether the server lacks a resource.
    pub fn set_absent(&self, resource: &str, absent: bool) {
        self.shared.change(|state| {
            state.absent.retain(|known| known != resource);
            state.absent.extend(absent.then(|| resource.to_owned()));
        });
    }

    /// The only bearer token that is accepted.
    pub fn set_token(&self, token: &str) {
        self.shared.change(|state| state.token = Some(token.to_owned()));
    }

    /// Allows what these rules allow, and refuses everything else with status 403, as RBAC does.
    pub fn set_allowed(&self, rules: Vec<PolicyRule>) {
        self.shared.change(|state| state.allowed = Some(rules));
    }

    /// The requests so far.
    pub fn requests(&self) -> Vec<Logged> {
        self.shared.lock().log.clone()
    }

    /// Connections so far.
    pub fn accepted(&self) -> usize {
        self.shared.lock().accepted
    }

    /// Watches of a resource that are going on.
    pub fn watchers(&self, resource: &str) -> usize {
        self.shared.lock().watchers.get(resource).copied().unwrap_or_default()
    }

    /// Waits for so many watches of a resource. Returns whether it came to that.
    pub fn wait_for_watchers(&self, resource: &str, count: usize, limit: Duration) -> bool {
        self.shared.wait_while(limit, |state| {
            state.watchers.get(resource).copied().unwrap_or_default() != count
        })
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        if self.shared.lock().running {
            self.stop();
        }
    }
}

/// Listens, also on a port that was just given up.
fn listen(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(128)?;
    Ok(socket)
}
