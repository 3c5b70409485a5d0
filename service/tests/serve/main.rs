//! The service on real brokers, with consumers that have nothing but their native client: they only reject.
#![allow(missing_docs)]

mod ending;
mod fleet;
mod forged;
#[allow(dead_code, reason = "the tests of the alerts need more of it")]
#[path = "../alerts/server.rs"]
mod hook;
mod keeping;
mod policies;
#[allow(dead_code, reason = "the tests of the store use the rest")]
#[path = "../redis/server.rs"]
mod server;
mod stage;
mod telling;
mod trouble;

use stage::PATIENCE;
