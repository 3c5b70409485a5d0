//! Retries for a whole fleet, by one small service: consumers in any language only reject, and this decides, keeps, returns, parks
//! and tells.

mod happening;
pub mod store;

pub use happening::{Happening, Obituary, Trouble};
