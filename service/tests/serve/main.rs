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
mod redis_store;
mod memory;
mod page;
mod policies;
mod protocols;
mod running;
#[allow(dead_code, reason = "the tests of the store use the rest")]
#[path = "../redis/server.rs"]
mod server;
mod slow_clients;
mod fixture;
mod alerting;
mod failing_queues;
mod unanswered;
mod waiting;

use fixture::DEADLINE;
