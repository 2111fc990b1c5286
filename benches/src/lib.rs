//! What the benchmarks share: generated clusters, and the library's whole path in a private
//! network namespace.
//!
//! | piece | gives |
//! | --- | --- |
//! | [`cluster`] | objects of any number of Services, as a source would hand them over |
//! | [`rig`] | objects in, kernel rules out: store and tables without the driver |
//! | [`announced`] | what the kernel says that it changed |
//! | [`latency`](../latency/index.html) | binary: from event to committed, through the driver |
//! | [`memory`](../memory/index.html) | binary: resident memory after each step |
//! | [`program`](../program/index.html) | binary: the program itself, with a pretended API server |
//!
//! `BENCHMARKS.md` says how to run them and how to read what they print.

pub mod announced;
pub mod cluster;
pub mod rig;
