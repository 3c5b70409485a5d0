//! The connections to the broker. Everything in which the AMQP client would lose, mix up, hang or crash is kept in this module.

mod address;
mod addresses;
mod amqp10;
mod amqp_connection;
mod capabilities;
mod channel;
mod dial;
mod error_mapping;
mod limits;
mod liveness;
mod log_redaction;
mod login;
mod name_limit;
mod probe_connection;
mod queue_type_probe;
mod ready_count;
mod resolver;
mod restart_on_panic;
mod safe_cancel;
mod same_cluster;
mod sanitiser;
mod secret_refresh;
mod server;
mod started_call;
mod supervisor;
mod timeouts;
mod tls;
mod transport;
mod wakeup_batch;
mod weak_connection;

pub use address::Address;
pub use addresses::Addresses;
pub use error_mapping::{permission_for, permission_pattern};
pub use login::{Credentials, Login};
pub use server::Server;

pub(crate) use amqp_connection::Connection;
pub(crate) use amqp10::Session10;
pub(crate) use channel::{
    LINGER, OpenChannel, ask, is_one_channel_too_many, is_out_of_channels, passive_declare,
    passive_declare_checked,
};
pub(crate) use dial::no_broker;
pub(crate) use error_mapping::{
    Operation, broker_says, closed_by_broker, consumer_timeout, is_crash, is_internal_error,
    is_locked, is_one_consumer_too_many, refusal, size_limit,
};
pub(crate) use limits::{Limits, USUAL_HEADER_ROOM, header_room};
pub(crate) use name_limit::NameLimit;
pub(crate) use probe_connection::ProbeConnection;
pub(crate) use queue_type_probe::{ProbedQueueType, is_auto_delete, kind_of};
pub(crate) use ready_count::{QueueCount, ReadyCounter, is_doubtful, is_leaderless, leaderless};
pub(crate) use restart_on_panic::survives;
pub(crate) use safe_cancel::SafeCancel;
#[cfg(test)]
pub(crate) use safe_cancel::{QUIET as CANCEL_QUIET, TIME_LIMIT as CANCEL_TIMEOUT};
pub(crate) use started_call::StartedCall;
pub(crate) use supervisor::{Link, LinkOptions, ReconnectSignal};
pub(crate) use timeouts::{ANSWER, BROKER_AWAY_PAUSE, GOODBYE};
pub(crate) use wakeup_batch::put_off;
