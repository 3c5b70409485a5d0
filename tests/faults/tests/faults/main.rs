//! Consumers, brokers and connections that are killed, cut, stalled, filled and taken away: nothing may be lost.
#![allow(missing_docs)]

mod alarms;
mod brokers;
mod crashes;
mod deletions;
mod drain;
mod fullness;
mod network;
mod pauses;
mod poison;
mod restarts;
mod young_waiting_queues;
mod settlements;
mod fixture;
mod unread_settlements;
