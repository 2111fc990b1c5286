//! The narrow door to the machine.
//!
//! Everything that talks to the kernel goes through this crate: netlink sockets and their codec,
//! connection tracking, interface addresses, sysctls, facts about the host and network
//! namespaces. It offers mechanisms only; what a message, a flow or an address *means* to a
//! service proxy is decided by the crates above.
//!
//! | module | mechanism |
//! | --- | --- |
//! | [`netlink`] | codec, request sockets, atomic batches, notifications |
//! | [`addresses`] | interface addresses and a signal when they change |
//! | [`conntrack`] | streaming and deleting tracked flows |
//! | [`sysctl`] | reading and writing below `/proc/sys` |
//! | [`host`] | name, privileges, kernel release, memory in use |
//! | [`links`] | dummy links and the addresses on them |
//! | [`namespace`] | network namespaces of the calling thread |
//! | [`process`] | what this process uses of the machine |
//! | [`program`] | running programs of the system |
//! | [`xtables`] | how the tables of ip_tables and ip6_tables stand |
//! | [`worker`] | further processes of this program |
//!
//! Only the private module `sys` contains `unsafe` code.

pub mod addresses;
pub mod conntrack;
pub mod host;
pub mod links;
pub mod namespace;
pub mod netlink;
pub mod process;
pub mod program;
mod sys;
pub mod sysctl;
pub mod worker;
pub mod xtables;
