//! Where the objects come from that a proxy acts on.
//!
//! A source hands over one stream of [`SourceEvent`]s: first a complete list of every kind, then
//! what changes. [`files`] reads a folder of manifests; [`decode`] turns text into objects. With the
//! cargo feature `kube`, the module of that name watches a cluster's API server.
//!
//! [`SourceEvent`]: proxy_core::event::SourceEvent

pub mod decode;
pub mod files;
#[cfg(feature = "kube")]
pub mod kube;
