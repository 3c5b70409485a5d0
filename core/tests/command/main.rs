//! The command `retryrmq` on real brokers: every test runs it against every broker of this run. A file per theme.
#![allow(missing_docs)]

mod background;
mod bad_input;
mod ending;
mod environment;
mod foreign;
mod input;
mod keeping;
mod naming;
mod outcomes;
mod parked;
mod publishing;
mod readers;
mod replaying;
mod scarcity;
mod stage;
mod topology;
mod unsuited;
mod walking;
mod wearing;
mod wishes;
