//! Alerts: one bug is one incident, told once, by one replica, to those who want to know.
//!
//! ```text
//!   ServiceEvent ─► Handle::tell ─► rules ─► report ─► queue of reports ─► the leader: engine ─► channels
//!   (every replica)                                   (one active consumer)       │
//!                                                                                 └─► StateStore
//! ```
//!
//! Every replica judges what it parked by the rules, for only there is the body, and reports it in a few words to a queue with a
//! single active consumer. Whose turn it is there is the leader. It keeps its state in a [`StateStore`], so that another one goes on with it.

mod alerting;
mod business_hours;
mod channels;
mod configuration;
mod counts;
mod engine;
mod notifier;
mod report;
mod report_publisher;
mod rule;
mod sanitize;
mod severity;
mod shared_state;
mod silence;
mod state_store;
mod topology;

use crate::ConfigDuration;

pub use alerting::{Alerting, Handle};
pub use business_hours::{BusinessHours, Calendar, Day};
pub use channels::{Alertmanager, Channel, Log, PagerDuty, Slack, Smtp, SmtpSecurity, Webhook};
pub use configuration::Configuration;
pub use counts::{ChannelCounts, Counts, GroupView};
pub(crate) use engine::failure_id;
pub use engine::{Notice, NoticeKind};
pub use notifier::NotifierMode;
pub use rule::{Rule, Trigger};
pub use severity::Severity;
pub use silence::Silence;
pub use state_store::{BrokerStateStore, FileStateStore, StateStore};
