//! The command `retryrmq` on real brokers: every test runs it against every broker of this run. A file per theme.
#![allow(missing_docs)]

mod background;
mod bad_input;
mod choosing;
mod clinic;
mod decoding;
mod doctor;
mod doctor_access;
mod enabling;
mod ending;
mod environment;
mod foreign;
mod input;
mod naming;
mod outcomes;
mod parked;
mod publishing;
mod readers;
mod scarcity;
mod stage;
mod topology;
mod unsuited;
mod walking;
mod wearing;
mod wishes;
