//! Judges drivers by scenarios: the same files for every language. `tests/scenarios/README.md` has the format.
//!
//! ```text
//! scenario.yaml ─→ stage (virtual host, queues, messages) ─→ driver ─→ lines ─┐
//!                                                       └─→ what is left ─────┴→ seen ─→ judge ─→ sentences
//! ```

pub mod driver;
pub mod field;
pub mod fixture;
pub mod hostile;
pub mod judge;
pub mod line;
pub mod matcher;
pub mod matrix;
pub mod observations;
pub mod property;
pub mod report;
pub mod run;
pub mod scenario;
pub mod script;
pub mod suite;
pub mod task;
pub mod unreadable;
