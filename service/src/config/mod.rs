//! The policy file: read, checked, watched, and handed on, to each component its own part.
//!
//! ```text
//! TOML ──► file (the keys) ──► ServiceConfig (checked) ──► component_configs ──► one `watch` for each component
//!                                    ▲
//! SIGHUP, other bytes ──► config_watcher   a broken file is refused, and the old configuration stays
//! ```

mod component_configs;
mod config_watcher;
mod file;
mod service_config;

pub(crate) use config_watcher::{ConfigWatcher, read_config};
pub use file::{PolicyFile, schema};
pub use service_config::ServiceConfig;
