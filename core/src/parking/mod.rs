//! Parked messages: read, replayed, dropped. Reading loses no message.

mod browse;
mod copies;
mod erasure;
mod held;
mod marks;
mod parked;
mod record;
mod renewal;
mod resend;
mod restore;
mod rewrite;
pub(crate) mod suited;
mod supply;
mod tags;
mod wear;
mod window;

pub use browse::Browse;
pub use erasure::Erasure;
pub use parked::Parked;
pub use record::Record;
pub use resend::Resend;

pub(crate) use self::{
    copies::{Answer, publish},
    marks::Source,
    supply::Supply,
};
#[cfg(test)]
pub(crate) use self::{
    marks::Marks,
    tags::Tags,
    wear::{Move, NEAR, Seen, Wear, may_go},
    window::Window,
};
