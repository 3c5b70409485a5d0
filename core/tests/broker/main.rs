//! The core on real brokers: every test runs against every broker of this run. A file per theme.
#![allow(missing_docs)]

mod capture;
mod connecting;
mod forged;
mod hostile;
mod options;
mod outcomes;
mod parking;
mod permissions;
mod plain;
mod policies;
mod publishing;
mod routes;
mod settling;
mod stage;
mod stamps;
mod strategies;
mod subscribing;
mod telemetry;
mod tls;
