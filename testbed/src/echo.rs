//! Servers that answer under any address of their namespace and tell who reached whom.
//!
//! An answer is one line: `LOCAL PEER`, the address and port that was reached and the client's as
//! the server sees it. A stream gets a line when it is accepted and one more for each line sent; a
//! datagram gets a line with its own text appended, so that a client can tell answers apart.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use nix::cmsg_space;
use nix::libc::{in_addr, in_pktinfo, in6_addr, in6_pktinfo};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, sendmsg, setsockopt,
    sockopt,
};
use socket2::{Domain, Socket, Type};

use crate::netns::Netns;
use crate::target::Protocol;

/// Connections that wait to be accepted; a burst of a whole check fits.
const BACKLOG: i32 = 4096;

/// What a server listens on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Listen {
    /// Protocol.
    pub protocol: Protocol,
    /// One address, or every address that the namespace takes in, in both families.
    pub address: Option<IpAddr>,
    /// Port.
    pub port: u16,
}

/// A running server; it ends when dropped.
#[derive(Debug)]
pub struct Responder {
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Responder {
    /// Listens in `netns`; `transparent` for namespaces that own addresses by routing only.
    pub fn start(netns: &Netns, listens: &[Listen], transparent: bool) -> Result<Self> {
        let sockets = netns.run(|| Sockets::open(listens, transparent))?;
        let (stop, stopped) = UnixStream::pair()?;
        let thread = netns.spawn_thread(move || sockets.serve(&stopped));
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        // The server's end of the pair becomes readable, which ends its loop.
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Everything one server thread waits on.
#[derive(Default)]
struct Sockets {
    listeners: Vec<Socket>,
    datagrams: Vec<Socket>,
    streams: Vec<Stream>,
}

impl Sockets {
    fn open(listens: &[Listen], transparent: bool) -> Result<Self> {
        let mut sockets = Self::default();
        for listen in listens {
            let any = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
            let addresses = listen.address.as_ref().map_or(&any[..], std::slice::from_ref);
            for address in addresses {
                let address = SocketAddr::new(*address, listen.port);
                let socket = open(listen.protocol, address, transparent)
                    .with_context(|| format!("listening on {address}/{}", listen.protocol))?;
                match listen.protocol {
                    Protocol::Udp => sockets.datagrams.push(socket),
                    Protocol::Tcp | Protocol::Sctp => sockets.listeners.push(socket),
                }
            }
        }
        Ok(sockets)
    }

    fn serve(mut self, stopped: &UnixStream) {
        loop {
            let ready = match self.wait(stopped) {
                Ok(ready) => ready,
                Err(nix::Error::EINTR) => continue,
                Err(_) => return,
            };
            let (stop, ready) = ready.split_at(1);
            if stop[0] {
                return;
            }
            let (listeners, ready) = ready.split_at(self.listeners.len());
            let (datagrams, streams) = ready.split_at(self.datagrams.len());
            let mut of_streams = streams.iter();
            self.streams.retain_mut(|stream| of_streams.next() != Some(&true) || stream.answer());
            for (socket, _) in self.datagrams.iter().zip(datagrams).filter(|(_, ready)| **ready) {
                while answer_datagram(socket).is_ok() {}
            }
            for (socket, _) in self.listeners.iter().zip(listeners).filter(|(_, ready)| **ready) {
                while let Ok((accepted, _)) = socket.accept() {
                    self.streams.extend(Stream::greet(accepted));
                }
            }
        }
    }

    /// Waits for input and says, in the order stop, listeners, datagrams, streams, who has some.
    fn wait(&self, stopped: &UnixStream) -> nix::Result<Vec<bool>> {
        let watch = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds = vec![watch(stopped.as_fd())];
        fds.extend(self.listeners.iter().map(|socket| watch(socket.as_fd())));
        fds.extend(self.datagrams.iter().map(|socket| watch(socket.as_fd())));
        fds.extend(self.streams.iter().map(|stream| watch(stream.socket.as_fd())));
        poll(&mut fds, PollTimeout::NONE)?;
        Ok(fds.iter().map(|fd| fd.any().unwrap_or(true)).collect())
    }
}

/// An accepted connection.
struct Stream {
    socket: TcpStream,
    line: String,
}

impl Stream {
    fn greet(accepted: Socket) -> Option<Self> {
        accepted.set_nonblocking(true).ok()?;
        let socket = TcpStream::from(accepted);
        let line = format!("{} {}\n", socket.local_addr().ok()?, socket.peer_addr().ok()?);
        let stream = Self { socket, line };
        stream.say().then_some(stream)
    }

    /// Answers each line that came in; false once the connection is over.
    fn answer(&mut self) -> bool {
        let mut buffer = [0; 512];
        match self.socket.read(&mut buffer) {
            Ok(0) => false,
            Ok(length) => buffer[..length].iter().filter(|b| **b == b'\n').all(|_| self.say()),
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        }
    }

    fn say(&self) -> bool {
        (&self.socket).write_all(self.line.as_bytes()).is_ok()
    }
}

fn open(protocol: Protocol, address: SocketAddr, transparent: bool) -> Result<Socket> {
    let socket = new_socket(protocol, address.ip(), transparent)?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    match (protocol, address) {
        (Protocol::Udp, SocketAddr::V4(_)) => setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?,
        (Protocol::Udp, SocketAddr::V6(_)) => {
            setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)?;
        }
        _ => socket.listen(BACKLOG)?,
    }
    Ok(socket)
}

/// An unbound socket of a protocol and family.
///
/// A `transparent` one may use addresses that its namespace owns by routing only.
pub(crate) fn new_socket(
    protocol: Protocol,
    family_of: IpAddr,
    transparent: bool,
) -> io::Result<Socket> {
    let domain = if family_of.is_ipv6() { Domain::IPV6 } else { Domain::IPV4 };
    let (kind, number) = match protocol {
        Protocol::Tcp => (Type::STREAM, socket2::Protocol::TCP),
        Protocol::Udp => (Type::DGRAM, socket2::Protocol::UDP),
        Protocol::Sctp => (Type::STREAM, socket2::Protocol::SCTP),
    };
    let socket = Socket::new(domain, kind, Some(number))?;
    match (transparent, family_of) {
        (true, IpAddr::V4(_)) => socket.set_ip_transparent_v4(true)?,
        (true, IpAddr::V6(_)) => socket.set_ip_transparent_v6(true)?,
        (false, _) => {}
    }
    Ok(socket)
}

/// Receives one datagram and answers it from the address it was sent to.
fn answer_datagram(socket: &Socket) -> io::Result<()> {
    let mut text = [0; 512];
    let mut control = cmsg_space!(in6_pktinfo);
    let port = socket.local_addr()?.as_socket().map_or(0, |address| address.port());
    let (length, peer, local) = {
        let mut buffers = [io::IoSliceMut::new(&mut text)];
        let fd = socket.as_raw_fd();
        let message =
            recvmsg::<SockaddrStorage>(fd, &mut buffers, Some(&mut control), MsgFlags::empty())?;
        let local = message.cmsgs()?.find_map(|cmsg| destination(&cmsg));
        (message.bytes, message.address, local)
    };
    let (Some(peer), Some(local)) = (peer, local) else { return Ok(()) };
    let said = String::from_utf8_lossy(&text[..length]);
    let line = format!("{} {} {said}", SocketAddr::new(local, port), show(&peer));
    // The client may be gone already; that is its business.
    let _ = send_from(socket.as_fd(), local, &peer, line.as_bytes());
    Ok(())
}

fn destination(cmsg: &ControlMessageOwned) -> Option<IpAddr> {
    match cmsg {
        ControlMessageOwned::Ipv4PacketInfo(info) => {
            Some(Ipv4Addr::from(u32::from_be(info.ipi_addr.s_addr)).into())
        }
        ControlMessageOwned::Ipv6PacketInfo(info) => {
            Some(Ipv6Addr::from(info.ipi6_addr.s6_addr).into())
        }
        _ => None,
    }
}

fn send_from(
    socket: BorrowedFd<'_>,
    local: IpAddr,
    peer: &SockaddrStorage,
    text: &[u8],
) -> nix::Result<usize> {
    let buffers = [io::IoSlice::new(text)];
    let send = |from| sendmsg(socket.as_raw_fd(), &buffers, &[from], MsgFlags::empty(), Some(peer));
    match local {
        IpAddr::V4(local) => send(ControlMessage::Ipv4PacketInfo(&in_pktinfo {
            ipi_ifindex: 0,
            ipi_spec_dst: in_addr { s_addr: u32::from(local).to_be() },
            ipi_addr: in_addr { s_addr: 0 },
        })),
        IpAddr::V6(local) => send(ControlMessage::Ipv6PacketInfo(&in6_pktinfo {
            ipi6_addr: in6_addr { s6_addr: local.octets() },
            ipi6_ifindex: 0,
        })),
    }
}

fn show(peer: &SockaddrStorage) -> String {
    match (peer.as_sockaddr_in(), peer.as_sockaddr_in6()) {
        (Some(v4), _) => SocketAddr::new(v4.ip().into(), v4.port()).to_string(),
        (_, Some(v6)) => SocketAddr::new(v6.ip().into(), v6.port()).to_string(),
        (None, None) => "unknown".to_owned(),
    }
}
