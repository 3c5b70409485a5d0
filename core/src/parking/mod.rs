//! Parked messages: read, replayed, dropped. Reading spends nothing and loses nothing.

mod browse;
mod copies;
mod held;
mod instead;
mod marks;
mod parked;
mod record;
mod renewal;
mod supply;
mod wear;
mod window;

pub use browse::Browse;
pub use instead::Instead;
pub use parked::Parked;
pub use record::Record;

#[cfg(test)]
pub(crate) use self::{
    marks::{Marks, Source},
    wear::{Move, NEAR, Seen, Wear, may_go},
    window::Window,
};
