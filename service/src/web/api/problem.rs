//! A refusal as programs read it (RFC 9457).

use axum::{
    http::{
        HeaderValue,
        header::{
            CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
        },
    },
    response::{IntoResponse, Response},
};
use schemars::JsonSchema;
use serde::Serialize;

use super::super::refusal::{Refusal, RefusalKind};

/// The media type of a problem.
pub(super) const PROBLEM: &str = "application/problem+json";

/// Why a request was refused (RFC 9457). Nothing was done.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(in super::super) struct Problem {
    /// Always `about:blank`: `code` says what kind of problem it is.
    r#type: &'static str,
    /// The words of the HTTP status.
    title: String,
    /// The HTTP status.
    status: u16,
    /// What happened and what to change, in a sentence for people.
    detail: String,
    /// The kind of problem, for programs. It stays the same.
    code: &'static str,
    /// With `count_mismatch`: how many messages the request names now.
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<usize>,
    #[serde(skip)]
    kind: RefusalKind,
}

impl Problem {
    pub(in super::super) fn new(kind: RefusalKind, detail: impl Into<String>) -> Self {
        let status = kind.status();
        Self {
            r#type: "about:blank",
            title: status.canonical_reason().unwrap_or("Refused").to_owned(),
            status: status.as_u16(),
            detail: detail.into(),
            code: kind.code(),
            count: None,
            kind,
        }
    }

    #[cfg(test)]
    pub(super) fn detail(&self) -> &str {
        &self.detail
    }

    pub(super) fn invalid(detail: impl Into<String>) -> Self {
        Self::new(RefusalKind::Invalid, detail)
    }

    /// The request names another number of messages than it expects.
    pub(super) fn count_mismatch(count: usize, detail: impl Into<String>) -> Self {
        Self {
            count: Some(count),
            ..Self::new(RefusalKind::CountMismatch, detail)
        }
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        Self::new(refusal.kind, refusal.sentence)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let text = serde_json::to_string(&self).unwrap_or_default();
        let mut response = (self.kind.status(), text).into_response();
        let headers = response.headers_mut();
        for (name, value) in [
            (CONTENT_TYPE, PROBLEM),
            (CACHE_CONTROL, "no-store"),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        match self.kind {
            RefusalKind::Unauthorized => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            RefusalKind::TooManyTries | RefusalKind::Unavailable => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}
