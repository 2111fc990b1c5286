//! What can go wrong when talking netlink.

use std::fmt;
use std::io;

use super::codec::{Attributes, CodecError, HEADER_LEN, Message, TYPE_DONE, TYPE_ERROR};
use super::flags;

/// `NLMSGERR_ATTR_MSG` (`linux/netlink.h`): text for humans.
const EXTACK_MESSAGE: u16 = 1;
/// `NLMSGERR_ATTR_OFFS` (`linux/netlink.h`): where in the request the culprit is.
const EXTACK_OFFSET: u16 = 2;

/// Talking to the kernel over netlink failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetlinkError {
    /// The socket could not be opened or bound.
    #[error("open netlink socket of protocol {protocol}")]
    Open {
        /// The netlink protocol.
        protocol: i32,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// A socket option was refused.
    #[error("set netlink socket option {option}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// The request is not well formed; nothing was sent.
    #[error("encode netlink request")]
    Encode(#[from] CodecError),
    /// The request is larger than one send may be; nothing was sent.
    #[error("netlink request of {len} bytes is larger than the socket can send ({max} bytes)")]
    TooBig {
        /// Size of the request.
        len: usize,
        /// The socket's limit.
        max: usize,
    },
    /// Sending failed.
    #[error("send netlink request")]
    Send(#[source] io::Error),
    /// Receiving failed.
    #[error("receive netlink answer")]
    Receive(#[source] io::Error),
    /// A datagram was larger than the receive buffer.
    #[error("netlink answer of {len} bytes does not fit the buffer of {buffer} bytes")]
    Truncated {
        /// Size of the datagram.
        len: usize,
        /// Size of the buffer.
        buffer: usize,
    },
    /// The kernel dropped messages because the socket's receive buffer was full (`ENOBUFS`).
    #[error("netlink messages were lost")]
    Overrun,
    /// The table changed while it was dumped (`NLM_F_DUMP_INTR`); the dump may be inconsistent.
    #[error("table changed while it was read")]
    Interrupted,
    /// No answer came in time.
    #[error("no answer to netlink request {sequence}")]
    NoAnswer {
        /// Sequence number of the request.
        sequence: u32,
    },
    /// The kernel refused the request.
    #[error("kernel refused netlink request")]
    Kernel(#[from] KernelError),
}

impl NetlinkError {
    /// The kernel's refusal, if it is one.
    pub const fn kernel(&self) -> Option<&KernelError> {
        match self {
            Self::Kernel(error) => Some(error),
            _ => None,
        }
    }

    /// Whether the privilege (`CAP_NET_ADMIN`) is missing.
    pub fn is_permission(&self) -> bool {
        match self {
            Self::Kernel(error) => error.is_permission(),
            Self::Open { source, .. } | Self::Option { source, .. } | Self::Send(source) => {
                source.kind() == io::ErrorKind::PermissionDenied
            }
            _ => false,
        }
    }

    /// Whether the same request may succeed if simply repeated.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Interrupted | Self::Overrun | Self::NoAnswer { .. } => true,
            Self::Kernel(error) => error.is_interrupted() || error.is_busy(),
            Self::Send(source) | Self::Receive(source) => {
                matches!(source.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM | libc::EAGAIN))
            }
            _ => false,
        }
    }
}

/// The kernel's "no" to one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelError {
    /// Error number, positive.
    pub errno: i32,
    /// The kernel's explanation, if it gave one (extended acknowledgement).
    pub message: Option<String>,
    /// Offset of the culprit from the start of the refused message, if the kernel says so.
    pub offset: Option<u32>,
    /// Sequence number of the refused message.
    pub sequence: u32,
}

impl KernelError {
    /// The object does not exist (`ENOENT`, `ESRCH`, `ENODEV`).
    pub const fn is_not_found(&self) -> bool {
        matches!(self.errno, libc::ENOENT | libc::ESRCH | libc::ENODEV)
    }

    /// The object exists already.
    pub const fn is_exists(&self) -> bool {
        self.errno == libc::EEXIST
    }

    /// The privilege is missing.
    pub const fn is_permission(&self) -> bool {
        matches!(self.errno, libc::EPERM | libc::EACCES)
    }

    /// The kernel does not know the operation or was built without it.
    pub const fn is_unsupported(&self) -> bool {
        matches!(
            self.errno,
            libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::EAFNOSUPPORT | libc::ENOSYS
        )
    }

    /// The request was overtaken by another change and should be made anew from fresh state
    /// (`ERESTART`, `EINTR`, `EAGAIN`).
    pub const fn is_interrupted(&self) -> bool {
        matches!(self.errno, libc::ERESTART | libc::EINTR | libc::EAGAIN)
    }

    /// The object is in use.
    pub const fn is_busy(&self) -> bool {
        self.errno == libc::EBUSY
    }

    /// Memory or a table is exhausted (`ENOMEM`, `ENOBUFS`, `ENFILE`, `ENOSPC`).
    pub const fn is_exhausted(&self) -> bool {
        matches!(self.errno, libc::ENOMEM | libc::ENOBUFS | libc::ENFILE | libc::ENOSPC)
    }

    /// The symbolic name of the error number, if it is one that netlink is known to return.
    pub fn name(&self) -> Option<&'static str> {
        NAMES.iter().find(|(errno, ..)| *errno == self.errno).map(|(_, name, _)| *name)
    }

    /// Reads the result in an acknowledgement or at the end of a dump: `Ok` is success, `None`
    /// means that the message is neither.
    pub(super) fn read(message: &Message<'_>) -> Option<Result<(), Self>> {
        let code = message.payload.first_chunk().copied().map(i32::from_ne_bytes);
        let code = match message.kind {
            TYPE_ERROR => code.unwrap_or(-libc::EBADMSG),
            // Old kernels may end a dump without a code.
            TYPE_DONE => code.unwrap_or(0),
            _ => return None,
        };
        if code >= 0 {
            return Some(Ok(()));
        }
        let mut error = Self {
            errno: code.checked_neg().unwrap_or(libc::EIO),
            message: None,
            offset: None,
            sequence: message.sequence,
        };
        for attribute in extended(message) {
            match attribute.kind {
                EXTACK_MESSAGE => error.message = attribute.str().map(str::to_owned),
                EXTACK_OFFSET => error.offset = attribute.u32(),
                _ => {}
            }
        }
        Some(Err(error))
    }
}

/// The attributes behind a result (`struct nlmsgerr` and the comment above it).
fn extended<'a>(message: &Message<'a>) -> Attributes<'a> {
    const CODE_LEN: usize = 4;
    if message.flags & flags::ACK_ATTRIBUTES == 0 {
        return Attributes::new(&[]);
    }
    if message.kind == TYPE_DONE {
        return message.attributes(CODE_LEN);
    }
    // The request's header is repeated, and its payload too unless the answer is capped.
    let request_len = if message.flags & flags::CAPPED == 0 {
        message.payload.get(CODE_LEN..).and_then(|header| header.first_chunk().copied())
    } else {
        None
    };
    let request_len = request_len
        .and_then(|len| usize::try_from(u32::from_ne_bytes(len)).ok())
        .unwrap_or(HEADER_LEN)
        .min(message.payload.len());
    message.attributes(CODE_LEN + request_len)
}

impl std::error::Error for KernelError {}

impl fmt::Display for KernelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(errno, ..)| *errno == self.errno) {
            Some((_, name, text)) => write!(f, "{text} ({name})")?,
            None => write!(f, "{}", io::Error::from_raw_os_error(self.errno))?,
        }
        match &self.message {
            Some(message) => write!(f, ": {message}"),
            None => Ok(()),
        }
    }
}

/// Error numbers that nfnetlink, rtnetlink, ctnetlink and generic netlink return.
const NAMES: &[(i32, &str, &str)] = &[
    (libc::EPERM, "EPERM", "operation not permitted"),
    (libc::ENOENT, "ENOENT", "no such file or directory"),
    (libc::ESRCH, "ESRCH", "no such object"),
    (libc::EINTR, "EINTR", "interrupted"),
    (libc::E2BIG, "E2BIG", "argument list too long"),
    (libc::EAGAIN, "EAGAIN", "try again"),
    (libc::ENOMEM, "ENOMEM", "out of memory"),
    (libc::EACCES, "EACCES", "permission denied"),
    (libc::EBUSY, "EBUSY", "object in use"),
    (libc::EEXIST, "EEXIST", "object exists"),
    (libc::ENODEV, "ENODEV", "no such device"),
    (libc::EINVAL, "EINVAL", "invalid argument"),
    (libc::ENFILE, "ENFILE", "table full"),
    (libc::ENOSPC, "ENOSPC", "no space left"),
    (libc::EMLINK, "EMLINK", "too many links"),
    (libc::ERANGE, "ERANGE", "number out of range"),
    (libc::ELOOP, "ELOOP", "loop of references"),
    (libc::ENOSYS, "ENOSYS", "not implemented"),
    (libc::EOVERFLOW, "EOVERFLOW", "value too large"),
    (libc::ERESTART, "ERESTART", "state changed meanwhile"),
    (libc::EPROTONOSUPPORT, "EPROTONOSUPPORT", "protocol not supported"),
    (libc::EOPNOTSUPP, "EOPNOTSUPP", "operation not supported"),
    (libc::EAFNOSUPPORT, "EAFNOSUPPORT", "address family not supported"),
    (libc::EADDRINUSE, "EADDRINUSE", "address in use"),
    (libc::EADDRNOTAVAIL, "EADDRNOTAVAIL", "address not available"),
    (libc::ENOBUFS, "ENOBUFS", "no buffer space"),
    (libc::EMSGSIZE, "EMSGSIZE", "message too long"),
];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::netlink::Messages;
    use crate::netlink::codec::tests_support::bytes;

    fn only(hex: &str) -> Option<Result<(), KernelError>> {
        let bytes = bytes(hex);
        let mut messages = Messages::new(&bytes);
        let message = messages.next().unwrap();
        assert_eq!(messages.next(), None);
        KernelError::read(&message)
    }

    /// Answers captured on Linux 6.18 (little endian), with NETLINK_EXT_ACK set.
    #[test]
    #[cfg(target_endian = "little")]
    fn captured_answers_are_read() {
        // NFT_MSG_GETTABLE of a missing table, with NETLINK_CAP_ACK: the offset of its name.
        let error = only(
            "2c0000000200000309000000513c0000feffffff1c000000010a05000900000000000000\
             0800020014000000",
        );
        let error = error.unwrap().unwrap_err();
        assert!(error.is_not_found());
        assert_eq!((error.sequence, error.offset), (9, Some(20)));
        assert_eq!(error.to_string(), "no such file or directory (ENOENT)");

        // RTM_NEWLINK of a missing link, without NETLINK_CAP_ACK: the request is repeated.
        let error = only(
            "340000000200000003000000513c0000edffffff20000000100005000300000000000000\
             000000004d0000000100000001000000",
        );
        assert_eq!(error.unwrap().unwrap_err().name(), Some("ENODEV"));

        // End of a refused RTM_GETADDR dump with NETLINK_GET_STRICT_CHK: code and text.
        let error = only(
            "500000000300020201000000513c0000eaffffff3c000100697076343a20496e76616c69\
             642076616c75657320696e2068656164657220666f7220616464726573732064756d7020\
             7265717565737400",
        );
        assert_eq!(
            error.unwrap().unwrap_err().to_string(),
            "invalid argument (EINVAL): ipv4: Invalid values in header for address dump request"
        );

        // End of a successful dump.
        assert_eq!(only("140000000300020001000000e23b000000000000"), Some(Ok(())));
    }

    #[test]
    fn a_result_without_code_is_not_success() {
        let message =
            Message { kind: TYPE_ERROR, flags: 0, sequence: 1, port: 0, payload: &[0, 0] };
        assert!(KernelError::read(&message).unwrap().is_err());
        let message = Message { kind: 16, ..message };
        assert_eq!(KernelError::read(&message), None);
    }

    #[test]
    fn unnamed_errors_are_shown_too() {
        let error = KernelError { errno: libc::EXDEV, message: None, offset: None, sequence: 0 };
        assert!(!error.to_string().is_empty());
        assert_eq!(error.name(), None);
    }

    proptest! {
        #[test]
        fn garbage_never_panics(flags: u16, done: bool, payload: Vec<u8>) {
            let kind = if done { TYPE_DONE } else { TYPE_ERROR };
            let message = Message { kind, flags, sequence: 1, port: 0, payload: &payload };
            prop_assert!(KernelError::read(&message).is_some());
        }
    }
}
