//! Settings of the kernel that this mode needs (S12). They are written once, at the start.

use node_sys::sysctl::{self, SysctlError};
use proxy_core::table::TableError;

use crate::error::netlink_error;
use crate::ipvs::{Ipvs, Timeouts};

/// Before this version a client's port that is used anew waits a second, or reaches a server of
/// weight 0, if `conn_reuse_mode` is 1 (kernel commits f0a5e4d7a594 and d752c3645717).
const REUSES_CONNECTIONS_WELL: (u32, u32) = (5, 9);

/// What can be chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Idle times of connections.
    pub timeouts: Timeouts,
    /// Whether the node answers ARP only for addresses of the asked interface, so that those on
    /// the device are not announced.
    pub strict_arp: bool,
}

/// Settings as pairs of name and value; of the second kind are those without which services do
/// not work.
fn wanted(settings: &Settings, kernel: (u32, u32)) -> Vec<(&'static str, &'static str)> {
    let mut wanted = vec![
        // Without it netfilter does not see the connections, and cannot masquerade them.
        ("net.ipv4.vs.conntrack", "1"),
        // A flow whose server is gone finds another one.
        ("net.ipv4.vs.expire_nodest_conn", "1"),
        // A client does not stay with a server that drains.
        ("net.ipv4.vs.expire_quiescent_template", "1"),
        ("net.ipv4.ip_forward", "1"),
    ];
    if kernel < REUSES_CONNECTIONS_WELL {
        wanted.push(("net.ipv4.vs.conn_reuse_mode", "0"));
    }
    if settings.strict_arp {
        wanted.push(("net.ipv4.conf.all.arp_ignore", "1"));
        wanted.push(("net.ipv4.conf.all.arp_announce", "2"));
    }
    wanted
}

/// Writes the settings that differ. What cannot be written is a warning, and named in the result:
/// a read-only /proc/sys is no reason to leave a node without services (known failure 30).
pub fn apply(settings: &Settings) -> Result<Vec<SysctlError>, TableError> {
    // Asking for IPVS loads its module, and with it come the settings.
    let ipvs = Ipvs::open().map_err(|error| netlink_error("ask for IPVS", error))?;
    let kernel = node_sys::host::kernel_version().unwrap_or(REUSES_CONNECTIONS_WELL);
    let mut failed = Vec::new();
    for (name, value) in wanted(settings, kernel) {
        match sysctl::ensure(name, value) {
            Ok(true) => tracing::info!(setting = name, value, "kernel setting written"),
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(setting = name, value, %error, "setting left as it is");
                failed.push(error);
            }
        }
    }
    let wants_timeouts = settings.timeouts != Timeouts::default();
    if let Some(mut ipvs) = ipvs.filter(|_| wants_timeouts)
        && let Err(error) = ipvs.set_timeouts(settings.timeouts)
    {
        let error = netlink_error("set the idle times of IPVS", error).chain();
        tracing::warn!(error, "idle times left as they are");
    }
    Ok(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_reused_where_the_kernel_can() {
        let mode = |kernel| {
            let wanted = wanted(&Settings::default(), kernel);
            wanted.into_iter().find(|(name, _)| name.ends_with("conn_reuse_mode"))
        };
        assert_eq!(mode((4, 19)), Some(("net.ipv4.vs.conn_reuse_mode", "0")));
        assert_eq!(mode((5, 8)), Some(("net.ipv4.vs.conn_reuse_mode", "0")));
        assert_eq!(mode((5, 9)), None);
        assert_eq!(mode((6, 1)), None);
    }

    #[test]
    fn arp_is_strict_only_if_asked() {
        let arp = |strict_arp| {
            let settings = Settings { strict_arp, ..Settings::default() };
            let wanted = wanted(&settings, (6, 1));
            wanted.into_iter().filter(|(name, _)| name.contains("arp")).count()
        };
        assert_eq!((arp(false), arp(true)), (0, 2));
    }
}
