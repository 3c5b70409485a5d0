//! Parked messages: read, replayed, dropped. Reading loses no message.

mod browse;
mod channel_tags;
mod compact;
mod copies;
mod copy_marker;
mod delivery_limit;
mod dropped;
mod erase_walk;
mod held;
mod import;
pub(crate) mod open_waiting_queue;
mod parked;
mod prefetch_window;
mod record;
mod republish;
mod resend;
mod source;

pub use browse::Browse;
pub use erase_walk::EraseWalk;
pub use parked::Parked;
pub use record::Record;
pub use resend::Resend;

#[cfg(test)]
pub(crate) use self::{
    channel_tags::ChannelTags,
    copy_marker::CopyMarkers,
    delivery_limit::{DeliveryHistory, DeliveryLimit, NEAR, WalkMove, may_go},
    prefetch_window::PrefetchWindow,
};
pub(crate) use self::{
    copies::{CopyConfirm, publish},
    copy_marker::DeliverySource,
    source::Source,
};
