//! The core on real brokers: every test runs against every broker of this run. A file per theme.
#![allow(missing_docs)]

mod capture;
mod connecting;
mod stage;
mod tls;
