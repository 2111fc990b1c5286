//! A node, and everything around it, in two network namespaces of the worker's own.
//!
//! ```text
//!   netns node              netns peer
//!  ┌─────────────┐         ┌──────────────────────────────┐
//!  │ 192.168.0.2 │  veth   │ clients and servers          │
//!  │        peer ═════════ node   out: → node             │
//!  │ the rules   │         │      in:  all local          │
//!  └─────────────┘         └──────────────────────────────┘
//! ```
//!
//! The peer has no addresses: whatever arrives there is local, whatever starts there leaves. So one
//! server answers for all pods, and everything crosses the node, twice.

use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use node_sys::host::{self, Capabilities};
use node_sys::{namespace, program, sysctl};

use super::cluster::NODE_ADDRESS;

/// `ip` is done at once; this is for a machine that is out of memory.
const LIMIT: Duration = Duration::from_secs(20);

/// Settings of both namespaces.
const SETTINGS: &[(&str, &str)] = &[
    ("net.ipv4.conf.all.rp_filter", "0"),
    ("net.ipv4.conf.default.rp_filter", "0"),
    ("net.ipv4.conf.all.send_redirects", "0"),
    ("net.ipv4.conf.default.send_redirects", "0"),
];

/// The peer's namespace; the node's is that of the thread that made it.
#[derive(Debug)]
pub(super) struct World {
    peer: OwnedFd,
}

impl World {
    /// Moves the calling thread, the only one of the process, into the node's namespace.
    pub(super) fn enter() -> anyhow::Result<Self> {
        let privileges = host::capabilities()?;
        if !(privileges.has(Capabilities::SYS_ADMIN) && privileges.has_net_admin()) {
            namespace::enter_new_user_namespace()
                .context("without root this needs user namespaces")?;
        }
        let peer = thread::spawn(|| {
            namespace::enter_new_network_namespace()?;
            namespace::current()
        });
        let peer = peer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        namespace::enter_new_network_namespace()?;
        let world = Self { peer };
        set(SETTINGS)?;
        set(&[("net.ipv4.ip_forward", "1")])?;
        let fd = format!("/proc/{}/fd/{}", std::process::id(), world.peer.as_raw_fd());
        // Both ends have one hardware address and no ARP: every address is at the other end.
        ip(&format!(
            "link add peer address 02:00:00:00:00:01 type veth \
             peer name node address 02:00:00:00:00:01 netns {fd}\n\
             link set peer arp off up\n\
             address add {NODE_ADDRESS}/24 dev peer\n\
             route add default dev peer\n"
        ))?;
        world.in_peer(|| {
            set(SETTINGS)?;
            ip("link set node arp off up\n\
                rule add iif node lookup 100 priority 100\n\
                route add local default dev lo table 100\n\
                route add default dev node\n")
        })??;
        Ok(world)
    }

    /// Runs `work` in the peer's namespace. Sockets that it makes belong there for good.
    pub(super) fn in_peer<T: Send>(&self, work: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                namespace::enter(self.peer.as_fd())?;
                Ok(work())
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

fn set(settings: &[(&str, &str)]) -> anyhow::Result<()> {
    for (name, value) in settings {
        sysctl::write(name, value)?;
    }
    Ok(())
}

/// Runs commands of `ip`, in the calling thread's namespace.
fn ip(lines: &str) -> anyhow::Result<()> {
    let output = match program::run("ip", &["-batch", "-"], lines.as_bytes(), LIMIT) {
        Err(program::ProgramError::Start { source, .. })
            if source.kind() == std::io::ErrorKind::NotFound =>
        {
            bail!("the program ip was not found: install iproute2")
        }
        output => output?,
    };
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "failed to connect the namespaces: ip: {}", said.trim());
    Ok(())
}
