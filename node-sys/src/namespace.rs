//! Network namespaces of the calling thread, and the user namespace that makes them possible.
//!
//! A namespace belongs to a thread, and so do sockets to the namespace their thread was in when
//! it opened them. Enter a namespace on a thread of its own, and before building a runtime.

use std::fs::{self, File};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::panic;
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::netlink::{MessageBuffer, NetlinkError, Protocol, Socket, flags};
use crate::sys;

/// Every namespace gives its loopback interface this index (`LOOPBACK_IFINDEX` in the kernel's
/// `include/net/flow.h`).
const LOOPBACK_INDEX: i32 = 1;
/// `RTM_NEWLINK` (`linux/rtnetlink.h`).
const RTM_NEWLINK: u16 = 16;
/// `IFF_UP` (`linux/if.h`).
const IFF_UP: u32 = 1;

/// Changing or reading the thread's network namespace failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NamespaceError {
    /// A new namespace was refused.
    #[error("create network namespace")]
    Create(#[source] io::Error),
    /// A new user namespace was refused.
    #[error("create user namespace")]
    CreateUser(#[source] io::Error),
    /// The user could not be made root of the new user namespace.
    #[error("map this user to root in the new user namespace")]
    MapUser(#[source] io::Error),
    /// The thread could not move.
    #[error("enter network namespace")]
    Enter(#[source] io::Error),
    /// The thread's own namespace could not be opened.
    #[error("open the current network namespace")]
    Current(#[source] io::Error),
    /// The loopback interface could not be brought up.
    #[error("bring up the loopback interface")]
    Loopback(#[source] NetlinkError),
    /// No thread could be started to enter the namespace.
    #[error("start a thread for the network namespace")]
    Thread(#[source] io::Error),
}

impl NamespaceError {
    /// Whether the privilege (`CAP_SYS_ADMIN`) is missing.
    pub fn is_permission(&self) -> bool {
        match self {
            Self::Create(source)
            | Self::CreateUser(source)
            | Self::MapUser(source)
            | Self::Enter(source)
            | Self::Current(source) => source.kind() == io::ErrorKind::PermissionDenied,
            Self::Loopback(source) => source.is_permission(),
            Self::Thread(_) => false,
        }
    }
}

/// Moves the process into a new user namespace, in which its user is root and may make network
/// namespaces (user_namespaces(7)). Outside it gains nothing.
///
/// Only a process with a single thread can move. Some systems refuse it to ordinary users.
pub fn enter_new_user_namespace() -> Result<(), NamespaceError> {
    let user = rustix::process::geteuid().as_raw();
    let group = rustix::process::getegid().as_raw();
    sys::unshare_user().map_err(NamespaceError::CreateUser)?;
    let map = |file: &str, text: &str| fs::write(file, text).map_err(NamespaceError::MapUser);
    // Without this nobody but a privileged parent may map groups.
    map("/proc/self/setgroups", "deny")?;
    map("/proc/self/uid_map", &format!("0 {user} 1"))?;
    map("/proc/self/gid_map", &format!("0 {group} 1"))
}

/// Moves the calling thread into a new network namespace whose loopback interface is up.
///
/// The namespace vanishes with the last thread, socket or descriptor that uses it. Threads started
/// afterwards by this thread are born into it; threads that exist already are not moved.
pub fn enter_new_network_namespace() -> Result<(), NamespaceError> {
    sys::unshare_network().map_err(NamespaceError::Create)?;
    bring_up_loopback().map_err(NamespaceError::Loopback)
}

/// Runs `work` on a thread of its own in a new network namespace, and waits for it.
///
/// A panic in `work` continues in the caller.
pub fn in_new_network_namespace<T: Send>(
    work: impl FnOnce() -> T + Send,
) -> Result<T, NamespaceError> {
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .name("netns".to_owned())
            .spawn_scoped(scope, || enter_new_network_namespace().map(|()| work()))
            .map_err(NamespaceError::Thread)?;
        thread.join().unwrap_or_else(|payload| panic::resume_unwind(payload))
    })
}

/// The calling thread's network namespace, to come back to it or to hand it to another thread.
pub fn current() -> Result<OwnedFd, NamespaceError> {
    // Not /proc/self: that is the main thread's.
    File::open("/proc/thread-self/ns/net").map(OwnedFd::from).map_err(NamespaceError::Current)
}

/// Moves the calling thread into the network namespace that `fd` refers to.
pub fn enter(fd: BorrowedFd<'_>) -> Result<(), NamespaceError> {
    move_into_link_name_space(fd, Some(LinkNameSpaceType::Network))
        .map_err(|errno| NamespaceError::Enter(errno.into()))
}

fn bring_up_loopback() -> Result<(), NetlinkError> {
    let mut socket = Socket::open(Protocol::ROUTE)?;
    let mut request = MessageBuffer::new();
    request.begin(RTM_NEWLINK, flags::REQUEST | flags::ACK, socket.next_sequence());
    // struct ifinfomsg: family, padding and type, then index, flags and which flags to change.
    request.put(&[0; 4]);
    request.put(&LOOPBACK_INDEX.to_ne_bytes());
    request.put(&IFF_UP.to_ne_bytes());
    request.put(&IFF_UP.to_ne_bytes());
    request.end();
    socket.request(&request)
}
