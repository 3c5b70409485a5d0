//! Confirmed publishing: one task owns each publishing channel and sends in waves.

mod channel_pool;
mod job;
mod lane;
mod message;
mod patience;
mod publisher;
mod refused;
mod returned;
mod stall;
mod wave;

#[cfg(test)]
pub(crate) use channel_pool::{Queue as ChannelQueue, Way, most_channels};
pub(crate) use job::{Body, Done, Job};
pub use message::Publish;
pub(crate) use publisher::Publisher;
pub(crate) use stall::UsedLanes;
