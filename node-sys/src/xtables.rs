//! How the tables of ip_tables and ip6_tables stand, without running a program.
//!
//! The kernel tells nobody that a table was replaced, but what it tells of a table when asked costs
//! a microsecond, and its contents as much as copying them (`linux/netfilter_ipv4/ip_tables.h`).
//! It makes a table that does not exist yet.

use std::hash::{DefaultHasher, Hasher as _};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::sys;

/// `IPT_SO_GET_INFO` and `IPT_SO_GET_ENTRIES`; IPv6 has the same numbers.
const GET_INFO: i32 = 64;
const GET_ENTRIES: i32 = 65;
/// `XT_TABLE_MAXNAMELEN`
const NAME_LEN: usize = 32;
/// `struct ipt_getinfo`: the name, a bit mask, twice an offset for each of five hooks, number and
/// size of the entries.
const INFO_LEN: usize = NAME_LEN + 4 + 2 * 5 * 4 + 4 + 4;
const ENTRIES_AT: usize = INFO_LEN - 8;
const SIZE_AT: usize = INFO_LEN - 4;
/// `struct ipt_get_entries` without the entries, which are aligned to 8 bytes.
const ENTRIES_HEADER_LEN: usize = NAME_LEN + 8;
/// Two counters of 8 bytes.
const COUNTERS_LEN: usize = 16;

/// Where things are in an entry.
#[derive(Clone, Copy, Debug)]
struct Layout {
    next_offset: usize,
    counters: usize,
}

/// `struct ipt_entry`
const IPV4: Layout = Layout { next_offset: 90, counters: 96 };
/// `struct ip6t_entry`
const IPV6: Layout = Layout { next_offset: 142, counters: 152 };

/// What the kernel tells of a table as a whole. It differs whenever the number of rules or chains
/// does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outline {
    info: [u8; INFO_LEN],
}

impl Outline {
    /// Number of entries: one for each rule, two for each chain, and one at the end.
    pub fn entries(&self) -> u32 {
        self.number(ENTRIES_AT)
    }

    fn size(&self) -> u32 {
        self.number(SIZE_AT)
    }

    fn number(&self, at: usize) -> u32 {
        let bytes = self.info.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u32::from_ne_bytes)
    }
}

/// Asks about the tables of one family in the network namespace in which it was opened. Needs
/// `CAP_NET_ADMIN`.
#[derive(Debug)]
pub struct Reader {
    fd: OwnedFd,
    level: i32,
    layout: Layout,
}

impl Reader {
    /// For ip_tables, or for ip6_tables.
    pub fn open(is_ipv6: bool) -> io::Result<Self> {
        let (family, level, layout) = if is_ipv6 {
            (AddressFamily::INET6, libc::SOL_IPV6, IPV6)
        } else {
            (AddressFamily::INET, libc::SOL_IP, IPV4)
        };
        let fd = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        Ok(Self { fd, level, layout })
    }

    /// What the kernel tells of a table.
    pub fn outline(&self, table: &str) -> io::Result<Outline> {
        let mut info = [0; INFO_LEN];
        put_name(&mut info, table)?;
        let len = sys::socket_option(self.fd.as_fd(), self.level, GET_INFO, &mut info)?;
        if len == INFO_LEN { Ok(Outline { info }) } else { Err(unexpected()) }
    }

    /// A digest of all contents but the counters; `None` if the outline is not that of the table
    /// any more. It is comparable within this process.
    pub fn digest(&self, table: &str, outline: &Outline) -> io::Result<Option<u64>> {
        let size = outline.size();
        let len = ENTRIES_HEADER_LEN + usize::try_from(size).map_err(io::Error::other)?;
        let mut buffer = vec![0; len];
        put_name(&mut buffer, table)?;
        buffer
            .get_mut(NAME_LEN..NAME_LEN + 4)
            .ok_or_else(unexpected)?
            .copy_from_slice(&size.to_ne_bytes());
        match sys::socket_option(self.fd.as_fd(), self.level, GET_ENTRIES, &mut buffer) {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => return Ok(None),
            Err(error) => return Err(error),
        }
        let entries = buffer.get(ENTRIES_HEADER_LEN..).unwrap_or_default();
        self.layout.digest(entries).map(Some).ok_or_else(unexpected)
    }
}

impl Layout {
    fn digest(self, mut entries: &[u8]) -> Option<u64> {
        let mut hasher = DefaultHasher::new();
        while !entries.is_empty() {
            let next = entries.get(self.next_offset..self.next_offset + 2)?;
            let next = usize::from(u16::from_ne_bytes(next.try_into().ok()?));
            let (entry, rest) = entries.split_at_checked(next)?;
            hasher.write(entry.get(..self.counters)?);
            // An entry of no length would be met for ever; it has no counters.
            hasher.write(entry.get(self.counters + COUNTERS_LEN..)?);
            entries = rest;
        }
        Some(hasher.finish())
    }
}

fn put_name(buffer: &mut [u8], table: &str) -> io::Result<()> {
    // The last byte ends the name.
    let place = buffer.get_mut(..table.len()).filter(|place| place.len() < NAME_LEN);
    place.ok_or_else(unexpected)?.copy_from_slice(table.as_bytes());
    Ok(())
}

fn unexpected() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the kernel's tables have another form")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(layout: Layout, counter: u8, target: u8) -> Vec<u8> {
        let mut entry = vec![1; layout.counters];
        entry.extend([counter; COUNTERS_LEN]);
        entry.extend([target; 40]);
        let len = u16::try_from(entry.len()).unwrap().to_ne_bytes();
        entry[layout.next_offset..layout.next_offset + 2].copy_from_slice(&len);
        entry
    }

    #[test]
    fn counters_do_not_count() {
        for layout in [IPV4, IPV6] {
            let digest = |entries: [(u8, u8); 2]| {
                layout.digest(
                    &entries.map(|(counter, target)| entry(layout, counter, target)).concat(),
                )
            };
            let first = digest([(0, 1), (0, 2)]).unwrap();
            assert_eq!(digest([(7, 1), (9, 2)]), Some(first));
            assert_ne!(digest([(0, 2), (0, 1)]), Some(first));
        }
    }

    #[test]
    fn long_names_are_refused() {
        assert!(put_name(&mut [0; 100], &"x".repeat(NAME_LEN)).is_err());
        assert!(put_name(&mut [0; 100], &"x".repeat(NAME_LEN - 1)).is_ok());
    }

    proptest! {
        #[test]
        fn any_bytes_come_to_an_end(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            IPV4.digest(&bytes);
            IPV6.digest(&bytes);
        }
    }
}
