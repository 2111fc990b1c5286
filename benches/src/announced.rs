//! What the kernel says that it changed.

use std::io;
use std::time::{Duration, Instant};

use node_sys::netlink::{Event, Listener, Message, NetlinkError, Protocol};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

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

impl Announced {
    /// Counts a message; returns whether it ends a transaction.
    fn count(&mut self, message: &Message<'_>) -> bool {
        let ends = message.command() == NEW_GENERATION;
        if ends {
            self.transactions += 1;
        } else {
            self.messages += 1;
            self.bytes += message.payload.len();
        }
        ends
    }
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
                announced.count(&message);
            }
        }
        Ok(complete.then_some(announced))
    }

    /// Waits for the end of the transaction of which a message holds these bytes; returns all that
    /// was announced until then. An error once `limit` has passed, or if something was lost.
    pub fn until(&mut self, needle: &[u8], limit: Duration) -> io::Result<Announced> {
        let end = Instant::now() + limit;
        let mut announced = Announced::default();
        let mut found = false;
        loop {
            while let Some(event) = self.listener.next_event().map_err(io::Error::other)? {
                let Event::Messages(messages) = event else {
                    return Err(io::Error::other("announcements were lost"));
                };
                let is_end = |message: Message<'_>| {
                    let ends = announced.count(&message);
                    found |= message.payload.windows(needle.len()).any(|it| it == needle);
                    ends && found
                };
                if messages.into_iter().any(is_end) {
                    return Ok(announced);
                }
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let left = Timespec::try_from(left).map_err(io::Error::other)?;
            poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], Some(&left))?;
        }
    }
}
