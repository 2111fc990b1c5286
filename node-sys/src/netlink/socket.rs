//! Request sockets: ask, and know when the answer is complete.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::codec::{CodecError, Message, MessageBuffer, Messages, TYPE_NOOP};
use super::error::{KernelError, NetlinkError};
use super::flags;
use crate::sys;

/// A netlink protocol (`NETLINK_*` in `linux/netlink.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Protocol(i32);

impl Protocol {
    /// `NETLINK_ROUTE`: links, addresses, routes.
    pub const ROUTE: Self = Self(libc::NETLINK_ROUTE);
    /// `NETLINK_NETFILTER`: nf_tables, conntrack, ipset.
    pub const NETFILTER: Self = Self(libc::NETLINK_NETFILTER);
    /// `NETLINK_GENERIC`: generic netlink families, such as IPVS.
    pub const GENERIC: Self = Self(libc::NETLINK_GENERIC);

    /// Any other protocol, by number.
    pub const fn new(number: i32) -> Self {
        Self(number)
    }

    /// Its number.
    pub const fn number(self) -> i32 {
        self.0
    }

    fn to_rustix(self) -> Option<rustix::net::Protocol> {
        // Zero (`NETLINK_ROUTE`) is the default protocol, which rustix spells as `None`.
        let number = u32::try_from(self.0).ok().and_then(std::num::NonZeroU32::new)?;
        Some(rustix::net::Protocol::from_raw(number))
    }
}

/// Wanted send buffer. It only bounds one send (the memory is not reserved), so it is chosen far
/// above the largest transaction: 100,000 set elements take about 8 MiB.
const SEND_BUFFER: usize = 64 << 20;
/// Wanted receive buffer: room for the errors of thousands of refused messages.
const RECEIVE_BUFFER: usize = 8 << 20;
/// Size of one read. The kernel builds dump answers of at most 32 KiB
/// (`netlink_recvmsg` in `net/netlink/af_netlink.c`), so more would only be touched in vain.
pub(super) const READ_BUFFER: usize = 64 << 10;
/// The kernel answers while it handles the send, so waiting means that the answer was lost.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// `netlink_sendmsg` takes at most the send buffer size less 32 bytes in one send.
const SEND_OVERHEAD: usize = 32;
/// Upper bound for reads that discard left-over answers: a dump of ten million entries.
const MAX_DRAIN: usize = 1 << 18;
/// How often a lost end mark is asked for again.
const MAX_BARRIERS: usize = 8;
/// Sequence numbers of sockets have this bit, those inside batches do not.
const SOCKET_SEQUENCE: u32 = 1 << 31;

/// What one read gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Read {
    /// So many bytes from the kernel.
    Data(usize),
    /// Nothing within the timeout, or nothing yet.
    Empty,
    /// The kernel dropped messages before this point.
    Overrun,
}

/// A netlink socket for requests.
///
/// All methods block, but only for as long as the kernel works on the request. A socket belongs
/// to the network namespace of the thread that opened it, for good.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    port: u32,
    sequence: u32,
    max_send: usize,
    buffer: Vec<u8>,
    /// Whether answers to an abandoned request may still be queued.
    dirty: bool,
}

impl Socket {
    /// Opens and binds a socket with big buffers and extended error reports.
    pub fn open(protocol: Protocol) -> Result<Self, NetlinkError> {
        Self::open_with_buffer(protocol, READ_BUFFER)
    }

    /// Like [`Socket::open`], with a read buffer of another size (at least 32 KiB, else dump
    /// answers may be truncated).
    pub fn open_with_buffer(protocol: Protocol, read_buffer: usize) -> Result<Self, NetlinkError> {
        let fd = open(protocol, SocketFlags::CLOEXEC)?;
        // Answers to dumps are only made as they are read, so this is about error reports.
        enlarge_receive_buffer(&fd, RECEIVE_BUFFER);
        if sockopt::set_socket_send_buffer_size_force(&fd, SEND_BUFFER).is_err() {
            // Without the privilege the kernel caps the value at net.core.wmem_max.
            let _capped = sockopt::set_socket_send_buffer_size(&fd, SEND_BUFFER);
        }
        let size = sockopt::socket_send_buffer_size(&fd)
            .map_err(|errno| option_error("SO_SNDBUF", errno.into()))?;
        sockopt::set_socket_timeout(&fd, Timeout::Recv, Some(ANSWER_TIMEOUT))
            .map_err(|errno| option_error("SO_RCVTIMEO", errno.into()))?;
        let port = port_of(&fd, protocol)?;
        Ok(Self {
            fd,
            port,
            sequence: SOCKET_SEQUENCE,
            max_send: size.saturating_sub(SEND_OVERHEAD),
            buffer: vec![0; read_buffer],
            dirty: false,
        })
    }

    /// The port id the kernel gave this socket; notifications it causes carry it.
    pub const fn port(&self) -> u32 {
        self.port
    }

    /// How many bytes one send, and so one batch, may carry.
    ///
    /// With `CAP_NET_ADMIN` in the initial user namespace 128 MiB, without it twice
    /// `net.core.wmem_max`.
    pub const fn max_send(&self) -> usize {
        self.max_send
    }

    /// A fresh sequence number for a request.
    ///
    /// They have the highest bit set, so that they never equal those inside a
    /// [`Batch`](super::Batch).
    pub const fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1) | SOCKET_SEQUENCE;
        self.sequence
    }

    /// Sends a request with [`flags::ACK`] and waits for its result.
    pub fn request(&mut self, request: &MessageBuffer) -> Result<(), NetlinkError> {
        self.query(request, |_| {})
    }

    /// Like [`Socket::request`], for a request that is answered with messages before its result
    /// (getting one object, or [`flags::ECHO`]).
    pub fn query(
        &mut self,
        request: &MessageBuffer,
        mut each: impl FnMut(&Message<'_>),
    ) -> Result<(), NetlinkError> {
        let sequence = self.start(request, flags::ACK, "NLM_F_ACK")?;
        loop {
            for message in self.read_answer(sequence)? {
                if message.sequence != sequence {
                    continue;
                }
                if let Some(result) = KernelError::read(&message) {
                    self.dirty = false;
                    return Ok(result?);
                }
                each(&message);
            }
        }
    }

    /// Sends several requests at once, each with [`flags::ACK`], and hands every result to
    /// `each` with the sequence number of its request.
    ///
    /// The requests are independent: one that fails does not stop the others. Without the
    /// privilege, though, nfnetlink answers only the first. Keep the number per call in the
    /// hundreds, since all results must fit the receive buffer.
    pub fn request_each(
        &mut self,
        requests: &MessageBuffer,
        mut each: impl FnMut(u32, Result<(), KernelError>),
    ) -> Result<(), NetlinkError> {
        if requests.is_empty() {
            return Ok(());
        }
        let (bytes, _) = check(requests, flags::ACK, "NLM_F_ACK")?;
        let (lost, _) = self.send_and_collect(bytes, |message| {
            if let Some(result) = KernelError::read(message) {
                each(message.sequence, result);
            }
        })?;
        if lost { Err(NetlinkError::Overrun) } else { Ok(()) }
    }

    /// Sends a request with [`flags::DUMP`] and hands every message of the answer to `each`.
    ///
    /// Memory stays bounded: the kernel continues the dump as answers are read. If the table
    /// changed meanwhile, all messages are still handed out, and the result is
    /// [`NetlinkError::Interrupted`]; see [`retry_interrupted`].
    pub fn dump(
        &mut self,
        request: &MessageBuffer,
        mut each: impl FnMut(&Message<'_>),
    ) -> Result<(), NetlinkError> {
        let sequence = self.start(request, flags::DUMP, "NLM_F_DUMP")?;
        let mut interrupted = false;
        loop {
            for message in self.read_answer(sequence)? {
                if message.sequence != sequence {
                    continue;
                }
                let Some(result) = KernelError::read(&message) else {
                    interrupted |= message.flags & flags::DUMP_INTERRUPTED != 0;
                    each(&message);
                    continue;
                };
                interrupted |= message.flags & flags::DUMP_INTERRUPTED != 0;
                self.dirty = false;
                result?;
                return if interrupted { Err(NetlinkError::Interrupted) } else { Ok(()) };
            }
        }
    }

    /// Sends finished messages as they are. For requests prefer the methods that collect answers.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), NetlinkError> {
        if bytes.len() > self.max_send {
            return Err(NetlinkError::TooBig { len: bytes.len(), max: self.max_send });
        }
        retry_on_intr(|| rustix::net::send(&self.fd, bytes, SendFlags::empty()))
            .map_err(|errno| NetlinkError::Send(errno.into()))?;
        Ok(())
    }

    /// Receives one datagram from the kernel into `buffer`; `None` if none came in time.
    pub fn receive(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, NetlinkError> {
        match read(self.fd.as_fd(), buffer, RecvFlags::empty())? {
            Read::Data(len) => Ok(Some(len)),
            Read::Empty => Ok(None),
            Read::Overrun => Err(NetlinkError::Overrun),
        }
    }

    /// Sends `bytes` and hands every message that the kernel answers to `each`, including results.
    ///
    /// The end is certain on every kernel: netlink handles a send before it returns, answers are
    /// queued in order, and a no-op that asks for an acknowledgement follows as a barrier. (An
    /// acknowledgement of the batch's own begin or end exists only since 6.10, and crashes some
    /// 6.10 kernels.) Returns whether answers were lost, and what the kernel said to the barrier.
    pub(super) fn send_and_collect(
        &mut self,
        bytes: &[u8],
        mut each: impl FnMut(&Message<'_>),
    ) -> Result<(bool, Result<(), KernelError>), NetlinkError> {
        self.settle()?;
        self.send(bytes)?;
        self.dirty = true;
        let mut lost = false;
        for _ in 0..MAX_BARRIERS {
            let barrier = self.send_barrier()?;
            if let Some(result) = self.collect_until(barrier, &mut each)? {
                self.dirty = false;
                return Ok((lost, result));
            }
            // After an overrun the queue accepts nothing before it is empty again, so the
            // barrier's answer is lost as well: read what is left and set a new one.
            lost = true;
            self.drain(&mut each)?;
        }
        Err(NetlinkError::Overrun)
    }

    /// Hands out messages up to the answer to the barrier; `None` if the queue overran.
    fn collect_until(
        &mut self,
        barrier: u32,
        each: &mut impl FnMut(&Message<'_>),
    ) -> Result<Option<Result<(), KernelError>>, NetlinkError> {
        loop {
            let messages = match self.read_answer(barrier) {
                Err(NetlinkError::Overrun) => return Ok(None),
                result => result?,
            };
            for message in messages {
                match KernelError::read(&message) {
                    Some(result) if message.sequence == barrier => return Ok(Some(result)),
                    _ => each(&message),
                }
            }
        }
    }

    fn send_barrier(&mut self) -> Result<u32, NetlinkError> {
        let sequence = self.next_sequence();
        let mut barrier = MessageBuffer::with_capacity(super::codec::HEADER_LEN);
        barrier.begin(TYPE_NOOP, flags::REQUEST | flags::ACK, sequence);
        barrier.end();
        self.send(barrier.finish()?)?;
        Ok(sequence)
    }

    /// Checks and sends a request; returns its sequence number.
    fn start(
        &mut self,
        request: &MessageBuffer,
        flag: u16,
        name: &'static str,
    ) -> Result<u32, NetlinkError> {
        let (bytes, sequence) = check(request, flag, name)?;
        self.settle()?;
        self.send(bytes)?;
        self.dirty = true;
        Ok(sequence)
    }

    /// The next datagram of an answer.
    fn read_answer(&mut self, sequence: u32) -> Result<Messages<'_>, NetlinkError> {
        match self.read(RecvFlags::empty())? {
            Read::Data(len) => Ok(Messages::new(self.buffer.get(..len).unwrap_or_default())),
            Read::Empty => Err(NetlinkError::NoAnswer { sequence }),
            Read::Overrun => Err(NetlinkError::Overrun),
        }
    }

    /// Discards what an abandoned request left in the queue. Reading a dump to its end also makes
    /// the kernel ready for the next one.
    fn settle(&mut self) -> Result<(), NetlinkError> {
        if self.dirty {
            self.drain(&mut |_| {})?;
            self.dirty = false;
        }
        Ok(())
    }

    fn drain(&mut self, each: &mut impl FnMut(&Message<'_>)) -> Result<(), NetlinkError> {
        for _ in 0..MAX_DRAIN {
            match self.read(RecvFlags::DONTWAIT) {
                Ok(Read::Data(len)) => {
                    Messages::new(self.buffer.get(..len).unwrap_or_default())
                        .for_each(|message| each(&message));
                }
                Ok(Read::Empty) => return Ok(()),
                // What is being discarded may be lost or too long.
                Ok(Read::Overrun) | Err(NetlinkError::Truncated { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Err(NetlinkError::Overrun)
    }

    fn read(&mut self, flags: RecvFlags) -> Result<Read, NetlinkError> {
        read(self.fd.as_fd(), &mut self.buffer, flags)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// Repeats `read` while it reports [`NetlinkError::Interrupted`], at most `attempts` times.
///
/// `read` must start from nothing each time, since an interrupted dump may repeat or miss entries.
pub fn retry_interrupted<T>(
    attempts: usize,
    mut read: impl FnMut() -> Result<T, NetlinkError>,
) -> Result<T, NetlinkError> {
    for _ in 1..attempts {
        match read() {
            Err(NetlinkError::Interrupted) => {}
            result => return result,
        }
    }
    read()
}

/// Checks that all messages are whole and have a flag; returns them and the first one's sequence
/// number.
fn check<'a>(
    requests: &'a MessageBuffer,
    flag: u16,
    name: &'static str,
) -> Result<(&'a [u8], u32), CodecError> {
    let bytes = requests.finish()?;
    let mut messages = Messages::new(bytes);
    match messages.clone().find(|message| message.flags & flag != flag) {
        Some(message) => Err(CodecError::MissingFlag { sequence: message.sequence, flag: name }),
        None => messages.next().map(|first| (bytes, first.sequence)).ok_or(CodecError::Empty),
    }
}

/// Opens and binds a socket; the kernel chooses the port id.
pub(super) fn open(protocol: Protocol, extra: SocketFlags) -> Result<OwnedFd, NetlinkError> {
    let open_error = |source: io::Error| NetlinkError::Open { protocol: protocol.number(), source };
    let fd = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC | extra,
        protocol.to_rustix(),
    )
    .map_err(|errno| open_error(errno.into()))?;
    rustix::net::bind(&fd, &SocketAddrNetlink::new(0, 0))
        .map_err(|errno| open_error(errno.into()))?;
    let on = [
        ("NETLINK_EXT_ACK", libc::NETLINK_EXT_ACK),
        // Acknowledgements without the whole request in them.
        ("NETLINK_CAP_ACK", libc::NETLINK_CAP_ACK),
    ];
    for (name, option) in on {
        sys::set_netlink_option(fd.as_fd(), option, 1)
            .map_err(|error| option_error(name, error))?;
    }
    if protocol == Protocol::ROUTE {
        // Makes the kernel honour filters in dump requests instead of ignoring them (since 4.20).
        sys::set_netlink_option(fd.as_fd(), libc::NETLINK_GET_STRICT_CHK, 1)
            .map_err(|error| option_error("NETLINK_GET_STRICT_CHK", error))?;
    }
    Ok(fd)
}

/// Enlarges the receive buffer as far as the privilege allows. A smaller one still works: it only
/// overruns earlier.
pub(super) fn enlarge_receive_buffer(fd: &OwnedFd, bytes: usize) {
    if sockopt::set_socket_recv_buffer_size_force(fd, bytes).is_err() {
        let _capped = sockopt::set_socket_recv_buffer_size(fd, bytes);
    }
}

pub(super) fn port_of(fd: &OwnedFd, protocol: Protocol) -> Result<u32, NetlinkError> {
    rustix::net::getsockname(fd)
        .and_then(SocketAddrNetlink::try_from)
        .map(|address| address.pid())
        .map_err(|errno| NetlinkError::Open { protocol: protocol.number(), source: errno.into() })
}

pub(super) fn option_error(option: &'static str, source: io::Error) -> NetlinkError {
    NetlinkError::Option { option, source }
}

/// Reads one datagram that comes from the kernel.
pub(super) fn read(
    fd: BorrowedFd<'_>,
    buffer: &mut [u8],
    flags: RecvFlags,
) -> Result<Read, NetlinkError> {
    loop {
        let room = buffer.len();
        let received =
            retry_on_intr(|| rustix::net::recvfrom(fd, &mut *buffer, flags | RecvFlags::TRUNC));
        let (len, sender) = match received {
            Ok((_, len, sender)) => (len, sender),
            Err(Errno::AGAIN) => return Ok(Read::Empty),
            Err(Errno::NOBUFS) => return Ok(Read::Overrun),
            Err(errno) => return Err(NetlinkError::Receive(errno.into())),
        };
        // Another process may send to our port; only the kernel has port id 0.
        let sender = sender.and_then(|address| SocketAddrNetlink::try_from(address).ok());
        if sender.is_none_or(|address| address.pid() != 0) {
            continue;
        }
        if len > room {
            return Err(NetlinkError::Truncated { len, buffer: room });
        }
        return Ok(Read::Data(len));
    }
}

fn retry_on_intr<T>(call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    rustix::io::retry_on_intr(call)
}
