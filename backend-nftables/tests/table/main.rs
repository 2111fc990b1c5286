//! What the rules do to packets, and the table against the real kernel, each test in a namespace
//! of its own.

#[cfg(test)]
mod affinity;

#[cfg(test)]
mod compiled;
#[cfg(test)]
mod drift;
#[cfg(test)]
mod errors;
#[cfg(test)]
mod foreign;
#[cfg(test)]
mod packets;
#[cfg(test)]
mod repair;
#[cfg(test)]
mod scale;
#[cfg(test)]
mod state;
#[cfg(test)]
#[path = "../support/mod.rs"]
mod support;

#[cfg(test)]
#[cfg(feature = "nft-tool")]
mod tool;
