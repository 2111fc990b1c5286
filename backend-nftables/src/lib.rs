//! Kubernetes Services as nftables.
//!
//! One table per IP family, `ip proxyd` and `ip6 proxyd`, programmed by netlink: no process is
//! started, and a change of one endpoint is one set element. The layout is described in the
//! module `layout`; `nft list table ip proxyd` shows it.
//!
//! With the feature `nft-json` the same objects can be rendered as the JSON of the program nft
//! (`render_json`), and loaded by it where netlink is no choice (`NftTool`).

mod compile;
mod detect;
mod drift;
mod expr;
#[cfg(feature = "nft-json")]
mod json;
mod layout;
mod model;
mod ranges;
mod table;
#[cfg(feature = "nft-json")]
mod tool;
mod transaction;
mod uapi;
mod wire;

pub use compile::TableConfig;
pub use detect::detect;
pub use expr::{Ct, Expr, FibAddress, Header, Meta, Refusal, Register, Verdict};
#[cfg(feature = "nft-json")]
pub use json::render_json;
pub use layout::TABLE;
pub use model::{
    Action, Base, ChainName, ChainSpec, ChainType, Hook, Key, KeyPart, Rule, RuleSpec, SetData,
    SetSpec,
};
pub use table::NftablesTable;
#[cfg(feature = "nft-json")]
pub use tool::{NftTool, Unsaid};
