//! Servers that answer for all pods, and clients whose connections are measured.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use socket2::{Domain, Protocol, Socket, Type};

use super::cluster::{BULK, CLIENT, Cluster, DATAGRAMS, HTTP};
use super::protocol::Sample;
use super::world::World;

/// How long one connection may take: a lost SYN is sent again after a second.
const PATIENCE: Duration = Duration::from_secs(3);
/// Connections of one slice, at most: each leaves an entry in the connection tracking table.
const MAX_CONNECTIONS: usize = 2_000;
/// Payload of a datagram, about that of a DNS query.
const DATAGRAM: [u8; 64] = [0; 64];
const BUFFER: usize = 128 * 1024;

/// What has arrived at the servers.
#[derive(Debug, Default)]
pub(super) struct Arrived {
    datagrams: AtomicU64,
    bytes: AtomicU64,
}

/// Starts the servers. They end with the process.
pub(super) fn serve(world: &World) -> anyhow::Result<Arc<Arrived>> {
    let arrived = Arc::new(Arrived::default());
    let (http, bulk, datagrams) = world.in_peer(|| -> io::Result<_> {
        Ok((listen(HTTP.target)?, listen(BULK.target)?, bind(Type::DGRAM, any(DATAGRAMS.target))?))
    })??;
    let datagrams = UdpSocket::from(datagrams);
    thread::spawn(move || http.incoming().for_each(drop));
    let counted = Arc::clone(&arrived);
    thread::spawn(move || {
        for stream in bulk.incoming().flatten() {
            swallow(stream, &counted.bytes);
        }
    });
    let counted = Arc::clone(&arrived);
    thread::spawn(move || {
        let mut buffer = [0; DATAGRAM.len()];
        // An error is a refusal that an earlier datagram met.
        loop {
            if datagrams.recv(&mut buffer).is_ok() {
                counted.datagrams.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    Ok(arrived)
}

fn swallow(mut stream: TcpStream, bytes: &AtomicU64) {
    let mut buffer = vec![0; BUFFER];
    while let Ok(read @ 1..) = stream.read(&mut buffer) {
        bytes.fetch_add(u64::try_from(read).unwrap_or(0), Ordering::Relaxed);
    }
}

/// Connects to one Service after the other. Called in the peer's namespace.
pub(super) fn connect(cluster: Cluster, turn: &mut u64, time: Duration) -> anyhow::Result<Sample> {
    let mut nanos = Vec::new();
    let start = Instant::now();
    while nanos.is_empty() || (start.elapsed() < time && nanos.len() < MAX_CONNECTIONS) {
        let service = SocketAddrV4::new(Cluster::address(cluster.pick(*turn)), HTTP.number);
        *turn += 1;
        let (_socket, took) = dial(service)?;
        nanos.push(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }
    let amount = u64::try_from(nanos.len()).unwrap_or(u64::MAX);
    Ok(Sample { nanos, time: start.elapsed(), cpu: Duration::ZERO, amount })
}

/// Sends datagrams of one flow as fast as they are taken; those that arrive count. Called in the
/// peer's namespace.
pub(super) fn send_datagrams(
    cluster: Cluster,
    arrived: &Arrived,
    time: Duration,
) -> anyhow::Result<Sample> {
    let service = SocketAddrV4::new(Cluster::address(cluster.probe()), DATAGRAMS.number);
    let socket = bind(Type::DGRAM, client())?;
    socket.connect(&service.into())?;
    let before = arrived.datagrams.load(Ordering::Relaxed);
    let start = Instant::now();
    while start.elapsed() < time {
        // One that finds a full queue is lost, as others are on their way.
        let _lost = socket.send(&DATAGRAM);
    }
    let time = start.elapsed();
    let amount = arrived.datagrams.load(Ordering::Relaxed).saturating_sub(before);
    anyhow::ensure!(amount > 0, "no datagram to {service}/UDP arrived");
    Ok(Sample { time, amount, ..Sample::default() })
}

/// Sends through one connection at full speed. Called in the peer's namespace.
pub(super) fn stream(
    cluster: Cluster,
    arrived: &Arrived,
    time: Duration,
) -> anyhow::Result<Sample> {
    let service = SocketAddrV4::new(Cluster::address(cluster.probe()), BULK.number);
    let mut stream = TcpStream::from(dial(service)?.0);
    stream.set_write_timeout(Some(PATIENCE))?;
    let buffer = vec![0; BUFFER];
    let before = arrived.bytes.load(Ordering::Relaxed);
    let start = Instant::now();
    while start.elapsed() < time {
        stream.write_all(&buffer).with_context(|| format!("sending to {service}/TCP"))?;
    }
    let time = start.elapsed();
    let amount = arrived.bytes.load(Ordering::Relaxed).saturating_sub(before);
    Ok(Sample { time, amount, ..Sample::default() })
}

/// A connection, and how long it took. It is reset in the end, so that nothing waits for its port.
fn dial(service: SocketAddrV4) -> anyhow::Result<(Socket, Duration)> {
    let socket = bind(Type::STREAM, client())?;
    socket.set_linger(Some(Duration::ZERO))?;
    let start = Instant::now();
    socket
        .connect_timeout(&service.into(), PATIENCE)
        .with_context(|| format!("failed to connect to {service}/TCP"))?;
    Ok((socket, start.elapsed()))
}

fn listen(port: u16) -> io::Result<TcpListener> {
    let socket = bind(Type::STREAM, any(port))?;
    socket.listen(1024)?;
    Ok(socket.into())
}

/// A socket for addresses that the namespace has by routing only.
fn bind(kind: Type, address: SocketAddrV4) -> io::Result<Socket> {
    let protocol = if kind == Type::DGRAM { Protocol::UDP } else { Protocol::TCP };
    let socket = Socket::new(Domain::IPV4, kind, Some(protocol))?;
    socket.set_ip_transparent_v4(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

fn any(port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port)
}

fn client() -> SocketAddrV4 {
    SocketAddrV4::new(CLIENT, 0)
}
