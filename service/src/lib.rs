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

mod alerting_runtime;
pub mod alerts;
mod config;
mod config_duration;
mod delayed;
mod event_bus;
mod health;
pub mod history;
mod http;
mod intake;
mod logging;
mod memory_budget;
mod metrics;
mod parked_depths;
mod policy;
mod queue_names;
pub mod queue_watch;
mod redaction;
mod retrier_cache;
mod service;
mod service_event;
mod settings;
mod startup;
pub mod store;
mod stored_messages;
mod supervisor;
mod systemd;
mod tls;
mod wait_reason;
mod waiting;
pub mod web;

pub use config::{PolicyFile, ServiceConfig, schema};
pub use config_duration::ConfigDuration;
pub use event_bus::EventBus;
pub use health::Health;
pub use logging::{LogFormat, start_logging};
pub use metrics::Metrics;
pub use policy::{Action, PolicyRules, Reason};
pub use queue_names::{
    DEAD_EXCHANGE, HANDOVER_QUEUE, HISTORY_STREAM, INTAKE_PARKED, INTAKE_QUEUE, REPORTS_QUEUE,
    STATE_QUEUE,
};
pub use service::{Service, ServiceOptions};
pub use service_event::{
    DecodedBody, ParkedReport, QueueProblemReport, QueueProblemState, RetryEvent, ServiceEvent,
};
pub use settings::{Settings, first};
pub use systemd::{notify_stopping, notify_systemd};
pub use waiting::{Moved, StoreInspector};
