//! The node's settings that a configuration asks for (S12): sizes and time-outs of connection
//! tracking, and this process's score for the out-of-memory killer.
//!
//! [`plan`] decides and does nothing; [`apply`] does and decides nothing. What the kernel does not
//! let us set is a warning, unless the configuration asks for that very value: a default is no
//! reason to leave a node without services (known failure 30).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use anyhow::{Context as _, bail};
use node_sys::sysctl::{self, SysctlError};

use crate::config::{Flags, KubeProxyConfiguration};

/// Beyond this the size per core is not followed (S12).
const MAX_CONNTRACK: u64 = 1_048_576;
/// Flows for each bucket of the hash table.
const FLOWS_PER_BUCKET: u64 = 4;

/// A setting of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Setting {
    /// How many flows are tracked at most.
    ConntrackMax,
    /// Buckets of the table of flows.
    ConntrackBuckets,
    /// Idle time of established TCP connections.
    TcpEstablished,
    /// Time of TCP connections in CLOSE_WAIT.
    TcpCloseWait,
    /// Whether out-of-window packets are not marked invalid.
    TcpBeLiberal,
    /// Idle time of unanswered UDP flows.
    Udp,
    /// Idle time of answered UDP flows.
    UdpStream,
    /// Score of this process for the out-of-memory killer.
    OomScoreAdj,
}

/// Where a setting is.
enum Place {
    Sysctl(&'static str),
    File(&'static str),
}

impl Setting {
    /// All settings, in the order in which they are written.
    pub const ALL: [Self; 8] = [
        Self::ConntrackMax,
        Self::ConntrackBuckets,
        Self::TcpEstablished,
        Self::TcpCloseWait,
        Self::TcpBeLiberal,
        Self::Udp,
        Self::UdpStream,
        Self::OomScoreAdj,
    ];

    fn place(self) -> Place {
        match self {
            Self::ConntrackMax => Place::Sysctl("net.netfilter.nf_conntrack_max"),
            Self::ConntrackBuckets => Place::File("/sys/module/nf_conntrack/parameters/hashsize"),
            Self::TcpEstablished => {
                Place::Sysctl("net.netfilter.nf_conntrack_tcp_timeout_established")
            }
            Self::TcpCloseWait => {
                Place::Sysctl("net.netfilter.nf_conntrack_tcp_timeout_close_wait")
            }
            Self::TcpBeLiberal => Place::Sysctl("net.netfilter.nf_conntrack_tcp_be_liberal"),
            Self::Udp => Place::Sysctl("net.netfilter.nf_conntrack_udp_timeout"),
            Self::UdpStream => Place::Sysctl("net.netfilter.nf_conntrack_udp_timeout_stream"),
            Self::OomScoreAdj => Place::File("/proc/self/oom_score_adj"),
        }
    }

    /// The sysctl or file.
    pub fn name(self) -> &'static str {
        match self.place() {
            Place::Sysctl(name) | Place::File(name) => name,
        }
    }

    /// Whether the process may end because of this setting. The size of the hash table is our
    /// own conclusion, and the score concerns this process only.
    fn may_be_required(self) -> bool {
        !matches!(self, Self::ConntrackBuckets | Self::OomScoreAdj)
    }

    /// What is lacking if a write fails like this: something that an operator can give.
    fn lack(self, error: &anyhow::Error) -> Option<&'static str> {
        let io = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>());
        let sysctl = error.chain().find_map(|cause| cause.downcast_ref::<SysctlError>());
        match (self, sysctl, io.map(io::Error::kind)) {
            (_, Some(SysctlError::ReadOnly { .. }), _)
            | (_, _, Some(io::ErrorKind::ReadOnlyFilesystem)) => Some(
                "writable /proc/sys and /sys, as `proxyd --init-only` has in a privileged container",
            ),
            (_, Some(SysctlError::Missing { .. }), _) => Some("kernel module nf_conntrack"),
            (Self::OomScoreAdj, _, Some(io::ErrorKind::PermissionDenied)) => {
                Some("capability CAP_SYS_RESOURCE in the host's user namespace")
            }
            (Self::ConntrackBuckets, _, Some(io::ErrorKind::PermissionDenied)) => {
                Some("the host's user root")
            }
            (_, Some(SysctlError::Permission { .. }), _) => Some("capability CAP_NET_ADMIN"),
            _ => None,
        }
    }

    fn read(self) -> Option<i64> {
        let text = match self.place() {
            Place::Sysctl(name) => sysctl::read(name).ok()?,
            Place::File(path) => fs::read_to_string(path).ok()?,
        };
        text.trim().parse().ok()
    }

    fn write(self, value: i64) -> anyhow::Result<()> {
        match self.place() {
            Place::Sysctl(name) => Ok(sysctl::write(name, &value.to_string())?),
            Place::File(path) => write_file(path, value).with_context(|| format!("write {path}")),
        }
    }
}

fn write_file(path: &str, value: i64) -> io::Result<()> {
    // Neither created nor truncated, and in one write: the kernel takes each write as a value.
    fs::OpenOptions::new().write(true).open(path)?.write_all(format!("{value}\n").as_bytes())
}

/// What the kernel has now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Current {
    /// The values that could be read.
    pub values: BTreeMap<Setting, i64>,
    /// Settings that only the initial network namespace has for writing.
    pub belongs_to_host: BTreeSet<Setting>,
    /// Number of processors.
    pub cpus: u32,
}

impl Current {
    /// Reads what the kernel has now.
    pub fn read() -> Self {
        let values = Setting::ALL.into_iter().filter_map(|it| Some((it, it.read()?))).collect();
        let belongs_to_host = if is_read_only("/proc/sys/net/netfilter/nf_conntrack_max") {
            [Setting::ConntrackMax, Setting::ConntrackBuckets].into()
        } else {
            BTreeSet::new()
        };
        Self { values, belongs_to_host, cpus: cpus() }
    }
}

/// The kernel takes the write permission from a setting that a network namespace may not change.
fn is_read_only(path: &str) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o222 == 0)
}

/// Processors of the machine, not those that this process may use.
fn cpus() -> u32 {
    let online = fs::read_to_string("/sys/devices/system/cpu/online").ok();
    online.as_deref().and_then(parse_cpus).unwrap_or_else(|| {
        let available = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        u32::try_from(available).unwrap_or(u32::MAX)
    })
}

/// Counts a list like `0-3,8`.
fn parse_cpus(list: &str) -> Option<u32> {
    let mut count = 0;
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        count += last.checked_sub(first)? + 1;
    }
    Some(count)
}

/// One setting to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// The setting.
    pub setting: Setting,
    /// Its new value.
    pub value: i64,
    /// The field of the configuration that decides the value.
    pub field: &'static str,
}

/// What is to be written so that the kernel has what the configuration asks for.
pub fn plan(config: &KubeProxyConfiguration, current: &Current) -> Vec<Write> {
    let mut writes = wanted(config, current.cpus);
    writes.retain(|write| match (write.setting, current.values.get(&write.setting)) {
        (Setting::ConntrackBuckets, Some(buckets)) => *buckets < write.value,
        (_, value) => value != Some(&write.value),
    });
    writes
}

fn wanted(config: &KubeProxyConfiguration, cpus: u32) -> Vec<Write> {
    let conntrack = &config.conntrack;
    let mut writes = Vec::new();
    let mut want = |setting, value: u64, field| {
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        writes.push(Write { setting, value, field });
    };
    if let Some((max, field)) = conntrack_max(conntrack.max_per_core, conntrack.min, cpus) {
        want(Setting::ConntrackMax, max, field);
        want(Setting::ConntrackBuckets, max / FLOWS_PER_BUCKET, field);
    }
    for (setting, timeout, field) in [
        (
            Setting::TcpEstablished,
            conntrack.tcp_established_timeout,
            "conntrack.tcpEstablishedTimeout",
        ),
        (Setting::TcpCloseWait, conntrack.tcp_close_wait_timeout, "conntrack.tcpCloseWaitTimeout"),
        (Setting::Udp, conntrack.udp_timeout, "conntrack.udpTimeout"),
        (Setting::UdpStream, conntrack.udp_stream_timeout, "conntrack.udpStreamTimeout"),
    ] {
        if !timeout.is_zero() {
            want(setting, whole_seconds(timeout), field);
        }
    }
    if conntrack.tcp_be_liberal {
        // Never reset: whoever else set it may rely on it.
        want(Setting::TcpBeLiberal, 1, "conntrack.tcpBeLiberal");
    }
    let (setting, value) = (Setting::OomScoreAdj, i64::from(config.oom_score_adj));
    writes.push(Write { setting, value, field: "oomScoreAdj" });
    writes.sort_by_key(|write| write.setting);
    writes
}

/// The limit and the field that decides it; `None` leaves the kernel's. The upper bound wins over
/// the lower one, as in kube-proxy.
fn conntrack_max(per_core: u32, min: u32, cpus: u32) -> Option<(u64, &'static str)> {
    let (scaled, min) = (u64::from(per_core) * u64::from(cpus), u64::from(min));
    match scaled {
        0 => None,
        _ if scaled > MAX_CONNTRACK => Some((MAX_CONNTRACK, "conntrack.maxPerCore")),
        _ if scaled < min => Some((min, "conntrack.min")),
        _ => Some((scaled, "conntrack.maxPerCore")),
    }
}

/// Rounded up, so that what is not zero does not become zero.
fn whole_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

/// The fields that the operator set, in the file or, without one, by flag.
pub fn asked_for(given: &BTreeSet<String>, flags: &Flags) -> BTreeSet<String> {
    if flags.config.is_some() {
        return given.clone();
    }
    let by_flag = [
        (flags.conntrack_max_per_core.is_some(), "conntrack.maxPerCore"),
        (flags.conntrack_min.is_some(), "conntrack.min"),
        (flags.conntrack_tcp_timeout_established.is_some(), "conntrack.tcpEstablishedTimeout"),
        (flags.conntrack_tcp_timeout_close_wait.is_some(), "conntrack.tcpCloseWaitTimeout"),
        (flags.conntrack_tcp_be_liberal.is_some(), "conntrack.tcpBeLiberal"),
        (flags.conntrack_udp_timeout.is_some(), "conntrack.udpTimeout"),
        (flags.conntrack_udp_timeout_stream.is_some(), "conntrack.udpStreamTimeout"),
    ];
    by_flag.into_iter().filter(|(given, _)| *given).map(|(_, field)| field.to_owned()).collect()
}

/// Brings the kernel's settings in line with the configuration; `asked_for` are the fields that
/// the operator set. All settings are tried before an error is returned.
pub fn apply(config: &KubeProxyConfiguration, asked_for: &BTreeSet<String>) -> anyhow::Result<()> {
    let current = Current::read();
    apply_plan(&plan(config, &current), &current, asked_for, |write| {
        write.setting.write(write.value)
    })
}

fn apply_plan(
    plan: &[Write],
    current: &Current,
    asked_for: &BTreeSet<String>,
    mut write: impl FnMut(&Write) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut errors = Vec::new();
    for step in plan {
        let Write { setting, value, field } = *step;
        let name = setting.name();
        let before = current.values.get(&setting);
        if current.belongs_to_host.contains(&setting) {
            tracing::warn!(
                setting = name,
                value,
                ?before,
                field,
                "left alone: only the host's network namespace can change it"
            );
            continue;
        }
        match write(step) {
            Ok(()) => {
                tracing::info!(setting = name, value, ?before, field, "kernel setting written");
            }
            Err(error) => {
                let lack = setting.lack(&error);
                if setting.may_be_required() && asked_for.contains(field) {
                    let lack = lack.map(|lack| format!(" ({lack})")).unwrap_or_default();
                    errors
                        .push(format!("{field}: failed to set {name} to {value}: {error:#}{lack}"));
                } else {
                    let error = format!("{error:#}");
                    tracing::warn!(
                        setting = name,
                        value,
                        ?before,
                        field,
                        error,
                        lack,
                        "setting left as it is"
                    );
                }
            }
        }
    }
    if errors.is_empty() { Ok(()) } else { bail!("{}", errors.join("; ")) }
}

#[cfg(test)]
mod tests {
    use Setting::{
        ConntrackBuckets, ConntrackMax, OomScoreAdj, TcpBeLiberal, TcpCloseWait, TcpEstablished,
        Udp, UdpStream,
    };

    use super::*;
    use crate::config::load;

    fn config(flags: &[&str]) -> KubeProxyConfiguration {
        let flags = [&["--proxy-mode=nftables"], flags].concat();
        load(&Flags::parse(flags).unwrap(), &|_| Ok(String::new())).unwrap().config
    }

    /// What is written with these flags on a kernel that has these values.
    fn check(flags: &[&str], cpus: u32, values: &[(Setting, i64)], expected: &[(Setting, i64)]) {
        let current =
            Current { values: values.iter().copied().collect(), cpus, ..Current::default() };
        let writes: Vec<_> =
            plan(&config(flags), &current).iter().map(|it| (it.setting, it.value)).collect();
        assert_eq!(writes, expected, "{flags:?} on {cpus} processors with {values:?}");
    }

    const OTHERS: [(Setting, i64); 3] =
        [(TcpEstablished, 86_400), (TcpCloseWait, 3_600), (OomScoreAdj, -999)];

    #[test]
    fn s12_defaults() {
        check(
            &[],
            8,
            &[],
            &[
                (ConntrackMax, 262_144),
                (ConntrackBuckets, 65_536),
                (TcpEstablished, 86_400),
                (TcpCloseWait, 3_600),
                (OomScoreAdj, -999),
            ],
        );
    }

    #[test]
    fn s12_what_is_so_already_is_not_written() {
        let max = [(ConntrackMax, 262_144), (ConntrackBuckets, 65_536)];
        check(&[], 8, &[max.as_slice(), &OTHERS].concat(), &[]);
        // The table is never made smaller.
        let large = [(ConntrackMax, 262_144), (ConntrackBuckets, 99_999)];
        check(&[], 8, &[large.as_slice(), &OTHERS].concat(), &[]);
        let small = [(ConntrackMax, 262_144), (ConntrackBuckets, 65_535)];
        let all = [small.as_slice(), &OTHERS].concat();
        check(&[], 8, &all, &[(ConntrackBuckets, 65_536)]);
        // The limit is, if the kernel's is larger.
        let large = [(ConntrackMax, 500_000), (ConntrackBuckets, 99_999)];
        check(&[], 8, &[large.as_slice(), &OTHERS].concat(), &[(ConntrackMax, 262_144)]);
    }

    #[test]
    fn edge_24_the_limit() {
        let max = |per_core, min, cpus| conntrack_max(per_core, min, cpus).map(|it| it.0);
        assert_eq!(max(32_768, 131_072, 1), Some(131_072));
        assert_eq!(max(32_768, 131_072, 4), Some(131_072));
        assert_eq!(max(32_768, 131_072, 5), Some(163_840));
        assert_eq!(max(32_768, 131_072, 32), Some(1_048_576));
        assert_eq!(max(32_768, 131_072, 64), Some(1_048_576));
        assert_eq!(max(32_768, 2_000_000, 64), Some(1_048_576), "the cap wins over min");
        assert_eq!(max(32_768, 2_000_000, 4), Some(2_000_000));
        assert_eq!(max(0, 131_072, 4), None, "min alone asks for nothing");
        assert_eq!(max(i32::MAX.unsigned_abs(), 0, u32::MAX), Some(1_048_576));
        assert_eq!(conntrack_max(32_768, 131_072, 1).unwrap().1, "conntrack.min");
        assert_eq!(conntrack_max(65_536, 0, 64).unwrap().1, "conntrack.maxPerCore");
    }

    #[test]
    fn s12_hands_off() {
        let none = [
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0s",
        ];
        check(&none, 8, &[(OomScoreAdj, -999)], &[]);
    }

    #[test]
    fn s12_what_is_untouched_by_default() {
        let flags = [
            "--conntrack-max-per-core=0",
            "--conntrack-udp-timeout=1500ms",
            "--conntrack-udp-timeout-stream=2m",
            "--conntrack-tcp-be-liberal",
            "--oom-score-adj=-5",
        ];
        let values = [(TcpEstablished, 86_400), (TcpCloseWait, 1), (TcpBeLiberal, 0)];
        let expected = [
            (TcpCloseWait, 3_600),
            (TcpBeLiberal, 1),
            (Udp, 2),
            (UdpStream, 120),
            (OomScoreAdj, -5),
        ];
        check(&flags, 8, &values, &expected);
    }

    /// The fields named in the error, if nothing can be written.
    fn refused(flags: &[&str], current: &Current) -> Option<String> {
        let parsed = Flags::parse(flags).unwrap();
        let plan = plan(&config(flags), current);
        let asked_for = asked_for(&BTreeSet::new(), &parsed);
        let result = apply_plan(&plan, current, &asked_for, |_| bail!("read-only"));
        result.err().map(|error| error.to_string())
    }

    #[test]
    fn failure_30_only_what_was_asked_for_is_an_error() {
        let current = Current { cpus: 8, ..Current::default() };
        assert_eq!(refused(&[], &current), None);
        let error = refused(&["--conntrack-max-per-core=50000"], &current).unwrap();
        assert_eq!(
            error,
            "conntrack.maxPerCore: failed to set net.netfilter.nf_conntrack_max to 400000: \
             read-only"
        );
        // The value comes from maxPerCore, which nobody set.
        assert_eq!(refused(&["--conntrack-min=1"], &current), None);
        assert!(refused(&["--conntrack-min=500000"], &current).is_some());
        assert_eq!(refused(&["--oom-score-adj=-5"], &current), None, "S12");
        let both = refused(&["--conntrack-udp-timeout=1s", "--conntrack-tcp-be-liberal"], &current);
        assert!(both.unwrap().contains("; conntrack."), "all of them are reported");
    }

    #[test]
    fn what_is_lacking_is_named() {
        let check = |setting: Setting, error: anyhow::Error, expected: &str| {
            let lack = setting.lack(&error).unwrap_or_default();
            assert!(lack.contains(expected), "{setting:?}, {error:#}: {lack:?}");
        };
        let name = || "net.x".to_owned();
        let denied = || SysctlError::Permission {
            name: name(),
            source: io::ErrorKind::PermissionDenied.into(),
        };
        check(TcpEstablished, denied().into(), "CAP_NET_ADMIN");
        check(TcpEstablished, SysctlError::ReadOnly { name: name() }.into(), "--init-only");
        check(Udp, SysctlError::Missing { name: name() }.into(), "nf_conntrack");
        let file =
            |kind: io::ErrorKind| anyhow::Error::from(io::Error::from(kind)).context("write");
        check(OomScoreAdj, file(io::ErrorKind::PermissionDenied), "CAP_SYS_RESOURCE");
        check(ConntrackBuckets, file(io::ErrorKind::PermissionDenied), "root");
        check(ConntrackBuckets, file(io::ErrorKind::ReadOnlyFilesystem), "--init-only");
        assert_eq!(Udp.lack(&file(io::ErrorKind::InvalidInput)), None);
    }

    #[test]
    fn s12_other_network_namespaces_leave_the_hosts_settings_alone() {
        let belongs_to_host = [ConntrackMax, ConntrackBuckets].into();
        let current = Current { cpus: 8, belongs_to_host, ..Current::default() };
        assert_eq!(refused(&["--conntrack-max-per-core=50000"], &current), None);
    }

    #[test]
    fn a_default_is_asked_for_if_the_file_spells_it_out() {
        let given = |conntrack: &str| {
            let text = format!(
                "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n\
                 conntrack: {conntrack}\n"
            );
            let flags = Flags::parse(["--config=f"]).unwrap();
            let loaded = load(&flags, &|_| Ok(text.clone())).unwrap();
            asked_for(&loaded.given, &flags).contains("conntrack.min")
        };
        assert!(given("{min: 131072}"));
        // As kubeadm writes what nobody set.
        assert!(!given("{min: null}") && !given("{}"));
    }

    #[test]
    fn fields_of_a_file_count_only_with_a_file() {
        let given: BTreeSet<String> = ["conntrack.min".to_owned()].into();
        let flags = Flags::parse(["--config=f", "--conntrack-max-per-core=1"]).unwrap();
        assert_eq!(asked_for(&given, &flags), given);
    }

    #[test]
    fn processors_are_counted() {
        let check = |list: &str, expected| assert_eq!(parse_cpus(list), expected, "{list:?}");
        check("0\n", Some(1));
        check("0-3\n", Some(4));
        check("0-3,8,10-11\n", Some(7));
        check("", None);
        check("3-1", None);
    }

    #[test]
    fn this_kernel_is_read() {
        let current = Current::read();
        assert!(current.cpus > 0);
        assert!(current.values.contains_key(&OomScoreAdj));
    }
}
