//! Where messages wait outside the broker, and what brings them back on time.
//!
//! ```text
//! intake ── keep ──▶ Store ── claim ──▶ DueDispatcher ── publish ──▶ Sink ──▶ the queue that failed
//!                      ▲                  │
//!                      └──── delete ──────┘ once the broker has confirmed
//! ```
//!
//! A claim is a lease: whoever claims a message has it for some seconds, and if nothing more is heard of him the message is due
//! again. So any number of replicas work on one store, none of them leads, and what one that died had in hand is lost to nobody.

mod codec;
mod destination;
mod due_dispatcher;
mod error;
mod id;
pub mod redis;
mod sink;
mod stored_message;
mod traits;

pub use destination::Destination;
pub use due_dispatcher::{DispatcherMetrics, DueDispatcher};
pub use error::{Error, Result};
pub use id::Id;
pub use sink::{BrokerSink, PublishRefused, Sink};
pub use stored_message::{MessageDraft, StoredMessage};
pub use traits::{
    CancelResult, Claim, ClaimRequest, DueMessage, Exclusion, Lease, ListedMessage, Listing, Page,
    Position, Store, StoreResult, TakeResult,
};
