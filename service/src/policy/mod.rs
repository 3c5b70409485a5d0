//! What becomes of a dead letter: by its queue, routing key, headers and the reason of its death.
//!
//! ```text
//! TOML ──► file (the keys) ──► ServiceConfig (checked, ready to ask) ──► Action
//!                                           ▲
//! SIGHUP, other bytes ──► config_watcher ────────────┘   a broken file is refused, and the old configuration stays
//! ```

mod config_watcher;
mod file;
mod rule;
mod service_config;

pub(crate) use config_watcher::{ConfigWatcher, read_config};
pub use file::{PolicyFile, Reason, schema};
pub use rule::Action;
pub use service_config::ServiceConfig;
