//! The command `retryrmq` on real brokers: every test runs it against every broker of this run. A file per theme.
#![allow(missing_docs)]

mod background;
mod bad_input;
mod choosing;
mod decoding;
mod ending;
mod environment;
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
