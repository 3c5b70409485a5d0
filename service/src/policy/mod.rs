//! What becomes of a dead letter: by its queue, routing key, headers and the reason of its death.
//!
//! ```text
//! TOML ──► file (the keys) ──► ServiceConfig (checked, ready to ask) ──► Action
//!                                           ▲
//! SIGHUP, other bytes ──► config_watcher ────────────┘   a broken file is refused, and the old configuration stays
//! ```

mod config_watcher;
mod configuration;
mod file;
mod policy_rules;
mod reason;
mod rule;
mod service_config;

pub(crate) use config_watcher::{ConfigWatcher, read_config};
pub(crate) use configuration::{Defaults, RuleEntry};
pub use file::{PolicyFile, schema};
pub use policy_rules::PolicyRules;
pub use reason::Reason;
pub use rule::Action;
pub use service_config::ServiceConfig;
