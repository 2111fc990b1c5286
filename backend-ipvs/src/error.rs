//! From what the kernel says to how it is answered.

use node_sys::netlink::{KernelError, NetlinkError};
use proxy_core::table::{TableError, TableErrorKind};

use crate::ipvs::Command;
use crate::model::{Key, SetName};

/// `IPSET_ERR_PRIVATE`: errors from here on are ipset's own (`linux/netfilter/ipset/ip_set.h`).
const IPSET_PRIVATE: i32 = 4096;
/// `IPSET_ERR_FIND_TYPE`: the kernel has no such type of set.
const IPSET_FIND_TYPE: i32 = 4098;
/// `IPSET_ERR_BUSY`: rules refer to the set.
const IPSET_BUSY: i32 = 4100;
/// `IPSET_ERR_HASH_FULL`.
const IPSET_FULL: i32 = 4352;

fn netlink_kind(error: &NetlinkError) -> TableErrorKind {
    match error {
        _ if error.is_permission() => TableErrorKind::Permission,
        NetlinkError::TooBig { .. } | NetlinkError::Encode(_) => TableErrorKind::Rejected,
        NetlinkError::Kernel(error) => kernel_kind(error),
        _ => TableErrorKind::Transient,
    }
}

fn kernel_kind(error: &KernelError) -> TableErrorKind {
    if error.is_permission() {
        TableErrorKind::Permission
    } else if error.is_not_found() || error.is_exists() {
        TableErrorKind::OutOfSync
    } else if error.is_unsupported() {
        TableErrorKind::Unsupported
    } else if error.is_busy() || error.is_interrupted() || error.is_exhausted() {
        TableErrorKind::Transient
    } else {
        TableErrorKind::Rejected
    }
}

pub(crate) fn netlink_error(operation: &str, error: NetlinkError) -> TableError {
    TableError::new(netlink_kind(&error), operation).with_source(error)
}

pub(crate) fn kernel_error(operation: &str, error: KernelError) -> TableError {
    TableError::new(kernel_kind(&error), operation).with_source(error)
}

pub(crate) fn ipset_error(action: &str, set: SetName, error: NetlinkError) -> TableError {
    let (kind, reason) = match error.kernel().map(|error| error.errno) {
        Some(IPSET_FIND_TYPE) => (TableErrorKind::Unsupported, " (the kernel lacks its type)"),
        Some(IPSET_BUSY) => (TableErrorKind::Transient, " (rules refer to it)"),
        Some(IPSET_FULL) => (TableErrorKind::Rejected, " (it is full)"),
        Some(errno) if errno >= IPSET_PRIVATE => {
            (TableErrorKind::Rejected, " (is there another one of this name?)")
        }
        _ => (netlink_kind(&error), ""),
    };
    TableError::new(kind, format!("{action} set {set}{reason}")).with_source(error)
}

/// The refusal of a single command.
pub(crate) fn ipvs_error(command: &Command, error: KernelError) -> TableError {
    let (key, scheduler) = match command {
        Command::NewServer(server, spec) | Command::SetServer(server, spec) => {
            (Key::Server(*server), Some(&spec.scheduler))
        }
        Command::DeleteServer(server) => (Key::Server(*server), None),
        Command::NewReal(server, real, _)
        | Command::SetReal(server, real, _)
        | Command::DeleteReal(server, real) => (Key::Real(*server, real.0, real.1), None),
    };
    // Of all reasons for which a virtual server is refused, only this one is ENOENT.
    if let Some(scheduler) = scheduler.filter(|_| error.errno == ENOENT) {
        let operation = format!(
            "write {key}: the kernel has no scheduler {scheduler} (module ip_vs_{scheduler})"
        );
        return TableError::new(TableErrorKind::Rejected, operation).with_source(error);
    }
    kernel_error(&format!("write {key}"), error)
}

/// `ENOENT`.
const ENOENT: i32 = 2;
