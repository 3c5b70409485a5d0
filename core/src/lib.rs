#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod amqp10;
mod client;
mod connection;
mod consumer;
#[doc(hidden)]
pub mod doubling_pause;
mod error;
#[doc(hidden)]
pub mod glob;
mod mutants;
mod parking;
mod publish;
mod queue_names;
mod retry;
#[doc(hidden)]
pub mod secret_file;
mod send_sync_checks;
mod stream;
mod telemetry;
#[doc(hidden)]
pub mod terminal_escape;
mod topology;
mod unreadable;
mod waiting;

pub use client::{Client, ClientOptions, QueueTotals, runtime};
pub use connection::{
    Address, Addresses, Credentials, Login, Server, permission_for, permission_pattern,
};
pub use consumer::contract;
#[cfg(feature = "tower")]
#[cfg_attr(docsrs, doc(cfg(feature = "tower")))]
pub use consumer::service;
pub use consumer::{
    Attempt, Consumer, Decision, Delivery, ErrorClassifier, FailedMessage, FakeClient, FromMessage,
    IntoOutcome, IntoOutcomes, InvalidBody, Json, Message, Messages, Pause, Published, Retrier,
    RunningConsumer, Signal, Simulation, Step, Subscription, Token, Trial, defer, extract, fatal,
    park, retry_after, undecodable,
};
#[doc(hidden)]
pub use consumer::{AttemptLogLine, NextStep};
pub use error::{Error, ErrorKind, Result};
/// The AMQP types of lapin 4: properties, headers and their values. They are part of this crate's interface, so a new major version of
/// lapin is a new major version of this crate. Import them from here, so that your version is the same.
pub use lapin::{BasicProperties, types};
pub use parking::{Browse, EraseWalk, Parked, Record, Resend};
pub use publish::Publish;
pub use retry::{
    AgeFrom, AttemptRound, Backoff, DAY, DIRECT_REPLY_TO, Failure, Forecast, ForecastInterval,
    HOUR, Handover, HistoryEntry, Limits, Load, MAX_DELAY, MILLISECOND, MINUTE, Outcome,
    ParkReason, Policy, QueueDepth, Rule, Rules, SECOND, XDeath, delay_step, format_duration,
    parse_duration,
};
#[doc(hidden)]
pub use retry::{RetryState, headers};
pub use stream::{StreamEntry, StreamFrom, StreamReader};
#[cfg(feature = "log-lines")]
pub use telemetry::log_buffer;
pub use telemetry::{Event, EventFields, Stats};
#[doc(hidden)]
pub use topology::SAFE_AGE;
pub use topology::{
    Argument, Arguments, DEAD_EXCHANGE, Finding, HANDOVER_QUEUE, INTAKE_QUEUE, Item, Missing, Plan,
    QueueType, Status, Strategy, WorkQueue, clock_queue, dropped_queue, parking_queue,
    unreadable_queue, waiting_queue, work_queue_of,
};
pub use unreadable::{Unreadable, UnreadableMessage};
pub use waiting::{DeleteResult, Waiting, WaitingMessage, WaitingQueue, WaitingWalk};
