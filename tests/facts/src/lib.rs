//! What RabbitMQ really does, as tests on real brokers.
//!
//! The core leans on many things that brokers do and that no contract promises: what is counted, what is dropped, what
//! a header looks like, what a refusal says. Each of them is a test here, against the broker alone and through raw
//! lapin, so that a new version that changes one is noticed before a service loses a message to it. The facts
//! themselves, with what follows from them, are in `docs/broker-facts.md`, where each names its test.
//!
//! This library is what those tests share. Nothing in it knows of the crate `retryrmq`.

mod deaths;
#[cfg(test)]
mod documentation;
mod fields;
mod fixture;
mod marker;
mod refusal;
mod sample;

pub use deaths::{XDeath, deaths};
pub use fields::{array, count, header, headers, int, string, table};
pub use fixture::{
    DEADLINE, all_gone, at_least_once, comes_back, dead_letters_to, hold, peek, requeue, wait_queue,
};
pub use marker::{declare_marker, delete_unbound_marker, look_for_marker, mark};
pub use refusal::{closed, code, refusal};
pub use sample::every_property;
