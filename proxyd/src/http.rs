//! Small HTTP servers: health and health checks.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;

/// A request, of which only the head is ever looked at.
pub type Request = hyper::Request<Incoming>;
/// A complete answer.
pub type Response = hyper::Response<Full<Bytes>>;
/// Answers requests.
pub type Handler = Arc<dyn Fn(&Request) -> Response + Send + Sync>;

/// How long a client may take to send its request's head. A probe that stalls must not hold a
/// connection for ever.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// Binds a listener to exactly this address: an IPv6 one does not take IPv4 as well.
pub fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let domain = socket2::Domain::for_address(address);
    let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // A restarted process must not wait for the former one's closed connections.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Serves connections until the future is dropped.
pub async fn serve(listener: TcpListener, handler: Handler) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(connection(TokioIo::new(stream), Arc::clone(&handler)));
            }
            Err(error) => {
                // Out of descriptors or memory: accepting again at once would spin.
                tracing::warn!(%error, "failed to accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn connection(stream: TokioIo<tokio::net::TcpStream>, handler: Handler) {
    let service = service_fn(move |request: Request| {
        let response = handler(&request);
        async move { Ok::<_, Infallible>(response) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(stream, service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "connection ended");
    }
}

/// A JSON answer, with the headers that kube-proxy sends (S13.3).
pub fn json(status: hyper::StatusCode, body: String, headers: &[(&str, String)]) -> Response {
    let mut builder = hyper::Response::builder()
        .status(status)
        .header("Content-Type", "application/json")
        .header("X-Content-Type-Options", "nosniff");
    for (name, value) in headers {
        builder = builder.header(*name, value);
    }
    builder.body(Full::from(body)).unwrap_or_default()
}

/// The answer to a path that is not served.
pub fn not_found() -> Response {
    let mut response = Response::new(Full::from("404 page not found\n"));
    *response.status_mut() = hyper::StatusCode::NOT_FOUND;
    response
}
