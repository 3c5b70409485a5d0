//! The service on real brokers, with consumers that have nothing but their native client: they only reject.
#![allow(missing_docs)]

mod browser;
mod delayed;
mod ending;
mod fleet;
mod forged;
mod handover;
#[allow(dead_code, reason = "the tests of the alerts need more of it")]
#[path = "../alerts/server.rs"]
mod hook;
mod keeping;
mod memory;
mod page;
mod policies;
mod protocols;
mod running;
#[allow(dead_code, reason = "the tests of the store use the rest")]
#[path = "../redis/server.rs"]
mod server;
mod slow_clients;
mod stage;
mod telling;
mod trouble;
mod unanswered;
mod waiting;

use stage::PATIENCE;
