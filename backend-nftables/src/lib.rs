//! Kubernetes Services as nftables.
//!
//! One table per IP family, `ip proxyd` and `ip6 proxyd`, programmed by netlink: no process is
//! started, and a change of one endpoint is one set element. The layout is described in the
//! module `layout`; `nft list table ip proxyd` shows it.
//!
//! With the feature `nft-tool` the same objects can be rendered for the program nft
//! (`render_text`, `render_json`), and programmed by it (`NftToolTable`).

mod compile;
mod detect;
mod drift;
mod expr;
#[cfg(feature = "nft-tool")]
mod json;
mod layout;
mod model;
mod ranges;
mod table;
#[cfg(feature = "nft-tool")]
mod text;
#[cfg(feature = "nft-tool")]
mod tool;
mod transaction;
mod uapi;
mod wire;

pub use compile::{TableConfig, compile};
pub use detect::detect;
pub use expr::{Ct, Expr, FibAddress, Header, Meta, Refusal, Register, Verdict};
#[cfg(feature = "nft-tool")]
pub use json::render_json;
pub use layout::TABLE;
pub use model::{
    Action, Base, ChainName, ChainSpec, ChainType, Hook, Key, KeyPart, Rule, RuleSpec, SetData,
    SetSpec,
};
pub use table::NftablesTable;
#[cfg(feature = "nft-tool")]
pub use text::{Unsaid, render_text};
#[cfg(feature = "nft-tool")]
pub use tool::{NftTool, NftToolTable};
