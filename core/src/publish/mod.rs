//! Confirmed publishing: one task owns each publishing channel and sends in waves.

mod batch;
mod channel_pool;
mod confirm_timeout;
mod job;
mod message;
mod publish_channel;
mod publisher;
mod rejected_cache;
mod returned;
mod stall_detector;

#[cfg(test)]
pub(crate) use channel_pool::{ChannelGrant, Queue as ChannelQueue, most_channels};
pub(crate) use job::{Body, Done, Job};
pub use message::Publish;
pub(crate) use message::check_numbers;
pub(crate) use publisher::Publisher;
pub(crate) use stall_detector::UsedLanes;
