//! Parked messages: read, replayed, dropped. Reading loses no message.

mod browse;
mod channel_tags;
mod compact;
mod copies;
mod copy_marker;
mod delivery_limit;
mod dropped;
mod erasure;
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
pub use erasure::Erasure;
pub use parked::Parked;
pub use record::Record;
pub use resend::Resend;

#[cfg(test)]
pub(crate) use self::{
    channel_tags::Tags,
    copy_marker::Marks,
    delivery_limit::{Move, NEAR, Seen, Wear, may_go},
    prefetch_window::Window,
};
pub(crate) use self::{
    copies::{Answer, publish},
    copy_marker::Source,
    source::Supply,
};
