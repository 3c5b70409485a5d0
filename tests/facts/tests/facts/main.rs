//! Facts about brokers that leave the broker alive. A file per theme; `docs/broker-facts.md` has the whole story.
#![allow(missing_docs)]

mod connections;
mod consuming;
mod conversion;
mod copies;
mod counting;
mod cycles;
mod deaths;
mod declaring;
mod delayed_retry;
mod exchanges;
mod give_back;
mod limits;
mod parking;
mod permissions;
mod policies;
mod publishing;
mod streams;
mod time;
mod waiting;
