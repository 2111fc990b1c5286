//! One connection or datagram from a chosen source, and what became of it.
//!
//! The functions here act in the namespace of the calling thread; [`crate::world::World::at`] runs
//! them at a place of the world.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::echo::new_socket;
use crate::target::{Protocol, Target};

/// Numbers the questions, so that a late answer is not taken for the next one.
static ASKED: AtomicU64 = AtomicU64::new(0);

/// Where a connection starts, within a namespace.
#[derive(Debug, Clone, Copy, Default)]
pub struct Origin {
    /// Source address; chosen by routing if absent.
    pub source: Option<IpAddr>,
    /// Source port; a free one if absent.
    pub port: Option<u16>,
    /// The namespace owns the source address by routing only.
    pub transparent: bool,
}

/// What a server said about a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Answer {
    /// Which server, by the address and port that was reached in the end.
    pub backend: SocketAddr,
    /// The client's address as the server sees it.
    pub seen: SocketAddr,
    /// The client's own address as the client sees it.
    pub own: SocketAddr,
}

/// What became of a try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// A server answered.
    Answered(Answer),
    /// A TCP reset or an ICMP error came back.
    Refused,
    /// Nothing came back in time.
    Silent,
    /// Something else, for instance a connection that broke or an address that cannot be bound.
    Failed(String),
}

/// A connection that stays open.
#[derive(Debug)]
pub struct Flow {
    reader: BufReader<TcpStream>,
}

/// Makes one try of the target's protocol and lets it go again.
pub fn dial(origin: &Origin, target: &Target, limit: Duration) -> Outcome {
    match target.protocol {
        Protocol::Udp => match bind_datagram(origin, target) {
            Ok(socket) => ask(&socket, limit),
            Err(error) => outcome_of(&error),
        },
        Protocol::Tcp | Protocol::Sctp => match connect(origin, target, limit) {
            Ok((_, answer)) => Outcome::Answered(answer),
            Err(error) => outcome_of(&error),
        },
    }
}

/// Connects and reads the server's greeting; the connection stays open as long as the flow lives.
pub fn connect(origin: &Origin, target: &Target, limit: Duration) -> io::Result<(Flow, Answer)> {
    let start = Instant::now();
    let stream = open_stream(origin, target, limit)?;
    let left = limit.saturating_sub(start.elapsed()).max(Duration::from_millis(10));
    stream.set_read_timeout(Some(left))?;
    let mut flow = Flow { reader: BufReader::new(stream) };
    let answer = flow.read()?;
    Ok((flow, answer))
}

/// A connected stream.
pub fn open_stream(origin: &Origin, target: &Target, limit: Duration) -> io::Result<TcpStream> {
    let socket = new_socket(target.protocol, target.ip(), origin.transparent)?;
    if let Some(local) = local(origin, target) {
        socket.bind(&local.into())?;
    }
    // Gone without trace when closed, so that thousands of tries leave no ports waiting.
    socket.set_linger(Some(Duration::ZERO))?;
    socket.connect_timeout(&target.address.into(), limit)?;
    Ok(socket.into())
}

impl Flow {
    /// Sends a line over the connection and reads the answer.
    pub fn speak(&mut self, limit: Duration) -> Outcome {
        let spoken = self.reader.get_ref().set_read_timeout(Some(limit)).and_then(|()| {
            self.reader.get_mut().write_all(b"\n")?;
            self.read()
        });
        match spoken {
            Ok(answer) => Outcome::Answered(answer),
            Err(error) => outcome_of(&error),
        }
    }

    fn read(&mut self) -> io::Result<Answer> {
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        parse(&line, self.reader.get_ref().local_addr()?)
    }
}

/// A datagram socket bound to the origin and connected to the target.
pub fn bind_datagram(origin: &Origin, target: &Target) -> io::Result<UdpSocket> {
    let socket = new_socket(Protocol::Udp, target.ip(), origin.transparent)?;
    if let Some(local) = local(origin, target) {
        socket.bind(&local.into())?;
    }
    socket.connect(&target.address.into())?;
    Ok(socket.into())
}

/// Sends one datagram over a connected socket and waits for its answer.
pub fn ask(socket: &UdpSocket, limit: Duration) -> Outcome {
    try_ask(socket, limit).unwrap_or_else(|error| outcome_of(&error))
}

fn try_ask(socket: &UdpSocket, limit: Duration) -> io::Result<Outcome> {
    let start = Instant::now();
    // Answers and errors of earlier datagrams on this socket are none of this one.
    let _ = socket.take_error();
    let token = format!("#{}", ASKED.fetch_add(1, Ordering::Relaxed));
    match socket.send(token.as_bytes()) {
        // A filter of the sender's own host took it; a refusal, if any, is read like all others.
        Err(error) if error.raw_os_error() == Some(Errno::EPERM as i32) => {}
        sent => drop(sent?),
    }
    loop {
        let left = limit.saturating_sub(start.elapsed());
        if left.is_zero() {
            return Ok(Outcome::Silent);
        }
        socket.set_read_timeout(Some(left))?;
        let mut buffer = [0; 512];
        let length = socket.recv(&mut buffer)?;
        let line = String::from_utf8_lossy(&buffer[..length]);
        if let Some(line) = line.strip_suffix(&token) {
            return Ok(Outcome::Answered(parse(line, socket.local_addr()?)?));
        }
    }
}

fn local(origin: &Origin, target: &Target) -> Option<SocketAddr> {
    let any: IpAddr = match target.ip() {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let bound = origin.source.is_some() || origin.port.is_some();
    bound.then(|| SocketAddr::new(origin.source.unwrap_or(any), origin.port.unwrap_or(0)))
}

fn parse(line: &str, own: SocketAddr) -> io::Result<Answer> {
    let mut words = line.split_whitespace().map(str::parse);
    match (words.next(), words.next()) {
        (Some(Ok(backend)), Some(Ok(seen))) => Ok(Answer { backend, seen, own }),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, format!("not an answer: {line:?}"))),
    }
}

/// What an error of a socket says about the network.
pub fn outcome_of(error: &io::Error) -> Outcome {
    let errno = error.raw_os_error().map(Errno::from_raw);
    match (errno, error.kind()) {
        // EACCES is how "administratively prohibited" arrives.
        (Some(Errno::ECONNREFUSED | Errno::EHOSTUNREACH | Errno::EACCES), _) => Outcome::Refused,
        (_, io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock) => Outcome::Silent,
        _ => Outcome::Failed(error.to_string()),
    }
}
