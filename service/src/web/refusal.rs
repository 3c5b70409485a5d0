//! Why somebody does not get what they asked for, in one place for the page and for the API.

use std::borrow::Cow;

use axum::http::StatusCode;

/// A request that is refused. Nothing was done.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) kind: RefusalKind,
    /// What to change, for people.
    pub(super) sentence: Cow<'static, str>,
}

/// What kind of refusal it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RefusalKind {
    /// The request says something that it must not, or leaves something out.
    Invalid,
    /// Nobody knows who asks.
    Unauthorized,
    /// Whoever asks may not do that.
    Forbidden,
    /// There is no such thing, or none any more.
    NotFound,
    /// There is such a thing, and it is not used in this way.
    MethodNotAllowed,
    /// The number that the request expects is not that of the messages.
    CountMismatch,
    /// The body has too many bytes.
    TooLarge,
    /// The body is not what it has to be.
    UnsupportedMediaType,
    /// Too many wrong tokens came from there.
    TooManyTries,
    /// The service fails.
    Internal,
    /// Not now: try again.
    Unavailable,
}

impl RefusalKind {
    pub(super) const ALL: [Self; 11] = [
        Self::Invalid,
        Self::Unauthorized,
        Self::Forbidden,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::CountMismatch,
        Self::TooLarge,
        Self::UnsupportedMediaType,
        Self::TooManyTries,
        Self::Internal,
        Self::Unavailable,
    ];

    pub(super) fn status(self) -> StatusCode {
        match self {
            Self::Invalid => StatusCode::BAD_REQUEST,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::Forbidden => StatusCode::FORBIDDEN,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::CountMismatch => StatusCode::CONFLICT,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::TooManyTries => StatusCode::TOO_MANY_REQUESTS,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// For programs. It stays the same.
    pub(super) fn code(self) -> &'static str {
        match self {
            Self::Invalid => "invalid_request",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::NotFound => "not_found",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::CountMismatch => "count_mismatch",
            Self::TooLarge => "too_large",
            Self::UnsupportedMediaType => "unsupported_media_type",
            Self::TooManyTries => "too_many_tries",
            Self::Internal => "internal",
            Self::Unavailable => "unavailable",
        }
    }
}

impl Refusal {
    pub(super) fn new(kind: RefusalKind, sentence: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            sentence: sentence.into(),
        }
    }

    pub(super) fn invalid(sentence: impl Into<Cow<'static, str>>) -> Self {
        Self::new(RefusalKind::Invalid, sentence)
    }

    pub(super) fn not_found(sentence: impl Into<Cow<'static, str>>) -> Self {
        Self::new(RefusalKind::NotFound, sentence)
    }

    pub(super) fn unavailable(sentence: impl Into<Cow<'static, str>>) -> Self {
        Self::new(RefusalKind::Unavailable, sentence)
    }
}
