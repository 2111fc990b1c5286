//! What the kernel says that it changed.

use node_sys::netlink::{Event, Listener, NetlinkError, Protocol};

/// `NFNLGRP_NFTABLES` (`linux/netfilter/nfnetlink.h`).
const GROUP_NFTABLES: u32 = 7;
/// `NFT_MSG_NEWGEN` (`linux/netfilter/nf_tables.h`): the end of a transaction.
const NEW_GENERATION: u8 = 15;

/// Hears every change of nf_tables in a network namespace.
#[derive(Debug)]
pub struct Announcements {
    listener: Listener,
}

/// What was announced: a mirror of the messages that the kernel was sent and that changed
/// something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Announced {
    /// Number of transactions.
    pub transactions: usize,
    /// Number of objects, one message each.
    pub messages: usize,
    /// Bytes of these messages.
    pub bytes: usize,
}

impl Announcements {
    /// Listens in the namespace that the calling thread is in.
    pub fn listen() -> Result<Self, NetlinkError> {
        let listener = Listener::open(Protocol::NETFILTER, &[GROUP_NFTABLES])?;
        Ok(Self { listener })
    }

    /// What was announced since the last call; `None` if some of it was lost.
    pub fn take(&mut self) -> Result<Option<Announced>, NetlinkError> {
        let mut announced = Announced::default();
        let mut complete = true;
        while let Some(event) = self.listener.next_event()? {
            let Event::Messages(messages) = event else {
                complete = false;
                continue;
            };
            for message in messages {
                if message.command() == NEW_GENERATION {
                    announced.transactions += 1;
                } else {
                    announced.messages += 1;
                    announced.bytes += message.payload.len();
                }
            }
        }
        Ok(complete.then_some(announced))
    }
}
