//! PagerDuty: its Events API, version 2.

use std::path::PathBuf;

use reqwest::header::HeaderMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{SendResult, http::HttpClient, secret::SecretSource, send_result::SendError};
use crate::alerts::{ConfigDuration, Notice, NoticeKind, Severity, sanitize};

/// Triggers and resolves incidents.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PagerDuty {
    /// A file that holds the routing key (integration key).
    pub routing_key_file: Option<PathBuf>,
    /// An environment variable that holds it.
    pub routing_key_env: Option<String>,
    /// Another address of the API, as `https://events.eu.pagerduty.com`.
    pub url: Option<String>,
    /// A PEM file of the only authorities that count; otherwise those of the system.
    pub ca: Option<PathBuf>,
    /// How long one try may take; 10 s.
    pub timeout: Option<ConfigDuration>,
}

/// PagerDuty takes 1 024 characters.
const SUMMARY: usize = 1_000;
/// And 255 of a key.
const KEY: usize = 255;

#[derive(Debug)]
pub(super) struct PagerDutyClient {
    http: HttpClient,
    key: SecretSource,
}

impl PagerDuty {
    pub(super) fn open(&self) -> Result<PagerDutyClient, String> {
        let key = SecretSource::of(
            "routing_key",
            None,
            self.routing_key_file.as_deref(),
            self.routing_key_env.as_deref(),
        )?
        .ok_or("it needs `routing_key_file` or `routing_key_env`")?;
        key.read()?;
        let url = self
            .url
            .as_deref()
            .unwrap_or("https://events.pagerduty.com");
        let url = SecretSource::Text(url.to_owned());
        Ok(PagerDutyClient {
            http: HttpClient::new(
                url,
                "/v2/enqueue",
                self.ca.as_deref(),
                super::timeout(self.timeout),
            )?,
            key,
        })
    }
}

impl PagerDutyClient {
    pub(super) async fn send(&self, notice: &Notice) -> SendResult {
        let key = self.key.read().map_err(SendError::soon)?;
        let body = payload(notice, &key).to_string().into_bytes();
        self.http.post(HeaderMap::new(), body, &[&key]).await
    }
}

fn payload(notice: &Notice, key: &str) -> Value {
    let mut payload = json!({
        "routing_key": key,
        "dedup_key": sanitize::cut(&notice.incident, KEY),
        "event_action": match notice.kind {
            NoticeKind::Resolved => "resolve",
            NoticeKind::Opened | NoticeKind::Raised | NoticeKind::Updated => "trigger",
        },
    });
    if notice.kind != NoticeKind::Resolved {
        payload["client"] = json!("retryrmq");
        payload["payload"] = json!({
            "summary": sanitize::cut(&notice.summary, SUMMARY),
            "source": notice.queue,
            "severity": match notice.severity {
                Severity::Wake => "critical",
                Severity::Morning => "warning",
                Severity::Count => "info",
            },
            "timestamp": notice.last.to_string(),
            "component": notice.service,
            "group": notice.queue,
            "class": notice.reason,
            "custom_details": {
                "error": notice.error,
                "error_type": notice.error_type,
                "fingerprint": notice.fingerprint,
                "routing_key": notice.routing_key,
                "message_id": notice.message_id,
                "type": notice.type_name,
                "rule": notice.rule,
                "count": notice.count,
                "per_minute": notice.per_minute,
                "first": notice.first,
                "fields": notice.fields,
            },
        });
    }
    payload
}

#[cfg(test)]
mod tests {
    use super::{super::tests::notice, *};

    #[test]
    fn an_incident_is_resolved_by_the_key_that_triggered_it() {
        let opened = payload(&notice(), "K");
        assert_eq!(opened["event_action"], "trigger");
        assert_eq!(opened["payload"]["severity"], "critical");
        let resolved = Notice {
            kind: NoticeKind::Resolved,
            ..notice()
        };
        let resolved = payload(&resolved, "K");
        assert_eq!(resolved["event_action"], "resolve");
        assert_eq!(resolved["dedup_key"], opened["dedup_key"]);
    }
}
