//! The native half of the Go module `retryrmq`: the core as UniFFI objects.
//!
//! It converts, calls the core and converts back. Handlers, loggers and listeners are run by the Go half, and no thread of
//! this half ever calls into Go: what Go waits for, a goroutine fetches (`news`).

mod client;
mod errors;
mod live;
mod logging;
mod login;
mod message;
mod news;
mod operation;
mod options;
mod parked;
mod policy;
mod publish;
mod simulation;
mod subscription;
mod wire;

uniffi::setup_scaffolding!();
