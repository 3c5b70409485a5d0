//! Alertmanager of Prometheus: its API, version 2.

use std::{path::PathBuf, time::Duration};

use jiff::Timestamp;
use reqwest::header::HeaderMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{SendResult, http::HttpClient, secret::SecretSource, token::TokenSource};
use crate::alerts::{ConfigDuration, Notice, NoticeKind, Severity};

/// Posts alerts, and ends them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Alertmanager {
    /// Where it is, without `/api/v2/alerts`.
    pub url: Option<String>,
    /// A file that holds the URL.
    pub url_file: Option<PathBuf>,
    /// An environment variable that holds the URL.
    pub url_env: Option<String>,
    /// A file that holds a bearer token.
    pub token_file: Option<PathBuf>,
    /// An environment variable that holds the token.
    pub token_env: Option<String>,
    /// A PEM file of the only authorities that count; otherwise those of the system.
    pub ca: Option<PathBuf>,
    /// How long one try may take; 10 s.
    pub timeout: Option<ConfigDuration>,
}

/// Alertmanager takes an alert without an end for resolved when it is not said again within minutes. So each has an end, far away.
const LIFETIME: Duration = Duration::from_secs(7 * 24 * 3_600);

#[derive(Debug)]
pub(super) struct AlertmanagerClient {
    http: HttpClient,
    token: TokenSource,
}

impl Alertmanager {
    pub(super) fn open(&self) -> Result<AlertmanagerClient, String> {
        let url = SecretSource::of(
            "url",
            self.url.as_deref(),
            self.url_file.as_deref(),
            self.url_env.as_deref(),
        )?
        .ok_or("it needs `url`, `url_file` or `url_env`")?;
        let token = TokenSource::of(self.token_file.as_deref(), self.token_env.as_deref())?;
        Ok(AlertmanagerClient {
            http: HttpClient::new(
                url,
                "/api/v2/alerts",
                self.ca.as_deref(),
                super::timeout(self.timeout),
            )?,
            token,
        })
    }
}

impl AlertmanagerClient {
    pub(super) async fn send(&self, notice: &Notice) -> SendResult {
        let body = payload(notice).to_string().into_bytes();
        let mut headers = HeaderMap::new();
        let token = self.token.authorize(&mut headers)?;
        let secrets: Vec<&str> = token.iter().map(String::as_str).collect();
        self.http.post(headers, body, &secrets).await
    }
}

fn payload(notice: &Notice) -> Value {
    let alert = |severity: Severity, ends: Timestamp| {
        // An alert is known by its labels: nothing among them may change while it lasts.
        let mut labels = json!({
            "alertname": match notice.vhost {
                Some(_) => "RetryrmqQueueInTrouble",
                None => "RetryrmqMessagesParked",
            },
            "service": notice.service,
            "queue": notice.queue,
            "group": notice.group,
            "incident": notice.incident,
            "severity": severity,
        });
        if let Some(vhost) = &notice.vhost {
            labels["vhost"] = json!(vhost);
            labels["kind"] = json!(notice.reason);
        } else {
            labels["fingerprint"] = json!(notice.fingerprint);
        }
        if let Value::Object(labels) = &mut labels {
            labels.retain(|_, value| value != ""); // Alertmanager refuses those
        }
        let mut annotations = json!({
            "summary": notice.summary,
            "error": notice.error,
            "error_type": notice.error_type,
            "reason": notice.reason,
            "rule": notice.rule,
            "count": notice.count.to_string(),
        });
        for (name, value) in &notice.fields {
            let name = annotation(name);
            annotations[name] = match annotations[&name].as_str() {
                Some(other) => json!(format!("{other}; {value}")),
                None => json!(value),
            };
        }
        json!({
            "labels": labels,
            "annotations": annotations,
            "startsAt": notice.opened.to_string(),
            "endsAt": ends.to_string(),
        })
    };
    let later = notice.at.checked_add(LIFETIME).unwrap_or(notice.at);
    let ends = match notice.kind {
        NoticeKind::Resolved => notice.at,
        NoticeKind::Opened | NoticeKind::Raised | NoticeKind::Updated => later,
    };
    let mut alerts = vec![alert(notice.severity, ends)];
    // Its severity is a label: the less important one ends, with each further notice, for not every channel is told that an incident was raised.
    if notice.raised {
        alerts.push(alert(Severity::Morning, notice.at));
    }
    Value::Array(alerts)
}

/// The name of a field as every Alertmanager takes it. Before 0.27, and in its classic mode, it refuses an alert with any other.
fn annotation(field: &str) -> String {
    let fits = |character: char| character.is_ascii_alphanumeric();
    field.replace(|character| !fits(character), "_")
}

#[cfg(test)]
mod tests {
    use super::{super::tests::notice, *};

    #[test]
    fn fields_are_annotations_that_every_alertmanager_takes() {
        let field = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let sent = payload(&Notice {
            fields: [
                field("body.customer.id", "7"),
                field("headers.x-tenant", "acme"),
                field("body.customer_id", "8"),
            ]
            .into(),
            ..notice()
        });
        let annotations = sent[0]["annotations"].as_object().unwrap();
        assert_eq!(annotations["body_customer_id"], "7; 8");
        assert_eq!(annotations["headers_x_tenant"], "acme");
        let fits = |name: &String| {
            name.chars()
                .all(|one| one == '_' || one.is_ascii_alphabetic())
        };
        assert!(annotations.keys().all(fits), "{annotations:?}");
    }

    #[test]
    fn an_alert_ends_under_the_labels_it_had() {
        let opened = payload(&notice());
        let resolved = payload(&Notice {
            kind: NoticeKind::Resolved,
            count: 99,
            error: "another".to_owned(),
            ..notice()
        });
        assert_eq!(resolved.as_array().unwrap().len(), 1);
        assert_eq!(opened[0]["labels"], resolved[0]["labels"]);
        assert_eq!(resolved[0]["endsAt"], notice().at.to_string());
        assert!(opened[0]["endsAt"].as_str() > resolved[0]["endsAt"].as_str());
    }

    #[test]
    fn a_page_that_was_raised_ends_also_where_nobody_was_told_of_that() {
        let told = |kind, severity, raised| {
            payload(&Notice {
                kind,
                severity,
                raised,
                ..notice()
            })
        };
        let opened = told(NoticeKind::Opened, Severity::Morning, false);
        for kind in [
            NoticeKind::Raised,
            NoticeKind::Updated,
            NoticeKind::Resolved,
        ] {
            let later = told(kind, Severity::Wake, true);
            assert_eq!(later[0]["labels"]["severity"], "wake", "{kind:?}");
            assert_eq!(later[1]["labels"], opened[0]["labels"], "{kind:?}");
            assert_eq!(later[1]["endsAt"], notice().at.to_string(), "{kind:?}");
        }
    }
}
