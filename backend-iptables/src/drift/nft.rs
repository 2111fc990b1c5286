//! Hearing that somebody else changed the tables of the nft variant.
//!
//! Numbers are those of `linux/netfilter/nf_tables.h`.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use async_trait::async_trait;
use node_sys::netlink::{
    AsyncListener, Attributes, Event, Listener, Message, NetlinkError, PortFilter, Protocol,
};
use proxy_core::address::IpFamily;
use proxy_core::table::{DriftSignal, TableError, TableErrorKind, error_chain};

use crate::layout;
use crate::model::Table;

/// `NFNLGRP_NFTABLES` (`linux/netfilter/nfnetlink.h`).
const GROUP_NFTABLES: u32 = 7;
/// `NFNL_SUBSYS_NFTABLES` (`linux/netfilter/nfnetlink.h`).
const SUBSYSTEM_NFTABLES: u8 = 10;

const MSG_DELTABLE: u8 = 2;
const MSG_NEWCHAIN: u8 = 3;
const MSG_DELCHAIN: u8 = 5;
const MSG_NEWRULE: u8 = 6;
const MSG_DELRULE: u8 = 8;
const MSG_NEWGEN: u8 = 15;

/// `NFTA_TABLE_NAME`, `NFTA_CHAIN_TABLE`, `NFTA_RULE_TABLE`.
const TABLE_NAME: u16 = 1;
const CHAIN_NAME: u16 = 3;
const RULE_CHAIN: u16 = 2;
const RULE_EXPRESSIONS: u16 = 4;
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
const IMMEDIATE_DATA: u16 = 2;
const DATA_VERDICT: u16 = 2;
const VERDICT_CHAIN: u16 = 2;
const GENERATION_PROCESS_ID: u16 = 2;
const GENERATION_PROCESS_NAME: u16 = 3;

/// At most this many changes are named.
const MAX_NAMED: usize = 8;

// === what we do ourselves ===

/// Processes of ours that write, and who must not hear them.
///
/// The kernel gives the socket of a process, and with it each notification of what it does, the
/// process's id as its port; only if that is taken, another. Then we hear ourselves, and a
/// comparison more is made.
#[derive(Debug, Default)]
struct Own {
    running: Vec<u32>,
    filters: Vec<Weak<PortFilter>>,
}

static OWN: Mutex<Own> = Mutex::new(Own { running: Vec::new(), filters: Vec::new() });

fn own() -> MutexGuard<'static, Own> {
    OWN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Own {
    fn tell(&mut self) {
        self.filters.retain(|filter| filter.strong_count() > 0);
        for filter in self.filters.iter().filter_map(Weak::upgrade) {
            if let Err(error) = filter.ignore_ports(&self.running) {
                tracing::debug!(error = error_chain(&error), "own changes will be heard");
            }
        }
    }
}

/// A process of ours that writes, until its end. Notifications are queued before a write ends, so
/// nothing of what it did comes later, and nothing that another process does is missed.
#[derive(Debug)]
pub(crate) struct OwnProcess(u32);

impl OwnProcess {
    /// Enters the process, which must not have written yet.
    pub(crate) fn enter(id: u32) -> Self {
        let mut own = own();
        own.running.push(id);
        own.tell();
        Self(id)
    }
}

impl Drop for OwnProcess {
    fn drop(&mut self) {
        let mut own = own();
        own.running.retain(|id| *id != self.0);
        own.tell();
    }
}

// === what others do ===

/// Listens to the kernel's notifications, without those that our processes cause.
#[derive(Debug)]
pub(crate) struct Monitor {
    scope: Scope,
    listener: AsyncListener,
    /// Lets our processes reach the listener for as long as it exists.
    _filter: Arc<PortFilter>,
}

impl Monitor {
    /// Listens for changes of what is ours in the family's tables.
    pub(crate) fn open(family: IpFamily, guards_loopback: bool) -> Result<Self, TableError> {
        let open = || {
            let listener = Listener::open(Protocol::NETFILTER, &[])?;
            let filter = Arc::new(listener.port_filter()?);
            let mut own = own();
            own.filters.push(Arc::downgrade(&filter));
            own.tell();
            drop(own);
            listener.join(GROUP_NFTABLES)?;
            Ok((AsyncListener::new(listener)?, filter))
        };
        let (listener, filter) = open().map_err(listen_error)?;
        Ok(Self { scope: Scope { family, guards_loopback }, listener, _filter: filter })
    }
}

fn listen_error(error: NetlinkError) -> TableError {
    let kind =
        if error.is_permission() { TableErrorKind::Permission } else { TableErrorKind::Transient };
    TableError::new(kind, "listen for changes").with_source(error)
}

#[async_trait]
impl DriftSignal for Monitor {
    async fn changed(&mut self) -> Result<String, TableError> {
        let mut changes = BTreeSet::new();
        loop {
            let event = self.listener.next_event().await.map_err(listen_error)?;
            let messages = match event {
                Event::Overrun => return Ok("more changes than could be followed".to_owned()),
                Event::Messages(messages) => messages,
            };
            let mut process = None;
            let mut done = false;
            for message in messages.filter(|it| it.subsystem() == SUBSYSTEM_NFTABLES) {
                changes.extend(self.scope.change(&message));
                if message.command() == MSG_NEWGEN {
                    process = changing_process(&message);
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
    let more = if changes.len() > MAX_NAMED { " and more" } else { "" };
    let process = process.map_or(String::new(), |process| format!(" by {process}"));
    format!("{}{more}{process}", named.join(", "))
}

/// The process behind the changes that were notified before this message, if it says so.
fn changing_process(message: &Message<'_>) -> Option<String> {
    let attributes = message.netfilter_attributes();
    let name = attributes.get(GENERATION_PROCESS_NAME)?.str()?;
    let id = attributes.get(GENERATION_PROCESS_ID)?.u32_be()?;
    Some(format!("{name} (pid {id})"))
}

/// Which changes matter.
#[derive(Clone, Copy, Debug)]
struct Scope {
    family: IpFamily,
    /// Whether [`layout::LOCALNET_FIREWALL`] has a rule of ours.
    guards_loopback: bool,
}

impl Scope {
    /// What a notification says of what is ours; `None` if nothing.
    fn change(self, message: &Message<'_>) -> Option<String> {
        // NFPROTO_IPV4 and NFPROTO_IPV6.
        let family = match self.family {
            IpFamily::V4 => 2,
            IpFamily::V6 => 10,
        };
        if message.family() != Some(family) {
            return None;
        }
        let attributes = message.netfilter_attributes();
        let text = |attribute| attributes.get(attribute).and_then(|it| it.str());
        let table = text(TABLE_NAME)?;
        if !Table::ALL.iter().any(|ours| ours.as_str() == table) {
            return None;
        }
        let (verb, object) = match message.command() {
            MSG_DELTABLE => return Some(format!("table {table} deleted")),
            command @ (MSG_NEWCHAIN | MSG_DELCHAIN) => {
                let chain = text(CHAIN_NAME).filter(|chain| self.is_ours(chain))?;
                let verb = if command == MSG_DELCHAIN { "deleted" } else { "changed" };
                (verb, format!("chain {chain}"))
            }
            command @ (MSG_NEWRULE | MSG_DELRULE) => {
                let chain = text(RULE_CHAIN)?;
                if !self.is_ours(chain) && !self.may_jump_to_ours(&attributes) {
                    return None;
                }
                let verb = if command == MSG_DELRULE { "deleted" } else { "added" };
                (verb, format!("rule in chain {chain}"))
            }
            _ => return None,
        };
        Some(format!("{object} of table {table} {verb}"))
    }

    fn is_ours(self, chain: &str) -> bool {
        if chain == layout::LOCALNET_FIREWALL {
            self.guards_loopback
        } else {
            layout::is_ours(chain)
        }
    }

    /// Whether a rule jumps to a chain of ours, or does not say.
    fn may_jump_to_ours(self, rule: &Attributes<'_>) -> bool {
        let Some(expressions) = rule.get(RULE_EXPRESSIONS) else { return true };
        expressions.nested().any(|expression| {
            let expression = expression.nested();
            let name = expression.get(EXPRESSION_NAME).and_then(|name| name.str());
            let chain = (name == Some("immediate")).then(|| {
                let data = expression.get(EXPRESSION_DATA)?.nested().get(IMMEDIATE_DATA)?;
                data.nested().get(DATA_VERDICT)?.nested().get(VERDICT_CHAIN)?.str()
            });
            chain.flatten().is_some_and(|chain| self.is_ours(chain))
        })
    }
}
