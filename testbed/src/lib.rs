//! Test support: throwaway node worlds made of network namespaces, real packets through them, and
//! the conformance runner.
//!
//! Nothing here is published. The pieces, from the bottom up:
//!
//! | module | gives |
//! | --- | --- |
//! | [`netns`] | network namespaces without names, and running code or programs inside them |
//! | [`echo`] | servers that answer under any address and say who was reached by whom |
//! | [`dial`] | one connection or datagram from a chosen source, and what became of it |
//! | [`http`] | one HTTP question, for health and metrics ports |
//! | [`world`] | a node, its pods and everything outside, wired together ([`world::World`]) |
//! | [`manifests`] | a folder of Kubernetes objects that changes atomically |
//! | [`proxy`] | the program under test as a guarded child process |
//! | [`traffic`] | a steady stream of new connections that counts failures |
//! | [`cases`], [`conformance`] | the case files and the runner that plays them |
//! | [`apiserver`] | a pretended API server, with every fault on demand |
//! | [`uml`] | running tests on the kernel of User Mode Linux |
//! | [`builders`], [`scale`] | Kubernetes objects as JSON values, few or many |
//! | `resolved` (feature) | Services as core hands them to backends |
//!
//! All of it works for root and inside an unprivileged user namespace (`unshare -Urn`). The
//! machine's own network namespace is never changed.

pub mod apiserver;
pub mod builders;
pub mod cases;
pub mod conformance;
pub mod dial;
pub mod echo;
pub mod http;
pub mod manifests;
pub mod netns;
pub mod proxy;
#[cfg(feature = "resolved")]
pub mod resolved;
pub mod scale;
pub mod target;
pub mod traffic;
pub mod uml;
pub mod wait;
pub mod world;

pub use netns::Netns;
pub use proxy::Proxyd;
pub use traffic::Traffic;
pub use wait::wait_until;
pub use world::{Place, World};
