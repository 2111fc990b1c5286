//! Tests against the running kernel, each in network namespaces of its own.

#[cfg(test)]
mod addresses;
#[cfg(test)]
mod common;
#[cfg(test)]
mod conntrack;
#[cfg(test)]
mod namespace;
#[cfg(test)]
mod netlink;
#[cfg(test)]
mod xtables;
