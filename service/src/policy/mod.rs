//! What becomes of a dead letter: by its queue, routing key, headers and the reason of its death.
//!
//! ```text
//! TOML ──► file (what may stand there) ──► book (checked, ready to ask) ──► Action
//!                                           ▲
//! SIGHUP, other bytes ──► shelf ────────────┘   a broken file is refused, and the old book stays
//! ```

mod book;
mod file;
mod line;
mod shelf;

pub use book::Book;
pub use file::{PolicyFile, Reason, schema};
pub use line::Action;
pub(crate) use shelf::{Shelf, read_book};
