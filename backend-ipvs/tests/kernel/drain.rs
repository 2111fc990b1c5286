//! Connections outlive the endpoint, frontend or Service they began with.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use backend_ipvs::{DEVICE, IpvsConfig};
use proxy_core::address::IpFamily;
use proxy_core::names::Protocol;
use proxy_core::resolved::ResolvedService;
use testbed::uml::GuestTest;
use testbed::wait_until;

use crate::support::{Rig, address, config, listed, output, pool, service, test};

pub(crate) fn tests() -> Vec<GuestTest> {
    vec![
        test("a_removed_endpoint_drains", a_removed_endpoint_drains),
        test("an_endpoint_that_returns_keeps_its_connections", returns),
        test("a_deleted_service_drains", a_deleted_service_drains),
        test("the_limit_ends_it", the_limit_ends_it),
        test("datagrams_do_not_wait", datagrams_do_not_wait),
    ]
}

const FAMILY: IpFamily = IpFamily::V4;

/// A connection through a virtual server, both ends.
struct Connection {
    client: TcpStream,
    server: TcpStream,
}

impl Connection {
    /// Over the Service's only endpoint, which listens here.
    fn through(service: &ResolvedService) -> Result<Self> {
        let endpoint = address(FAMILY, 10, 1);
        output("ip", &["address", "replace", &format!("{endpoint}/32"), "dev", "lo"])?;
        let listener = TcpListener::bind((endpoint, 8080))?;
        let client =
            TcpStream::connect_timeout(&(service.cluster_ip, 80).into(), Duration::from_secs(10))?;
        let (server, _) = listener.accept()?;
        server.set_read_timeout(Some(Duration::from_secs(10)))?;
        Ok(Self { client, server })
    }

    fn speak(&mut self) -> Result<()> {
        self.client.write_all(b"x").context("sending")?;
        self.server.read_exact(&mut [0]).context("receiving")
    }
}

/// The Service with the endpoint that listens, and the same Service with another one.
fn before_and_after() -> (ResolvedService, ResolvedService) {
    let before = service(FAMILY, 1, Protocol::Tcp, &[1]);
    let mut after = before.clone();
    after.ports[0].cluster = pool(FAMILY, &[3], 8080);
    (before, after)
}

fn started(config: &IpvsConfig, service: &ResolvedService) -> Result<(Rig, Connection)> {
    let mut rig = Rig::open(config)?;
    rig.want(std::slice::from_ref(service));
    rig.sync()?;
    let mut connection = Connection::through(service)?;
    connection.speak()?;
    Ok((rig, connection))
}

/// Weight of the real server that the connection goes to, if it is there.
fn weight() -> Result<Option<u32>> {
    let real = format!("{}:8080", address(FAMILY, 10, 1));
    let list = listed()?;
    let line = list.lines().find(|line| line.contains(&real));
    line.and_then(|line| line.split_whitespace().nth(3)).map(|it| Ok(it.parse()?)).transpose()
}

/// Waits until the kernel has forgotten the connection and the table has seen it.
fn wait_for_end(rig: &mut Rig) -> Result<()> {
    let gone = || rig.tend().is_ok() && weight().is_ok_and(|weight| weight.is_none());
    wait_until(Duration::from_secs(60), "the real server goes", gone)
}

/// Known failure 47, and 16: a new process neither disturbs it nor takes it up.
fn a_removed_endpoint_drains() -> Result<()> {
    let (before, after) = before_and_after();
    let (mut rig, mut connection) = started(&config(FAMILY), &before)?;
    rig.want(std::slice::from_ref(&after));
    rig.sync()?;
    ensure!(weight()? == Some(0), "{}", listed()?);
    connection.speak()?;
    rig.tend()?;
    connection.speak()?;
    ensure!(rig.compare()? == 0, "what drains was taken for damage");
    let mut rig = Rig::open(&config(FAMILY))?;
    rig.want(std::slice::from_ref(&after));
    let report = rig.sync()?;
    ensure!(report.changed_objects == 0, "{report:?}");
    ensure!(listed()?.contains(&format!("{}:8080", address(FAMILY, 10, 3))), "{}", listed()?);
    connection.speak()?;
    close(connection)?;
    wait_for_end(&mut rig)
}

/// A connection that ends with a reset is forgotten after ten seconds, not after two minutes.
fn close(connection: Connection) -> Result<()> {
    let socket = socket2::Socket::from(connection.client);
    socket.set_linger(Some(Duration::ZERO))?;
    Ok(())
}

fn returns() -> Result<()> {
    let (before, after) = before_and_after();
    let (mut rig, mut connection) = started(&config(FAMILY), &before)?;
    rig.want(std::slice::from_ref(&after));
    rig.sync()?;
    rig.want(std::slice::from_ref(&before));
    rig.sync()?;
    ensure!(weight()? == Some(1), "{}", listed()?);
    connection.speak()?;
    rig.tend()?;
    ensure!(rig.compare()? == 0 && weight()? == Some(1), "{}", listed()?);
    connection.speak()
}

/// Known failure 48.
fn a_deleted_service_drains() -> Result<()> {
    let (before, _) = before_and_after();
    let (mut rig, mut connection) = started(&config(FAMILY), &before)?;
    rig.forget(&before);
    rig.sync()?;
    connection.speak()?;
    let dial = || {
        let target = (before.cluster_ip, 80).into();
        TcpStream::connect_timeout(&target, Duration::from_secs(3))
    };
    let refused = dial().map(drop).map_err(|error| error.kind());
    ensure!(refused == Err(std::io::ErrorKind::ConnectionRefused), "{refused:?}");
    ensure!(rig.compare()? == 0, "what drains was taken for damage");
    // A new process knows no more than the kernel.
    let mut rig = Rig::open(&config(FAMILY))?;
    let report = rig.sync()?;
    ensure!(report.changed_objects == 0, "{report:?}");
    connection.speak()?;
    close(connection)?;
    wait_for_end(&mut rig)?;
    ensure!(!listed()?.contains(&before.cluster_ip.to_string()), "{}", listed()?);
    let bound = output("ip", &["-o", "address", "show", "dev", DEVICE])?;
    ensure!(bound.is_empty(), "the address is kept: {bound}");
    ensure!(rig.compare()? == 0, "something is left");
    Ok(())
}

/// Known failure 49.
fn the_limit_ends_it() -> Result<()> {
    let (before, after) = before_and_after();
    let config = IpvsConfig { drain_limit: Duration::ZERO, ..config(FAMILY) };
    let (mut rig, _connection) = started(&config, &before)?;
    rig.want(std::slice::from_ref(&after));
    rig.sync()?;
    ensure!(weight()?.is_none(), "{}", listed()?);
    ensure!(rig.compare()? == 0, "something is left");
    Ok(())
}

/// Known failure 49: flows find another server at once.
fn datagrams_do_not_wait() -> Result<()> {
    for protocol in [Protocol::Udp, Protocol::Sctp] {
        let before = service(FAMILY, 1, protocol, &[1, 2]);
        let mut rig = Rig::open(&config(FAMILY))?;
        rig.want(std::slice::from_ref(&before));
        rig.sync()?;
        rig.want(&[service(FAMILY, 1, protocol, &[2])]);
        rig.sync()?;
        ensure!(weight()?.is_none(), "{}", listed()?);
        rig.clear()?;
    }
    Ok(())
}
