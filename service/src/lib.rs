//! Retries for a whole fleet, by one small service: consumers in any language only reject, and this decides, keeps, returns, parks
//! and tells.

pub mod alerts;
mod happening;
mod https;
pub mod orphans;
mod span;
pub mod store;

pub use happening::{Happening, Obituary, Trouble};
pub use span::Span;
