//! Slack: an incoming webhook.

use std::path::PathBuf;

use reqwest::header::HeaderMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{SendResult, http::HttpClient, secret::SecretSource};
use crate::alerts::{ConfigDuration, Notice, NoticeKind, Severity, sanitize};

/// Posts to a Slack channel by its incoming webhook, whose URL is a secret.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Slack {
    /// A file that holds the URL of the webhook.
    pub url_file: Option<PathBuf>,
    /// An environment variable that holds it.
    pub url_env: Option<String>,
    /// A PEM file of the only authorities that count; otherwise those of the system.
    pub ca: Option<PathBuf>,
    /// How long one try may take; 10 s.
    pub timeout: Option<ConfigDuration>,
}

/// Slack takes 3 000 characters in the text of a block, escapes included.
const BLOCK: usize = 2_900;
/// And 2 000 in a field.
const FIELD: usize = 1_900;
/// And ten fields.
const FIELDS: usize = 10;

#[derive(Debug)]
pub(super) struct SlackClient {
    http: HttpClient,
}

impl Slack {
    pub(super) fn open(&self) -> Result<SlackClient, String> {
        let url = SecretSource::of(
            "url",
            None,
            self.url_file.as_deref(),
            self.url_env.as_deref(),
        )?
        .ok_or("it needs `url_file` or `url_env`")?;
        Ok(SlackClient {
            http: HttpClient::new(url, "", self.ca.as_deref(), super::timeout(self.timeout))?,
        })
    }
}

impl SlackClient {
    pub(super) async fn send(&self, notice: &Notice) -> SendResult {
        let body = payload(notice).to_string().into_bytes();
        self.http.post(HeaderMap::new(), body, &[]).await
    }
}

fn payload(notice: &Notice) -> Value {
    let mark = match (notice.kind, notice.severity) {
        (NoticeKind::Resolved, _) => ":white_check_mark:",
        (_, Severity::Wake) => ":rotating_light:",
        _ => ":warning:",
    };
    let heading = bounded(&format!("{mark} *"), &notice.summary, "*", BLOCK);
    let mut fields = Vec::new();
    let mut field = |name: &str, value: &str| {
        if !value.is_empty() && fields.len() < FIELDS {
            let before = format!("*{}*\n", escape(&sanitize::cut(name, 100)));
            let text = bounded(&before, value, "", FIELD);
            fields.push(json!({"type": "mrkdwn", "text": text}));
        }
    };
    field("queue", &notice.queue);
    field("reason", &notice.reason);
    if notice.vhost.is_none() {
        field("messages", &notice.count.to_string());
        field("fingerprint", &notice.fingerprint);
        field("routing key", &notice.routing_key);
        field(
            "message-id",
            notice.message_id.as_deref().unwrap_or_default(),
        );
    }
    for (name, value) in &notice.fields {
        field(name, value);
    }
    let mut blocks = vec![json!({"type": "section", "text": {"type": "mrkdwn", "text": heading}})];
    if !fields.is_empty() {
        blocks.push(json!({"type": "section", "fields": fields}));
    }
    let context = format!(
        "{} · {} · rule {} · incident {}",
        notice.service, notice.severity, notice.rule, notice.incident
    );
    let context = bounded("", &context, "", FIELD);
    blocks.push(json!({"type": "context", "elements": [{"type": "mrkdwn", "text": context}]}));
    // The text is what a phone shows.
    json!({"text": bounded("", &notice.summary, "", BLOCK), "blocks": blocks})
}

/// The text between, escaped, and cut so that all of it fits.
fn bounded(before: &str, text: &str, after: &str, most: usize) -> String {
    let mut kept = text.chars().count();
    loop {
        let shown = format!("{before}{}{after}", escape(&sanitize::cut(text, kept)));
        if shown.chars().count() <= most || kept == 0 {
            return shown;
        }
        kept = kept * 3 / 4;
    }
}

/// As Slack wants it: so nobody is mentioned and no link is made. What would be bold or code is only text, by a mark of no width
/// that Slack does not show.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '*' | '_' | '~' | '`' => {
                escaped.push('\u{200b}');
                escaped.push(c);
            }
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::{super::tests::notice, *};

    #[test]
    fn nobody_is_mentioned_by_a_stranger_and_everything_fits() {
        let hostile = Notice {
            summary: format!("<!channel> <https://evil|x> & *b* {}", "<".repeat(5_000)),
            fields: (0..30)
                .map(|n| (format!("body.<{n}>"), ">".repeat(3_000)))
                .collect(),
            ..notice()
        };
        let payload = payload(&hostile);
        let heading = payload["blocks"][0]["text"]["text"].as_str().unwrap();
        assert!(
            heading.contains("&lt;!channel&gt; &lt;https://evil|x&gt; &amp;"),
            "{heading}"
        );
        assert!(!heading.contains("<!") && heading.chars().count() <= 3_000);
        let fields = payload["blocks"][1]["fields"].as_array().unwrap();
        assert!(fields.len() <= 10);
        assert!(
            fields
                .iter()
                .all(|f| f["text"].as_str().unwrap().chars().count() <= 2_000)
        );
        assert!(!payload.to_string().contains("<!channel>"));
    }
}
