//! Retries for a whole fleet, by one small service: consumers in any language only reject, and this decides, keeps, returns, parks
//! and tells.
//!
//! ```text
//!  orders ──rejected──► retryrmq.dead ──► retryrmq.intake ──► intake: which queue, which attempt, why it died
//!    ▲                  (internal)        (quorum)              │
//!    │                                                    policy: retry, park or drop
//!    │                                                          │
//!    └── orders.retry.<ms> ◄── a confirmed copy, then the ack ◄─┴─► orders.parked
//! ```
//!
//! Nothing is kept in memory that is not in RabbitMQ: a message stays unacknowledged in the intake until its copy is confirmed. So any
//! number of services may run side by side, and the death of one costs nothing but a second copy of what it was in the middle of.

pub mod alerts;
mod beginning;
mod delayed;
mod feed;
mod happening;
mod health;
pub mod history;
mod http;
mod https;
mod intake;
mod logging;
mod metrics;
pub mod orphans;
pub mod page;
mod policy;
mod redaction;
mod reporting;
mod service;
mod settings;
mod span;
pub mod store;
mod systemd;
mod waiting;
mod watchman;

pub use feed::Feed;
pub use happening::{Happening, Obituary, Retry, Trouble};
pub use health::Health;
pub use intake::{DEAD_EXCHANGE, HANDOVER_QUEUE, INTAKE_PARKED, INTAKE_QUEUE};
pub use logging::{Form, start_logging};
pub use metrics::Metrics;
pub use policy::{Action, Book, PolicyFile, Reason, schema};
pub use reporting::{REPORTS_QUEUE, STATE_QUEUE};
pub use service::{Service, ServiceOptions};
pub use settings::{Settings, first};
pub use span::Span;
pub use systemd::{tell_stopping, tell_systemd};
pub use waiting::Waiting;
