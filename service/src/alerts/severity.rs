//! How important something is to people.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How important a failure is. The order is that of importance.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Nobody is told; it is counted.
    Count,
    /// Told at office hours.
    #[default]
    Morning,
    /// Told at once, at any hour.
    Wake,
}

impl Severity {
    /// The word in configurations, notices and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Count => "count",
            Self::Morning => "morning",
            Self::Wake => "wake",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
