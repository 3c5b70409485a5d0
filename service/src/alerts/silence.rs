//! Silences: what people do not want to be told for a while, by whom, and why.

use jiff::Timestamp;
use retryrmq::glob::glob;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Keeps quiet about what it fits, until a time. What is silenced is still counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Silence {
    /// Its id: it is lifted by it, and another one with the same id replaces it.
    #[serde(default)]
    pub id: String,
    /// The queue; `*` is any text. Without it any queue.
    #[serde(default)]
    pub queue: Option<String>,
    /// The fingerprint of the group.
    #[serde(default)]
    pub fingerprint: Option<String>,
    /// The reason, or the kind of a queue's trouble; `*` is any text.
    #[serde(default)]
    pub reason: Option<String>,
    /// The class of the error; `*` is any text.
    #[serde(default)]
    pub error_type: Option<String>,
    /// Until when (RFC 3339), such as `2026-12-01T08:00:00Z`.
    #[schemars(with = "String")]
    pub until: Timestamp,
    /// Who wants it.
    pub author: String,
    /// Why.
    pub why: String,
}

/// What a silence is compared with.
#[derive(Clone, Copy, Debug)]
pub(super) struct SilenceSubject<'a> {
    pub(super) queue: &'a str,
    pub(super) fingerprint: &'a str,
    pub(super) reason: &'a str,
    pub(super) error_type: &'a str,
}

impl Silence {
    /// Says what is missing.
    ///
    /// # Errors
    /// A sentence: a silence without any matcher would silence everything, one without author or reason nobody could ask about.
    pub fn check(&self) -> Result<(), String> {
        let matchers = [
            &self.queue,
            &self.fingerprint,
            &self.reason,
            &self.error_type,
        ];
        if matchers.iter().all(|matcher| matcher.is_none()) {
            return Err(
                "a silence must say what it silences: `queue`, `fingerprint`, `reason` or `error_type`; `queue = \"*\"` is everything"
                    .to_owned(),
            );
        }
        if self.author.trim().is_empty() || self.why.trim().is_empty() {
            return Err("a silence needs an `author` and a reason in `why`".to_owned());
        }
        Ok(())
    }

    pub(super) fn covers(&self, heard: SilenceSubject<'_>, now: Timestamp) -> bool {
        let fits =
            |pattern: &Option<String>, text| pattern.as_deref().is_none_or(|p| glob(p, text));
        now < self.until
            && fits(&self.queue, heard.queue)
            && fits(&self.reason, heard.reason)
            && fits(&self.error_type, heard.error_type)
            && self
                .fingerprint
                .as_deref()
                .is_none_or(|print| print == heard.fingerprint)
    }
}
