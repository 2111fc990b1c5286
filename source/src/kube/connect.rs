//! The way to the API server: whose word to take, how to prove who we are, through which proxy.

use std::fmt::Display;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ::kube::client::{AuthError, Body, ClientBuilder, ConfigExt as _, RustlsTlsError};
use ::kube::config::{Cluster, InClusterError, Kubeconfig, KubeconfigError};
use ::kube::{Client, Config};
use http::uri::InvalidUri;
use http::{HeaderValue, Uri, header};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::legacy::connect::{Connection, HttpConnector};
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::TokioExecutor;
use proxy_core::table::error_chain;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tower::{BoxError, ServiceExt as _};

use super::KubeConnection;
use super::fault::Fault;

/// A connection whose peer is silent is tried after this time.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// A connection whose peer acknowledges nothing for this long is dead.
const DEAD: Duration = Duration::from_secs(30);
/// How long to wait for a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// Credentials that were read this recently are not read again for a server that is out of reach.
const FRESH: Duration = Duration::from_secs(30);
/// Nor are those that it refused.
const FRESH_REFUSED: Duration = Duration::from_secs(1);

/// Tokens in files are rotated; they are read again after this time, as client-go does.
const TOKEN: Duration = Duration::from_secs(60);

/// What can go wrong before the first request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The address given for the API server is none.
    #[error("the API server's address {address:?} cannot be used")]
    Address {
        /// The address.
        address: String,
        /// Why.
        #[source]
        source: Reason,
    },
    /// A certificate or key cannot be used.
    #[error("the {what} of kubeconfig {} cannot be used", path.display())]
    Certificate {
        /// What it is, and its file if it has one.
        what: String,
        /// The kubeconfig.
        path: PathBuf,
        /// Why.
        #[source]
        source: Reason,
    },
    /// The client cannot be set up.
    #[error("the client of the API server cannot be set up")]
    Client(#[source] Reason),
    /// There is no kubeconfig, and this is not a Pod of a cluster.
    #[error("no kubeconfig is given, and the settings of a Pod cannot be used")]
    InCluster(#[source] Reason),
    /// The kubeconfig cannot be read.
    #[error("kubeconfig {} cannot be used", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: Reason,
    },
    /// A token cannot be read.
    #[error("token file {} cannot be read", path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Why, in the words of a library.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Reason(String);

impl Reason {
    // These errors' texts hold their causes' already.
    fn new(text: impl Display) -> Self {
        Self(text.to_string())
    }
}

// === configuration ===

/// Reads what the settings name.
pub(super) fn load(settings: &KubeConnection) -> Result<Config, SourceError> {
    let mut authority = String::new();
    let mut config = match (&settings.kubeconfig, &settings.master) {
        (Some(path), _) => from_kubeconfig(path, &mut authority)?,
        (None, Some(_)) => Config::new(Uri::default()),
        (None, None) => Config::incluster().map_err(|error| in_cluster(&error))?,
    };
    if let Some(master) = &settings.master {
        config.cluster_url = address(master)?;
    }
    if config.proxy_url.is_none() {
        config.proxy_url = proxy_from_environment(&config.cluster_url);
    }
    check(&config, settings, authority)?;
    read_token(&mut config)?;
    // Failures have one owner: the reflector, which also knows when to try again.
    config.default_retry = false;
    if let Ok(agent) = HeaderValue::from_str(&settings.user_agent)
        && !settings.user_agent.is_empty()
    {
        config.headers.push((header::USER_AGENT, agent));
    }
    Ok(config)
}

fn in_cluster(error: &InClusterError) -> SourceError {
    SourceError::InCluster(Reason::new(error))
}

/// An address as client-go takes it: without a scheme it means `http`.
fn address(text: &str) -> Result<Uri, SourceError> {
    let full = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let failed = |reason| SourceError::Address { address: text.to_owned(), source: reason };
    let uri: Uri = full.parse().map_err(|error: InvalidUri| failed(Reason::new(error)))?;
    match (uri.scheme_str(), uri.host()) {
        (Some("http" | "https"), Some(host)) if !host.is_empty() => Ok(uri),
        _ => Err(failed(Reason::new("it is not http:// or https:// and a host"))),
    }
}

/// Reads a kubeconfig. `authority` becomes a name for the certificates that the server's is to be
/// signed with.
fn from_kubeconfig(path: &Path, authority: &mut String) -> Result<Config, SourceError> {
    let failed = |error: KubeconfigError| SourceError::Kubeconfig {
        path: path.to_owned(),
        source: Reason::new(error),
    };
    let kubeconfig = Kubeconfig::read_from(path).map_err(failed)?;
    let cluster = current_cluster(&kubeconfig);
    let file = cluster.and_then(|cluster| cluster.certificate_authority.as_ref());
    *authority = named("certificate-authority", file);
    // The library also takes a proxy from the environment, but does not ask whether the server
    // is exempt from it.
    let proxy = cluster.and_then(|cluster| cluster.proxy_url.as_ref());
    let has_proxy = proxy.is_some_and(|url| !url.is_empty());
    let mut config = Config::try_from(kubeconfig).map_err(failed)?;
    if !has_proxy {
        config.proxy_url = None;
    }
    if config.root_cert.as_ref().is_some_and(Vec::is_empty) {
        return Err(SourceError::Certificate {
            what: authority.clone(),
            path: path.to_owned(),
            source: Reason::new("it holds no certificate"),
        });
    }
    Ok(config)
}

fn current_cluster(kubeconfig: &Kubeconfig) -> Option<&Cluster> {
    let current = kubeconfig.current_context.as_ref()?;
    let context = kubeconfig.contexts.iter().find(|context| context.name == *current)?;
    let name = &context.context.as_ref()?.cluster;
    kubeconfig.clusters.iter().find(|named| named.name == *name)?.cluster.as_ref()
}

/// A field of a kubeconfig, and the file that it names, if it does.
fn named(field: &str, file: Option<&String>) -> String {
    file.map_or_else(|| field.to_owned(), |file| format!("{field} {file}"))
}

/// Takes a token out of its file. The library would as well, but not without a line's end.
fn read_token(config: &mut Config) -> Result<(), SourceError> {
    let auth = &mut config.auth_info;
    if let Some(file) = auth.token_file.as_ref().filter(|_| auth.token.is_none()) {
        let token = std::fs::read_to_string(file)
            .map_err(|source| SourceError::Token { path: file.into(), source })?;
        auth.token = Some(token.trim().to_owned().into());
    }
    Ok(())
}

/// Finds out what is wrong with files now, rather than at the first request.
fn check(config: &Config, settings: &KubeConnection, authority: String) -> Result<(), SourceError> {
    let mut config = config.clone();
    // To look at certificates no program has to be started.
    config.auth_info.exec = None;
    config.auth_info.auth_provider = None;
    let Err(error) = config.rustls_client_config() else { return Ok(()) };
    let path = settings.kubeconfig.clone().unwrap_or_default();
    let source = Reason::new(&error);
    let auth = &config.auth_info;
    let identity = format!(
        "{} or {}",
        named("client-certificate", auth.client_certificate.as_ref()),
        named("client-key", auth.client_key.as_ref())
    );
    Err(match error {
        _ if settings.kubeconfig.is_none() => SourceError::InCluster(source),
        ::kube::Error::RustlsTls(RustlsTlsError::AddRootCertificate(_)) => {
            SourceError::Certificate { what: authority, path, source }
        }
        ::kube::Error::RustlsTls(_) => SourceError::Certificate { what: identity, path, source },
        _ => SourceError::Kubeconfig { path, source },
    })
}

// === proxies ===

/// The proxy that the environment names for this server, by the rules that Go has.
fn proxy_from_environment(server: &Uri) -> Option<Uri> {
    let variable = |name: &str| {
        let names = [name.to_owned(), name.to_lowercase()];
        names.iter().find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    };
    let [http, https, none] =
        ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"].map(|name| variable(name).unwrap_or_default());
    proxy(server, http, https, none)
}

fn proxy(server: &Uri, http: String, https: String, none: String) -> Option<Uri> {
    let host = server.host()?.trim_matches(['[', ']']);
    let is_loopback = host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    if is_loopback || host == "localhost" {
        return None;
    }
    let named = if server.scheme_str() == Some("https") { https.clone() } else { http.clone() };
    let matcher = Matcher::builder().http(http).https(https).no(none).build();
    matcher.intercept(server)?;
    // The matcher takes the name and password out of the address.
    let full = if named.contains("://") { named } else { format!("http://{named}") };
    full.parse().ok()
}

/// What proves the name in a proxy's address to it.
fn proxy_credentials(proxy: &Uri) -> Option<HeaderValue> {
    let matcher = Matcher::builder().all(proxy.to_string()).build();
    matcher.intercept(&Uri::from_static("http://server"))?.basic_auth().cloned()
}

// === client ===

/// Builds a client. May start a program for credentials, so it may block.
fn build(config: &Config) -> Result<Client, ::kube::Error> {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT));
    // A peer that vanished without a word is noticed by the kernel.
    connector.set_keepalive(Some(KEEPALIVE));
    connector.set_keepalive_interval(Some(KEEPALIVE / 3));
    connector.set_keepalive_retries(Some(3));
    connector.set_tcp_user_timeout(Some(DEAD));
    let Some(proxy) = config.proxy_url.clone() else { return stack(config, connector) };
    match proxy.scheme_str() {
        Some("socks5" | "socks5h") => stack(config, SocksV5::new(proxy, connector)),
        Some("https") => {
            let connector = config.rustls_https_connector_with_connector(connector)?;
            stack(config, tunnel(proxy, connector))
        }
        Some("http") => stack(config, tunnel(proxy, connector)),
        _ => Err(::kube::Error::ProxyProtocolUnsupported { proxy_url: Box::new(proxy) }),
    }
}

fn tunnel<C>(proxy: Uri, connector: C) -> Tunnel<C> {
    let credentials = proxy_credentials(&proxy);
    let tunnel = Tunnel::new(proxy, connector);
    match credentials {
        Some(credentials) => tunnel.with_auth(credentials),
        None => tunnel,
    }
}

/// The library's layers around a connector of ours.
fn stack<C>(config: &Config, connector: C) -> Result<Client, ::kube::Error>
where
    C: tower::Service<Uri> + Clone + Send + Sync + 'static,
    C::Response: Connection + hyper::rt::Read + hyper::rt::Write + Send + Unpin + 'static,
    C::Future: Send + 'static,
    C::Error: std::error::Error + Send + Sync + 'static,
{
    let connector = config.rustls_https_connector_with_connector(connector)?;
    let transport: legacy::Client<_, Body> =
        legacy::Client::builder(TokioExecutor::new()).build(connector);
    let transport = transport.map_err(BoxError::from);
    let builder = ClientBuilder::new(transport, config.default_namespace.clone())
        .with_layer(&config.extra_headers_layer()?);
    Ok(match config.auth_layer()? {
        Some(auth) => builder.with_layer(&auth).with_layer(&config.base_uri_layer()).build(),
        None => builder.with_layer(&config.base_uri_layer()).build(),
    })
}

/// Why there is no client. What a plugin printed may hold secrets, so only its complaint is told.
fn why_not_built(error: &::kube::Error) -> String {
    let ::kube::Error::Auth(AuthError::AuthExecRun { out, .. }) = error else {
        return error.to_string();
    };
    let complaint = String::from_utf8_lossy(&out.stderr);
    let complaint: String = complaint.trim().chars().take(200).collect();
    format!("the exec plugin failed with {}: {complaint}", out.status)
}

/// The client that all kinds share, renewed when its credentials may be out of date.
#[derive(Debug)]
pub(super) struct Session {
    settings: KubeConnection,
    state: Mutex<State>,
}

struct State {
    config: Config,
    client: Option<Client>,
    built: Option<Instant>,
}

impl State {
    /// Whether a token came from a file and may be another one by now.
    fn is_stale(&self) -> bool {
        self.config.auth_info.token_file.is_some()
            && self.built.is_none_or(|built| built.elapsed() >= TOKEN)
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("server", &self.config.cluster_url).finish_non_exhaustive()
    }
}

impl Session {
    pub(super) fn new(settings: KubeConnection, config: Config) -> Self {
        Self { settings, state: Mutex::new(State { config, client: None, built: None }) }
    }

    /// The client to use now.
    pub(super) async fn client(&self) -> Result<Client, Fault> {
        let mut state = self.state.lock().await;
        if let Some(client) = state.client.as_ref().filter(|_| !state.is_stale()) {
            return Ok(client.clone());
        }
        // What was good at the start stays in use if the files are bad now.
        if state.built.is_some() {
            match load(&self.settings) {
                Ok(config) => state.config = config,
                Err(error) => {
                    let error = error_chain(&error);
                    tracing::warn!(error, "settings of the API client not renewed");
                }
            }
        }
        state.built = Some(Instant::now());
        let config = state.config.clone();
        // It may start a program and wait for it.
        let built = tokio::task::spawn_blocking(move || build(&config)).await;
        let client = built
            .map_err(|error| Fault::Credentials(error.to_string()))?
            .map_err(|error| Fault::Credentials(why_not_built(&error)))?;
        Ok(state.client.insert(client).clone())
    }

    /// The server could not be reached, or did not take our credentials: those of its own or ours
    /// may have changed.
    pub(super) async fn doubt(&self, fault: &Fault) {
        let fresh = match fault {
            fault if fault.is_unauthorized() => FRESH_REFUSED,
            Fault::Unreachable(_) => FRESH,
            _ => return,
        };
        let mut state = self.state.lock().await;
        if state.built.is_none_or(|built| built.elapsed() >= fresh) {
            state.client = None;
        }
    }
}

#[cfg(test)]
#[path = "connect_tests.rs"]
mod tests;
