//! The service on real brokers, with consumers that have nothing but their native client: they only reject.
#![allow(missing_docs)]

mod alerting;
mod api;
mod browser;
mod delayed;
mod ending;
mod failing_queues;
mod fixture;
mod fleet;
mod forged;
mod handover;
#[allow(dead_code, reason = "the tests of the alerts need more of it")]
#[path = "../alerts/server.rs"]
mod hook;
mod memory;
mod page;
mod policies;
mod protocols;
mod redis_store;
mod running;
#[allow(dead_code, reason = "the tests of the store use the rest")]
#[path = "../redis/server.rs"]
mod server;
mod slow_clients;
mod unanswered;
mod waiting;

use fixture::DEADLINE;
