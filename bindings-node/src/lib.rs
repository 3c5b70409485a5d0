//! The native half of the Node package `retryrmq`.
//!
//! It converts values, calls the core, and converts the results. All JavaScript code (handlers, listeners, loggers) is run by the
//! TypeScript half. That is woken at most once for all notifications, and never kept alive by this half. Messages and outcomes are passed in
//! batches, as bytes that are read only when they are used.
//!
//! Every function has `catch_unwind`: a panic must become an exception, because one that left the function would end the process.

// In tests `#[napi]` registers nothing, so nothing is used. With --all-targets, clippy compiles this crate as a test.
#![cfg_attr(test, allow(dead_code))]

mod byte_reader;
mod client;
mod credentials;
mod errors;
mod logging;
mod message;
mod notification_queue;
mod notifications;
mod notifier;
mod object_count;
mod operation;
mod options;
mod outcome;
mod parked;
mod publish;
mod simulation;
mod subscription;

/// The AMQP client allocates messages in one thread, and they are freed in another. With musl's allocator both wait for one lock.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The version of the native half.
#[napi_derive::napi]
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
