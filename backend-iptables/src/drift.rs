//! Noticing that somebody else changed our rules.
//!
//! The nft variant's kernel notifies of each change ([`nft`]). The legacy variant's does not, so it
//! is asked how its tables stand ([`legacy`]).

pub(crate) mod legacy;
pub(crate) mod nft;
