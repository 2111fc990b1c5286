//! Notifications: hearing what others change.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::net::{RecvFlags, SocketFlags};

use super::codec::Messages;
use super::error::NetlinkError;
use super::socket::{self, Protocol, READ_BUFFER, Read};
use crate::sys;

/// Wanted receive buffer: a burst of notifications while the listener is busy elsewhere.
const RECEIVE_BUFFER: usize = 4 << 20;
/// Where `nlmsg_pid` is in `struct nlmsghdr`.
const PORT_OFFSET: u32 = 12;

/// What a listener heard.
#[derive(Debug)]
pub enum Event<'a> {
    /// Notifications.
    Messages(Messages<'a>),
    /// Notifications were lost: anything may have changed.
    Overrun,
}

/// A non-blocking socket that receives notifications of multicast groups.
///
/// It implements [`AsFd`] and [`AsRawFd`], so it fits any reactor; with the feature `tokio` there
/// is `AsyncListener`.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    port: u32,
    buffer: Vec<u8>,
}

impl Listener {
    /// Opens a socket that is a member of these multicast groups.
    pub fn open(protocol: Protocol, groups: &[u32]) -> Result<Self, NetlinkError> {
        let fd = socket::open(protocol, SocketFlags::NONBLOCK)?;
        socket::enlarge_receive_buffer(&fd, RECEIVE_BUFFER);
        let port = socket::port_of(&fd, protocol)?;
        let listener = Self { fd, port, buffer: vec![0; READ_BUFFER] };
        for group in groups {
            listener.join(*group)?;
        }
        Ok(listener)
    }

    /// The port id of this socket.
    pub const fn port(&self) -> u32 {
        self.port
    }

    /// Joins a multicast group, given by number.
    pub fn join(&self, group: u32) -> Result<(), NetlinkError> {
        sys::set_netlink_option(self.fd.as_fd(), libc::NETLINK_ADD_MEMBERSHIP, group)
            .map_err(|error| socket::option_error("NETLINK_ADD_MEMBERSHIP", error))
    }

    /// Leaves a multicast group.
    pub fn leave(&self, group: u32) -> Result<(), NetlinkError> {
        sys::set_netlink_option(self.fd.as_fd(), libc::NETLINK_DROP_MEMBERSHIP, group)
            .map_err(|error| socket::option_error("NETLINK_DROP_MEMBERSHIP", error))
    }

    /// Does not hear what these ports cause; replaces the list given before.
    ///
    /// The kernel drops a datagram whose first message carries one of the port ids, so own
    /// changes cost the listener nothing. Notifications of one transaction share one port id.
    pub fn ignore_ports(&self, ports: &[u32]) -> Result<(), NetlinkError> {
        ignore(self.fd.as_fd(), ports)
    }

    /// A handle by which somebody else than the one who listens says what is not heard.
    pub fn port_filter(&self) -> Result<PortFilter, NetlinkError> {
        let fd = self.fd.try_clone();
        fd.map(|fd| PortFilter { fd }).map_err(NetlinkError::Receive)
    }

    /// The next event, or `None` if there is none now.
    pub fn next_event(&mut self) -> Result<Option<Event<'_>>, NetlinkError> {
        let read = self.read()?;
        Ok(self.event(read))
    }

    /// Discards everything that is queued; returns whether there was anything.
    pub fn drain(&mut self) -> Result<bool, NetlinkError> {
        // Bounded, so that a flood of changes cannot hold the caller for ever: what is left makes
        // the socket readable again.
        const MAX_READS: usize = 4096;
        for reads in 0..MAX_READS {
            if self.read()? == Read::Empty {
                return Ok(reads > 0);
            }
        }
        Ok(true)
    }

    fn read(&mut self) -> Result<Read, NetlinkError> {
        match socket::read(self.fd.as_fd(), &mut self.buffer, RecvFlags::DONTWAIT) {
            // A notification nobody can read is a lost one.
            Err(NetlinkError::Truncated { .. }) => Ok(Read::Overrun),
            result => result,
        }
    }

    fn event(&self, read: Read) -> Option<Event<'_>> {
        match read {
            Read::Data(len) => {
                Some(Event::Messages(Messages::new(self.buffer.get(..len).unwrap_or_default())))
            }
            Read::Overrun => Some(Event::Overrun),
            Read::Empty => None,
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// Says what a [`Listener`] does not hear. The socket stays open as long as this exists.
#[derive(Debug)]
pub struct PortFilter {
    fd: OwnedFd,
}

impl PortFilter {
    /// See [`Listener::ignore_ports`]. What is queued already stays.
    pub fn ignore_ports(&self, ports: &[u32]) -> Result<(), NetlinkError> {
        ignore(self.fd.as_fd(), ports)
    }
}

fn ignore(fd: BorrowedFd<'_>, ports: &[u32]) -> Result<(), NetlinkError> {
    sys::attach_filter(fd, &mut ignore_program(ports))
        .map_err(|error| socket::option_error("SO_ATTACH_FILTER", error))
}

/// A classic BPF program (`linux/filter.h`) that drops datagrams with one of these port ids.
fn ignore_program(ports: &[u32]) -> Vec<libc::sock_filter> {
    const LOAD_WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const JUMP_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    const DROP: u32 = 0;
    const KEEP: u32 = u32::MAX;
    let instruction = |code: u32, k: u32, skip_if_false: u8| libc::sock_filter {
        code: u16::try_from(code).unwrap_or(0),
        jt: 0,
        jf: skip_if_false,
        k,
    };
    let mut program = vec![instruction(LOAD_WORD, PORT_OFFSET, 0)];
    for port in ports {
        // A word load converts from network byte order, but the field is in host byte order.
        let loaded = u32::from_be_bytes(port.to_ne_bytes());
        program.push(instruction(JUMP_EQUAL, loaded, 1));
        program.push(instruction(RETURN, DROP, 0));
    }
    program.push(instruction(RETURN, KEEP, 0));
    program
}

/// A [`Listener`] that waits without blocking the thread.
#[cfg(feature = "tokio")]
#[derive(Debug)]
pub struct AsyncListener {
    fd: tokio::io::unix::AsyncFd<Listener>,
}

#[cfg(feature = "tokio")]
impl AsyncListener {
    /// Registers a listener with the current tokio reactor.
    ///
    /// Must be called inside a runtime with I/O enabled.
    pub fn new(listener: Listener) -> Result<Self, NetlinkError> {
        sys::watch(listener).map(|fd| Self { fd }).map_err(NetlinkError::Receive)
    }

    /// The listener, to change its groups or filter.
    ///
    /// There is no mutable access: the reactor relies on the descriptor staying the same.
    pub fn get_ref(&self) -> &Listener {
        self.fd.get_ref()
    }

    /// Waits for the next event. Safe to cancel: nothing is lost.
    pub async fn next_event(&mut self) -> Result<Event<'_>, NetlinkError> {
        let read = loop {
            let mut guard = self.fd.readable_mut().await.map_err(NetlinkError::Receive)?;
            match guard.get_inner_mut().read()? {
                Read::Empty => guard.clear_ready(),
                read => break read,
            }
        };
        // The loop ends with data or an overrun only.
        Ok(self.fd.get_ref().event(read).unwrap_or(Event::Overrun))
    }

    /// Waits until something was heard and discards all that is queued, so that a burst counts
    /// once. Safe to cancel.
    pub async fn changed(&mut self) -> Result<(), NetlinkError> {
        loop {
            let mut guard = self.fd.readable_mut().await.map_err(NetlinkError::Receive)?;
            if guard.get_inner_mut().drain()? {
                return Ok(());
            }
            guard.clear_ready();
        }
    }
}
