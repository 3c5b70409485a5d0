//! Parked messages: read, replayed, dropped. Reading loses no message.

mod browse;
mod copies;
mod erasure;
mod held;
mod copy_marker;
mod parked;
mod record;
mod republish;
mod resend;
mod import;
mod compact;
pub(crate) mod open_waiting_queue;
mod source;
mod channel_tags;
mod delivery_limit;
mod prefetch_window;

pub use browse::Browse;
pub use erasure::Erasure;
pub use parked::Parked;
pub use record::Record;
pub use resend::Resend;

pub(crate) use self::{
    copies::{Answer, publish},
    copy_marker::Source,
    source::Supply,
};
#[cfg(test)]
pub(crate) use self::{
    copy_marker::Marks,
    channel_tags::Tags,
    delivery_limit::{Move, NEAR, Seen, Wear, may_go},
    prefetch_window::Window,
};
