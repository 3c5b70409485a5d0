//! The native half of the Go module `retryrmq`: the core as UniFFI objects.
//!
//! It converts, calls the core and converts back. Handlers, loggers and listeners are run by the Go half, and no thread of
//! this half ever calls into Go: what Go waits for, a goroutine fetches (`notifications`).

mod byte_buffer;
mod client;
mod credentials;
mod errors;
mod logging;
mod message;
mod notifications;
mod object_count;
mod operation;
mod options;
mod parked;
mod policy;
mod publish;
mod simulation;
mod subscription;

uniffi::setup_scaffolding!();

/// The AMQP client allocates messages in one thread, and they are freed in another. With musl's allocator both wait for one lock.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
