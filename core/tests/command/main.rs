//! The command `retryrmq` on real brokers: every test runs it against every broker of this run. A file per theme.
#![allow(missing_docs)]

mod background;
mod bad_input;
mod clinic;
mod doctor;
mod doctor_access;
mod enabling;
mod ending;
mod endpoint;
mod environment;
mod foreign;
mod gc;
mod http;
mod http_hostile;
mod http_safely;
mod input;
mod keeping;
mod manuals;
mod naming;
mod outcomes;
mod parked;
mod publishing;
mod readers;
mod readme;
mod replaying;
mod scarcity;
mod setup;
mod simulating;
mod stage;
mod topology;
mod unsuited;
mod waiting;
mod walking;
mod wearing;
mod wishes;
