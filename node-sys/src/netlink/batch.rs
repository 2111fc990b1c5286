//! nfnetlink batches: several messages that the kernel applies all together or not at all.

use super::codec::{CodecError, HEADER_LEN, Message, MessageBuffer, NFGEN_LEN};
use super::error::{KernelError, NetlinkError};
use super::flags;
use super::socket::Socket;

/// `NFNL_MSG_BATCH_BEGIN` (`linux/netfilter/nfnetlink.h`).
const BATCH_BEGIN: u16 = 0x10;
/// `NFNL_MSG_BATCH_END` (`linux/netfilter/nfnetlink.h`).
const BATCH_END: u16 = 0x11;
/// `NFNL_BATCH_GENID` (`linux/netfilter/nfnetlink.h`).
const BATCH_GENERATION: u16 = 1;
/// Size of the end marker.
const END_LEN: usize = HEADER_LEN + NFGEN_LEN;

/// A subsystem of nfnetlink (`NFNL_SUBSYS_*` in `linux/netfilter/nfnetlink.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subsystem(u8);

impl Subsystem {
    /// `NFNL_SUBSYS_CTNETLINK`.
    pub const CONNTRACK: Self = Self(1);
    /// `NFNL_SUBSYS_IPSET`.
    pub const IPSET: Self = Self(6);
    /// `NFNL_SUBSYS_NFTABLES`.
    pub const NFTABLES: Self = Self(10);

    /// Any other subsystem, by number.
    pub const fn new(number: u8) -> Self {
        Self(number)
    }

    /// Its number.
    pub const fn number(self) -> u8 {
        self.0
    }

    /// The netlink message type of one of its messages.
    pub const fn message_type(self, command: u8) -> u16 {
        u16::from_be_bytes([self.0, command])
    }
}

/// A transaction in the making.
///
/// Its messages are numbered from 1; errors name them by that number.
///
/// ```
/// use node_sys::netlink::{Batch, Subsystem, flags};
///
/// const NFT_MSG_NEWTABLE: u8 = 0;
/// const NFTA_TABLE_NAME: u16 = 1;
/// let mut batch = Batch::new(Subsystem::NFTABLES, None);
/// let number = batch.message(NFT_MSG_NEWTABLE, flags::CREATE, 2, |message| {
///     message.attr_str(NFTA_TABLE_NAME, "example");
/// });
/// assert_eq!(number, 1);
/// ```
#[derive(Debug, Clone)]
pub struct Batch {
    subsystem: Subsystem,
    buffer: MessageBuffer,
    count: u32,
    /// Whether the end marker is in the buffer.
    sealed: bool,
}

impl Batch {
    /// An empty batch for one subsystem; the kernel refuses a mix.
    ///
    /// With `generation`, the kernel refuses the batch if the subsystem was changed since it had
    /// that generation id ([`BatchError::is_stale`]).
    pub fn new(subsystem: Subsystem, generation: Option<u32>) -> Self {
        let mut batch = Self { subsystem, buffer: MessageBuffer::new(), count: 0, sealed: false };
        batch.begin(generation);
        batch
    }

    /// Forgets the messages, keeps the memory.
    pub fn clear(&mut self, generation: Option<u32>) {
        self.buffer.clear();
        self.count = 0;
        self.sealed = false;
        self.begin(generation);
    }

    /// Appends a message of the subsystem and returns its number.
    ///
    /// `flags` are the request's own flags ([`flags::CREATE`] and the like); `family` is the
    /// `NFPROTO_*` number in `struct nfgenmsg`; `write` appends the attributes.
    pub fn message(
        &mut self,
        command: u8,
        flags: u16,
        family: u8,
        write: impl FnOnce(&mut MessageBuffer),
    ) -> u32 {
        self.unseal();
        self.count += 1;
        // The first message is acknowledged even on success: that tells the failure of the whole
        // commit, which the kernel reports under the first message's number, from a failure of
        // the first message itself.
        let acknowledge = if self.count == 1 { flags::ACK } else { 0 };
        self.buffer.begin_netfilter(
            self.subsystem.message_type(command),
            flags | flags::REQUEST | acknowledge,
            self.count,
            family,
        );
        write(&mut self.buffer);
        self.buffer.end();
        self.count
    }

    /// Number of messages.
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Whether there are no messages.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes the batch takes when sent; compare with [`Socket::max_send`].
    pub fn len(&self) -> usize {
        self.buffer.len() + if self.sealed { 0 } else { END_LEN }
    }

    /// The bytes to send, with the end marker. More messages may still follow afterwards.
    pub fn finish(&mut self) -> Result<&[u8], CodecError> {
        if !self.sealed {
            self.marker(BATCH_END, self.count.wrapping_add(1));
            self.buffer.end();
            self.sealed = true;
        }
        self.buffer.finish()
    }

    fn unseal(&mut self) {
        if self.sealed {
            self.buffer.truncate(self.buffer.len() - END_LEN);
            self.sealed = false;
        }
    }

    fn begin(&mut self, generation: Option<u32>) {
        self.marker(BATCH_BEGIN, 0);
        if let Some(generation) = generation {
            self.buffer.attr_u32_be(BATCH_GENERATION, generation);
        }
        self.buffer.end();
    }

    /// Begins a marker: a message whose `res_id` names the subsystem.
    fn marker(&mut self, kind: u16, sequence: u32) {
        self.buffer.begin(kind, flags::REQUEST, sequence);
        self.buffer.put(&[0, 0, 0, self.subsystem.number()]);
    }
}

/// A batch was not applied, or it is not known whether it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// The kernel refused the batch as a whole; nothing was applied.
    #[error("kernel refused the batch")]
    Refused(#[source] KernelError),
    /// The kernel refused messages of the batch; nothing was applied.
    #[error(
        "kernel rejected {} of {messages} messages{}, first number {}",
        errors.len(),
        if *complete { "" } else { " at least" },
        errors.first().map_or(0, |error| error.sequence)
    )]
    Rejected {
        /// One error for each refused message, in order; `sequence` is the message's number.
        errors: Vec<KernelError>,
        /// How many messages the batch had.
        messages: u32,
        /// Whether all errors are listed. So many may come that the kernel has to drop some.
        complete: bool,
    },
    /// Talking to the kernel failed. Nothing was sent for [`NetlinkError::Encode`],
    /// [`NetlinkError::TooBig`] and [`NetlinkError::Send`]; after any other it is not known
    /// whether the batch was applied.
    #[error("exchange with the kernel failed")]
    Netlink(#[from] NetlinkError),
}

impl BatchError {
    /// The kernel's refusals, whether of the whole or of single messages.
    pub fn kernel_errors(&self) -> &[KernelError] {
        match self {
            Self::Refused(error) => std::slice::from_ref(error),
            Self::Rejected { errors, .. } => errors,
            Self::Netlink(_) => &[],
        }
    }

    /// The subsystem was changed since the generation the batch was made for (`ERESTART`).
    pub fn is_stale(&self) -> bool {
        matches!(self, Self::Refused(error) if error.errno == libc::ERESTART)
    }

    /// The privilege (`CAP_NET_ADMIN`) is missing.
    pub fn is_permission(&self) -> bool {
        match self {
            Self::Netlink(error) => error.is_permission(),
            Self::Refused(error) => error.is_permission(),
            Self::Rejected { .. } => false,
        }
    }

    /// The kernel has no such subsystem, or no batches for it.
    pub fn is_unsupported(&self) -> bool {
        matches!(self, Self::Refused(error) if error.is_unsupported())
    }

    /// Whether it is certain that nothing was applied.
    pub const fn is_nothing_applied(&self) -> bool {
        matches!(
            self,
            Self::Refused(_)
                | Self::Rejected { .. }
                | Self::Netlink(
                    NetlinkError::Encode(_) | NetlinkError::TooBig { .. } | NetlinkError::Send(_)
                )
        )
    }
}

impl Socket {
    /// Sends a batch and waits until the kernel has applied or refused it.
    ///
    /// All errors of the batch are collected. An empty batch is not sent.
    pub fn commit(&mut self, batch: &mut Batch) -> Result<(), BatchError> {
        self.commit_with(batch, |_| {})
    }

    /// Like [`Socket::commit`]; notifications that were asked for with [`flags::ECHO`] are handed
    /// to `echo`. Keep the number of such messages in the thousands: their notifications must fit
    /// the receive buffer.
    pub fn commit_with(
        &mut self,
        batch: &mut Batch,
        mut echo: impl FnMut(&Message<'_>),
    ) -> Result<(), BatchError> {
        if batch.is_empty() {
            return Ok(());
        }
        let messages = batch.count();
        let mut answers = Answers::default();
        let bytes = batch.finish().map_err(NetlinkError::from)?;
        let (lost, barrier) =
            self.send_and_collect(bytes, |message| match KernelError::read(message) {
                Some(Err(error)) => answers.errors.push(error),
                Some(Ok(())) => answers.acknowledged |= message.sequence == 1,
                None => echo(message),
            })?;
        answers.into_result(messages, lost, barrier)
    }
}

/// What the kernel said to a batch.
#[derive(Default)]
struct Answers {
    errors: Vec<KernelError>,
    acknowledged: bool,
}

impl Answers {
    fn into_result(
        mut self,
        messages: u32,
        lost: bool,
        barrier: Result<(), KernelError>,
    ) -> Result<(), BatchError> {
        if let Some(at) = self.errors.iter().position(|error| self.is_about_whole(error)) {
            return Err(BatchError::Refused(self.errors.swap_remove(at)));
        }
        if !self.errors.is_empty() {
            let errors = self.errors;
            return Err(BatchError::Rejected { errors, messages, complete: !lost });
        }
        barrier.map_err(BatchError::Refused)?;
        // Without an error, the acknowledgement of the first message proves that the batch ran.
        if self.acknowledged { Ok(()) } else { Err(NetlinkError::Overrun.into()) }
    }

    /// `nfnetlink_rcv_batch` (`net/netfilter/nfnetlink.c`) answers to the begin marker when it
    /// does not look at the messages, and to the first message when the commit fails or memory
    /// runs out.
    fn is_about_whole(&self, error: &KernelError) -> bool {
        let first = error.sequence == 1;
        error.sequence == 0 || (first && (self.acknowledged || error.errno == libc::ENOMEM))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::Messages;

    fn error(sequence: u32, errno: i32) -> KernelError {
        KernelError { errno, message: None, offset: None, sequence }
    }

    #[test]
    fn markers_surround_numbered_messages() {
        let mut batch = Batch::new(Subsystem::NFTABLES, Some(7));
        batch.message(3, flags::CREATE, 2, |message| message.attr_u8(1, 9));
        batch.finish().unwrap();
        batch.message(4, 0, 2, |_| {});
        let len = batch.len();
        let bytes = batch.finish().unwrap();
        assert_eq!(bytes.len(), len);
        let seen: Vec<_> = Messages::new(bytes).map(|m| (m.kind, m.sequence, m.flags)).collect();
        let first = flags::REQUEST | flags::CREATE | flags::ACK;
        let expected = [
            (BATCH_BEGIN, 0, flags::REQUEST),
            (0x0a03, 1, first),
            (0x0a04, 2, flags::REQUEST),
            (BATCH_END, 3, flags::REQUEST),
        ];
        assert_eq!(seen, expected);
        let begin = Messages::new(bytes).next().unwrap();
        assert_eq!(begin.payload[..4], [0, 0, 0, 10]);
        assert_eq!(begin.netfilter_attributes().get(1).unwrap().u32_be(), Some(7));
    }

    #[test]
    fn errors_are_told_apart() {
        let check = |errors: &[KernelError], acknowledged, refused: bool| {
            let answers = Answers { errors: errors.to_vec(), acknowledged };
            let result = answers.into_result(3, false, Ok(())).unwrap_err();
            assert_eq!(matches!(result, BatchError::Refused(_)), refused, "{result:?}");
        };
        check(&[error(0, libc::ERESTART)], false, true);
        // The first message failed.
        check(&[error(1, libc::ENOENT)], false, false);
        // The first message was accepted, so the error is about the commit.
        check(&[error(1, libc::EBUSY)], true, true);
        check(&[error(1, libc::ENOMEM)], false, true);
        check(&[error(2, libc::ENOENT), error(3, libc::ENOENT)], true, false);
    }

    #[test]
    fn silence_is_not_success() {
        let result = Answers::default().into_result(1, true, Ok(()));
        assert!(!result.unwrap_err().is_nothing_applied());
        let refused = Answers::default().into_result(1, false, Err(error(9, libc::EPERM)));
        assert!(refused.unwrap_err().is_permission());
    }
}
