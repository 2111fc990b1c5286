//! Hearing that somebody else changed the table.

use std::collections::BTreeSet;

use async_trait::async_trait;
use node_sys::netlink::{AsyncListener, Event, Listener, Protocol};
use proxy_core::address::IpFamily;
use proxy_core::table::{DriftSignal, TableError};

use crate::layout::TABLE;
use crate::table::netlink_error;
use crate::uapi::GROUP_NFTABLES;
use crate::wire;

/// At most this many damaged objects are named.
const MAX_NAMED: usize = 8;

/// Listens to the kernel's notifications about our table, without those we cause.
#[derive(Debug)]
pub(crate) struct TableMonitor {
    family: IpFamily,
    listener: AsyncListener,
}

impl TableMonitor {
    /// Listens for changes by other sockets than the one with this port id.
    pub(crate) fn open(family: IpFamily, own_port: u32) -> Result<Self, TableError> {
        let open = || {
            let listener = Listener::open(Protocol::NETFILTER, &[])?;
            listener.ignore_ports(&[own_port])?;
            listener.join(GROUP_NFTABLES)?;
            AsyncListener::new(listener)
        };
        let listener = open().map_err(|error| netlink_error("listen for changes", error))?;
        Ok(Self { family, listener })
    }
}

#[async_trait]
impl DriftSignal for TableMonitor {
    async fn changed(&mut self) -> Result<String, TableError> {
        let mut changes = BTreeSet::new();
        loop {
            let event = self.listener.next_event().await;
            let event = event.map_err(|error| netlink_error("listen for changes", error))?;
            let messages = match event {
                Event::Overrun => return Ok("more changes than could be followed".to_owned()),
                Event::Messages(messages) => messages,
            };
            let mut process = None;
            let mut done = false;
            for message in messages {
                changes.extend(wire::describe_notification(&message, TABLE, self.family));
                if message.command() == crate::uapi::msg::NEWGEN {
                    process = wire::changing_process(&message);
                    done = true;
                }
            }
            // The generation's notification ends those of a transaction.
            if done && !changes.is_empty() {
                return Ok(describe(&changes, process));
            }
        }
    }
}

fn describe(changes: &BTreeSet<String>, process: Option<String>) -> String {
    let named: Vec<&str> = changes.iter().take(MAX_NAMED).map(String::as_str).collect();
    let mut text = named.join(", ");
    if changes.len() > MAX_NAMED {
        text.push_str(" and more");
    }
    if let Some(process) = process {
        text.push_str(" by ");
        text.push_str(&process);
    }
    text
}
