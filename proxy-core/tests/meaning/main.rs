//! What objects mean: from Services, EndpointSlices and Nodes to frontends, routes and pools.
//!
//! Each test builds objects as a user would write them, hands them to a store, and compares short
//! texts. Rule ids as in `S4.5` name the rule of the Service model that a test stands for.
#![cfg(test)]

mod claims;
mod edges;
mod endpoints;
mod flows;
mod generate;
mod invariants;
mod lists;
mod node;
mod order;
mod routes;
mod rubbish;
mod services;
mod vectors;
mod world;
