#![doc = include_str!("../README.md")]

mod client;
mod connection;
mod consumer;
mod error;
mod parking;
mod publish;
mod retry;
mod telemetry;
mod topology;
#[doc(hidden)]
pub mod visible;

pub use client::{Client, ClientOptions, runtime};
pub use connection::{Address, Addresses, Credentials, Login, Server};
pub use consumer::{
    Consumer, Delivery, IntoOutcome, Judge, Message, Pause, Running, Signal, Simulation, Step,
    Subscription, Token, defer, fatal, park, retry_after,
};
pub use error::{Error, ErrorKind, Result};
pub use lapin::{BasicProperties, types};
pub use parking::{Browse, Parked, Record};
pub use publish::Publish;
pub use retry::{
    Action, Admission, AgeFrom, Backoff, Counting, DAY, Failure, HOUR, HistoryEntry, Limits,
    MAX_DELAY, MILLISECOND, MINUTE, Outcome, ParkReason, Policy, RetryState, Rule, Rules, SECOND,
    admit, decide, format_duration, parse_duration, rung,
};
#[cfg(feature = "log-lines")]
pub use telemetry::lines;
pub use telemetry::{Event, Facts, Stats};
pub use topology::{
    Argument, Arguments, Finding, Item, Missing, Plan, QueueType, Status, Strategy, WorkQueue,
    parking_queue, waiting_queue, work_queue_of,
};
