//! The core on real brokers: every test runs against every broker of this run. A file per theme.
#![allow(missing_docs)]

mod alarm;
mod capture;
mod connecting;
mod delayed;
mod ending;
mod errors;
mod forged;
mod hostile;
mod hosts;
mod intake;
mod lacking;
mod limits;
mod logins;
mod looking;
mod messages;
mod options;
mod outcomes;
mod parking;
mod permissions;
mod plain;
mod policies;
mod priorities;
mod publishing;
mod replaying;
mod routes;
mod settling;
mod stage;
mod stamps;
mod strategies;
mod streams;
mod subscribing;
mod telemetry;
mod tls;
mod tokens;
mod work_queue;
