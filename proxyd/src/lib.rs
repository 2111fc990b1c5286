//! proxyd: a service proxy for Kubernetes nodes, in kube-proxy's place.
//!
//! This crate is wiring: it reads flags and configuration, picks a source of objects and a kernel
//! backend, serves health, and handles signals. What Services mean is in `proxy-core`.

pub mod ab;
pub mod cli;
pub mod config;
pub mod events;
pub mod flows;
pub mod health_checks;
pub mod healthz;
pub mod http;
pub mod kernel_settings;
pub mod logging;
pub mod metrics;
pub mod objects;
pub mod reload;
pub mod render;
pub mod run;
pub mod snapshot;
pub mod status;
pub mod tables;

/// The README's example, so that it keeps compiling.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
