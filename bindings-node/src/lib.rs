//! The native half of the Node package `retryrmq`.
//!
//! It converts, calls the core and converts back. What JavaScript runs (handlers, listeners, loggers) is run by the
//! TypeScript half, which is woken at most once for everything that is there, and never kept alive by this half. Messages
//! and outcomes cross in batches, as bytes that are read only where somebody looks.
//!
//! Every function has `catch_unwind`: a panic that left it would end the process, and should be an exception.

// As a test, which clippy compiles it as with --all-targets, `#[napi]` registers nothing, so nothing is used.
#![cfg_attr(test, allow(dead_code))]

mod bridge;
mod client;
mod credentials;
mod errors;
mod live;
mod logging;
mod message;
mod news;
mod operation;
mod options;
mod outcome;
mod parked;
mod publish;
mod shared;
mod simulation;
mod subscription;
mod values;
mod wire;

/// The version of the native half.
#[napi_derive::napi]
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
