//! Why a store did not do what it was asked for.

/// What went wrong, in one sentence for a person. None of them loses a message: what was not kept stays in RabbitMQ, and what was not
/// deleted is due again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This one message cannot be kept, now or later.
    #[error("{0}")]
    Unkeepable(String),
    /// The configuration cannot work.
    #[error("{0}")]
    Configuration(String),
    /// The store cannot be reached, or does not answer.
    #[error("{0}")]
    Away(String),
    /// The store has no room left.
    #[error("{0}")]
    Full(String),
    /// The store is set up in a way that would lose messages.
    #[error("{0}")]
    Unfit(String),
    /// The messages were stored, but not as safely as configured. Keeping the same batch again is right and stores nothing twice.
    #[error("{0}")]
    NotDurable(String),
    /// The store refuses, for another reason, which is quoted.
    #[error("{0}")]
    Refused(String),
}

impl Error {
    /// Whether the same may succeed later without anybody changing the message or the configuration.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        !matches!(self, Self::Unkeepable(_) | Self::Configuration(_))
    }
}

/// The result of what a store was asked for.
pub type Result<T> = std::result::Result<T, Error>;
