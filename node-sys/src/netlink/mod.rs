//! Netlink: codec, request sockets, nfnetlink batches and notifications.
//!
//! The three layers can be used apart: [`codec`] knows only bytes, [`Socket`] sends requests and
//! collects answers, [`Listener`] receives notifications. [`Batch`] is nfnetlink's transaction.
//!
//! ```no_run
//! use node_sys::netlink::{MessageBuffer, Protocol, Socket, flags};
//!
//! # fn main() -> Result<(), node_sys::netlink::NetlinkError> {
//! const RTM_GETLINK: u16 = 18;
//! let mut socket = Socket::open(Protocol::ROUTE)?;
//! let mut request = MessageBuffer::new();
//! request.begin(RTM_GETLINK, flags::REQUEST | flags::DUMP, socket.next_sequence());
//! request.put(&[0; 16]); // struct ifinfomsg
//! request.end();
//! let mut links = 0;
//! socket.dump(&request, |_message| links += 1)?;
//! # Ok(())
//! # }
//! ```

mod batch;
pub mod codec;
mod error;
mod listener;
mod socket;

pub use batch::{Batch, BatchError, Subsystem};
pub use codec::{Attribute, Attributes, CodecError, Message, MessageBuffer, Messages, Nest};
pub use error::{KernelError, NetlinkError};
#[cfg(feature = "tokio")]
pub use listener::AsyncListener;
pub use listener::{Event, Listener, PortFilter};
pub use socket::{Protocol, Socket, retry_interrupted};

/// Message flags (`NLM_F_*` in `linux/netlink.h`).
pub mod flags {
    /// `NLM_F_REQUEST`: a request to the kernel; it ignores messages without it.
    pub const REQUEST: u16 = 0x01;
    /// `NLM_F_MULTI`: part of an answer that ends with a "done" message.
    pub const MULTI: u16 = 0x02;
    /// `NLM_F_ACK`: answer with an acknowledgement even on success.
    pub const ACK: u16 = 0x04;
    /// `NLM_F_ECHO`: send the resulting notification to the requester as well.
    pub const ECHO: u16 = 0x08;
    /// `NLM_F_DUMP_INTR`: the dumped table changed meanwhile.
    pub const DUMP_INTERRUPTED: u16 = 0x10;
    /// `NLM_F_REPLACE` (requests that create).
    pub const REPLACE: u16 = 0x100;
    /// `NLM_F_EXCL` (requests that create): fail if the object exists.
    pub const EXCLUSIVE: u16 = 0x200;
    /// `NLM_F_CREATE` (requests that create): create if missing.
    pub const CREATE: u16 = 0x400;
    /// `NLM_F_APPEND` (requests that create): add to the end.
    pub const APPEND: u16 = 0x800;
    /// `NLM_F_NONREC` (requests that delete): do not delete what hangs below.
    pub const NON_RECURSIVE: u16 = 0x100;
    /// `NLM_F_DUMP` (requests that get): `NLM_F_ROOT | NLM_F_MATCH`.
    pub const DUMP: u16 = 0x300;
    /// `NLM_F_CAPPED` (answers): the request's payload is left out of the acknowledgement.
    pub const CAPPED: u16 = 0x100;
    /// `NLM_F_ACK_TLVS` (answers): attributes follow the acknowledgement.
    pub const ACK_ATTRIBUTES: u16 = 0x200;
}
