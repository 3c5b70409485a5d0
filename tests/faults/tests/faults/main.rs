//! Consumers, brokers and connections that are killed, cut, stalled, filled and taken away: nothing may be lost.
#![allow(missing_docs)]

mod alarms;
mod brokers;
mod crashes;
mod deletions;
mod drain;
mod fixture;
mod fullness;
mod network;
mod pauses;
mod poison;
mod restarts;
mod settlements;
mod unread_settlements;
mod young_waiting_queues;
