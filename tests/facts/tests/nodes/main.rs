//! Facts that show only when a broker is killed, or when it has less patience than it comes with. Each test has nodes of
//! its own, so that it disturbs no other, and needs brokers that it may start.
#![allow(missing_docs)]

mod cancelled;
mod delayed;
mod killed;
mod latecomers;
mod leaderless;
mod markers;
mod patience;
mod strangers;
mod upgraded;
