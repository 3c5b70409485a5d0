//! The service on real brokers, with consumers that have nothing but their native client: they only reject.
#![allow(missing_docs)]

mod ending;
mod fleet;
mod forged;
mod policies;
mod stage;
mod trouble;
