//! The service's own log: there when nothing else is.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::alerts::{Notice, NoticeKind, Severity};

/// Writes each notice as a line of the log.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Log {}

macro_rules! say {
    ($level:ident, $notice:expr) => {
        tracing::$level!(
            incident = $notice.incident,
            kind = $notice.kind.as_str(),
            severity = $notice.severity.as_str(),
            queue = $notice.queue,
            reason = $notice.reason,
            fingerprint = $notice.fingerprint,
            count = $notice.count,
            rule = $notice.rule,
            "alert: {}",
            $notice.summary
        )
    };
}

pub(super) fn write(notice: &Notice) {
    match (notice.kind, notice.severity) {
        (NoticeKind::Resolved, _) => say!(info, notice),
        (_, Severity::Wake) => say!(error, notice),
        _ => say!(warn, notice),
    }
}
