//! Where the leader's state is kept, so that timers and open incidents outlive it.

mod broker;
mod file;

use futures_util::future::BoxFuture;

pub use self::{broker::BrokerStateStore, file::FileStateStore};

/// Keeps one value. [`save`](Self::save) replaces it as a whole: after a crash there is the old one or the new one.
pub trait StateStore: Send + Sync + 'static {
    /// The value that was saved last, if there is one.
    ///
    /// # Errors
    /// A sentence. Nothing is known then, also not that there is none.
    fn load(&self) -> BoxFuture<'_, Result<Option<Vec<u8>>, String>>;

    /// Keeps this value in the place of the last.
    ///
    /// # Errors
    /// A sentence. It may have been kept or not.
    fn save(&self, value: Vec<u8>) -> BoxFuture<'_, Result<(), String>>;
}
