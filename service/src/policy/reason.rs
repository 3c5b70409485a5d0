//! Why a message died.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Why the broker dead-lettered a message, or that its consumer handed it over.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// A consumer rejected it.
    Rejected,
    /// An attempt failed, and its consumer handed it over.
    Failed,
    /// Its time to live ran out.
    Expired,
    /// Its queue was full.
    Maxlen,
    /// It came back to its queue more often than that allows.
    DeliveryLimit,
}

impl Reason {
    /// The word for what clients hand over, in logs and metrics.
    pub(crate) const FAILED: &str = "failed";

    /// Reads RabbitMQ's word in `x-death`; `None` for one that it does not have today.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "rejected" => Some(Self::Rejected),
            "expired" => Some(Self::Expired),
            "maxlen" => Some(Self::Maxlen),
            "delivery_limit" => Some(Self::DeliveryLimit),
            _ => None,
        }
    }
}
