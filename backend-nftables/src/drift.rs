//! Hearing that somebody else changed the table.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

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

/// Port ids of the sockets that this process writes tables with. The table of one family must not
/// hear the other's: a large write would overrun its listener. With how many sockets have each:
/// ids repeat between network namespaces.
static OWN_PORTS: Mutex<BTreeMap<u32, usize>> = Mutex::new(BTreeMap::new());

/// A place in the list of our own port ids, for as long as the socket is open.
#[derive(Debug)]
pub(crate) struct OwnPort(u32);

impl OwnPort {
    /// Enters a socket's port id.
    pub(crate) fn enter(port: u32) -> Self {
        let mut ports = OWN_PORTS.lock().unwrap_or_else(PoisonError::into_inner);
        *ports.entry(port).or_insert(0) += 1;
        Self(port)
    }

    fn all() -> Vec<u32> {
        let ports = OWN_PORTS.lock().unwrap_or_else(PoisonError::into_inner);
        ports.keys().copied().collect()
    }
}

impl Drop for OwnPort {
    fn drop(&mut self) {
        let mut ports = OWN_PORTS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(uses) = ports.get_mut(&self.0) {
            *uses -= 1;
            if *uses == 0 {
                ports.remove(&self.0);
            }
        }
    }
}

/// Listens to the kernel's notifications about our table, without those we cause.
#[derive(Debug)]
pub(crate) struct TableMonitor {
    family: IpFamily,
    listener: AsyncListener,
}

impl TableMonitor {
    /// Listens for changes by other sockets than those of this process.
    pub(crate) fn open(family: IpFamily) -> Result<Self, TableError> {
        let open = || {
            let listener = Listener::open(Protocol::NETFILTER, &[])?;
            listener.ignore_ports(&OwnPort::all())?;
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
