//! The service on real brokers, with consumers that have nothing but their native client: they only reject.
#![allow(missing_docs)]

mod ending;
mod fleet;
mod forged;
mod keeping;
mod policies;
#[allow(dead_code, reason = "the tests of the store use the rest")]
#[path = "../redis/server.rs"]
mod server;
mod stage;
mod trouble;
