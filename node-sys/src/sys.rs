//! System calls that have no safe wrapper elsewhere. Nothing else in the crate is `unsafe`.
#![expect(
    unsafe_code,
    reason = "some socket options, unshare and the reactor's registration have no safe wrapper"
)]

use std::ffi::c_void;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

#[cfg(feature = "tokio")]
use tokio::io::{Interest, unix::AsyncFd};

#[cfg(feature = "tokio")]
use crate::netlink::Listener;

/// Sets a `SOL_NETLINK` option that takes an `int` (`linux/netlink.h`).
pub(crate) fn set_netlink_option(fd: BorrowedFd<'_>, option: i32, value: u32) -> io::Result<()> {
    // SAFETY: the kernel reads `size_of::<u32>()` bytes from a live local variable and keeps no
    // reference to it.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_NETLINK,
            option,
            (&raw const value).cast::<c_void>(),
            socklen(size_of::<u32>()),
        )
    };
    check(result)
}

/// Reads a socket option into a buffer whose beginning may tell the kernel what is wanted; returns
/// how many bytes of it are the answer.
pub(crate) fn socket_option(
    fd: BorrowedFd<'_>,
    level: i32,
    option: i32,
    buffer: &mut [u8],
) -> io::Result<usize> {
    let mut len = socklen(buffer.len());
    // SAFETY: the kernel reads and writes at most `len` bytes of the borrowed slice, whose length
    // that is at most, and keeps no reference to it.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            level,
            option,
            buffer.as_mut_ptr().cast::<c_void>(),
            &raw mut len,
        )
    };
    check(result)?;
    usize::try_from(len).map_err(io::Error::other)
}

/// Attaches a classic BPF program to a socket, replacing the one before.
pub(crate) fn attach_filter(
    fd: BorrowedFd<'_>,
    program: &mut [libc::sock_filter],
) -> io::Result<()> {
    let len = u16::try_from(program.len())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "socket filter too long"))?;
    let program = libc::sock_fprog { len, filter: program.as_mut_ptr() };
    // SAFETY: `program` describes exactly the instructions of the borrowed slice, and the kernel
    // copies them before the call returns.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast::<c_void>(),
            socklen(size_of::<libc::sock_fprog>()),
        )
    };
    check(result)
}

/// Moves the calling thread into a new network namespace.
pub(crate) fn unshare_network() -> io::Result<()> {
    // SAFETY: `CLONE_NEWNET` changes only the thread's network namespace: no memory, signal
    // handler or file descriptor table is affected.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET) })
}

/// Moves the process, which must have one thread, into a new user namespace.
pub(crate) fn unshare_user() -> io::Result<()> {
    // SAFETY: `CLONE_NEWUSER` changes only credentials: no memory, signal handler or file
    // descriptor table is affected. The kernel refuses it to a process with several threads.
    check(unsafe { libc::unshare(libc::CLONE_NEWUSER) })
}

/// What this process has used (`RUSAGE_SELF`), or those of its children that have ended and were
/// waited for, with theirs (`RUSAGE_CHILDREN`).
pub(crate) fn resources_used(who: libc::c_int) -> io::Result<libc::rusage> {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel writes one `rusage` to a live local variable of that type.
    check(unsafe { libc::getrusage(who, usage.as_mut_ptr()) })?;
    // SAFETY: all bytes are initialised, and every bit pattern of its integers is valid.
    Ok(unsafe { usage.assume_init() })
}

/// Registers a listener with the current reactor, for reading.
#[cfg(feature = "tokio")]
pub(crate) fn watch(listener: Listener) -> io::Result<AsyncFd<Listener>> {
    // SAFETY: a listener owns its descriptor, never replaces it and always returns the same one.
    // The only holder of the result, `AsyncListener`, gives nobody else mutable access to it.
    let watched = unsafe { AsyncFd::register_with_interest(listener, Interest::READABLE) };
    Ok(watched?)
}

/// Option sizes here are a few bytes, so the conversion never saturates.
fn socklen(size: usize) -> libc::socklen_t {
    libc::socklen_t::try_from(size).unwrap_or(libc::socklen_t::MAX)
}

fn check(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
