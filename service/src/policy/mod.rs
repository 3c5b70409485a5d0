//! What becomes of a dead letter: by its queue, routing key, headers and the reason of its death.
//!
//! ```text
//! [defaults], [[rules]] ──► configuration (the keys) ──► PolicyRules (checked, ready to ask) ──► Action
//! ```

mod configuration;
mod policy_rules;
mod reason;
mod rule;

pub(crate) use configuration::{Defaults, RuleEntry};
pub use policy_rules::PolicyRules;
pub use reason::Reason;
pub use rule::Action;
