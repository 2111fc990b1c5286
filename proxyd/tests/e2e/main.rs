//! The real program on the real kernel, from end to end, each test in a world of its own.
//!
//! Without the privilege to make network namespaces the tests say so and do nothing; with `CI` set
//! they fail instead. Figures that are measured are printed (`--nocapture` shows them).

mod ab;
mod bad_input;
mod cluster;
mod events;
mod foreign;
mod health;
mod iptables;
mod modes;
mod node;
mod permissions;
mod privilege;
mod reload;
mod render;
mod repair;
mod restart;
mod rig;
mod scale;
mod start_and_stop;
