//! The loop around the core: what ends up in a kernel, whatever fails, and when.
//!
//! The kernel is a map that refuses every step that a real one would refuse, and panics where a
//! frontend would point at nothing. Time is simulated; nothing sleeps, and chance has seeds.
#![cfg(test)]
#![cfg(feature = "driver")]

mod brittle;
mod chores;
mod cluster;
mod drift;
mod fake;
mod families;
mod faults;
mod findings;
mod followups;
mod gate;
mod handover;
mod pace;
mod refused;
mod repeats;
mod restart;
mod rig;
mod scenarios;
