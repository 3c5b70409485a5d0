//! Channels: the ways in which people are told.

mod alertmanager;
mod http;
mod log;
mod pagerduty;
mod retry_queue;
mod secret;
mod send_result;
mod slack;
mod smtp;
mod token;
mod webhook;
mod worker;

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::send_result::SendResult;
pub(super) use self::worker::{ChannelTimeouts, ChannelWorker, NoticeDone};
pub use self::{
    alertmanager::Alertmanager,
    log::Log,
    pagerduty::PagerDuty,
    slack::Slack,
    smtp::{Smtp, SmtpSecurity},
    webhook::Webhook,
};
use super::{ConfigDuration, Notice, Severity, sanitize::HIDDEN};

/// A channel: which severities it takes, and exactly one way to tell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Channel {
    /// What it takes; both `wake` and `morning` without it.
    pub severities: Option<Vec<Severity>>,
    /// The log of the service.
    pub log: Option<Log>,
    /// JSON to a URL.
    pub webhook: Option<Webhook>,
    /// Slack.
    pub slack: Option<Slack>,
    /// PagerDuty.
    pub pagerduty: Option<PagerDuty>,
    /// Alertmanager of Prometheus.
    pub alertmanager: Option<Alertmanager>,
    /// Mail.
    pub smtp: Option<Smtp>,
}

/// A way to tell people.
#[derive(Debug)]
pub(super) struct OpenChannel(ChannelKind);

#[derive(Debug)]
enum ChannelKind {
    Log,
    Webhook(webhook::WebhookClient),
    Slack(slack::SlackClient),
    PagerDuty(pagerduty::PagerDutyClient),
    Alertmanager(alertmanager::AlertmanagerClient),
    Smtp(Box<smtp::SmtpClient>),
}

impl Channel {
    /// Makes it ready. Secrets are read once, to see that they are there.
    ///
    /// # Errors
    /// A sentence that names what to change, without a secret.
    pub(super) fn open(&self) -> Result<OpenChannel, String> {
        let mut ways = Vec::new();
        if self.log.is_some() {
            ways.push(ChannelKind::Log);
        }
        if let Some(webhook) = &self.webhook {
            ways.push(ChannelKind::Webhook(webhook.open()?));
        }
        if let Some(slack) = &self.slack {
            ways.push(ChannelKind::Slack(slack.open()?));
        }
        if let Some(pagerduty) = &self.pagerduty {
            ways.push(ChannelKind::PagerDuty(pagerduty.open()?));
        }
        if let Some(alertmanager) = &self.alertmanager {
            ways.push(ChannelKind::Alertmanager(alertmanager.open()?));
        }
        if let Some(smtp) = &self.smtp {
            ways.push(ChannelKind::Smtp(Box::new(smtp.open()?)));
        }
        match (ways.pop(), ways.is_empty()) {
            (Some(way), true) => Ok(OpenChannel(way)),
            _ => Err("it needs exactly one of `log`, `webhook`, `slack`, `pagerduty`, `alertmanager` and `smtp`".to_owned()),
        }
    }
}

impl OpenChannel {
    async fn send(&self, notice: &Notice) -> SendResult {
        match &self.0 {
            ChannelKind::Log => {
                log::write(notice);
                Ok(())
            }
            ChannelKind::Webhook(posting) => posting.send(notice).await,
            ChannelKind::Slack(posting) => posting.send(notice).await,
            ChannelKind::PagerDuty(posting) => posting.send(notice).await,
            ChannelKind::Alertmanager(posting) => posting.send(notice).await,
            ChannelKind::Smtp(posting) => posting.send(notice).await,
        }
    }
}

fn timeout(said: Option<ConfigDuration>) -> Duration {
    said.unwrap_or(ConfigDuration::seconds(10)).0
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::alerts::{NoticeKind, Trigger};

    pub(super) fn notice() -> Notice {
        let at = |second: i64| jiff::Timestamp::from_second(1_800_000_000 + second).unwrap();
        Notice {
            number: 7,
            incident: "shop-0123456789abcdef-1800000000000".to_owned(),
            group: "0123456789abcdef".to_owned(),
            kind: NoticeKind::Opened,
            trigger: Trigger::First,
            severity: Severity::Wake,
            raised: false,
            service: "shop".to_owned(),
            summary: "new: orders: db.Timeout: no answer (exhausted); 1 message".to_owned(),
            vhost: None,
            queue: "orders".to_owned(),
            fingerprint: "f1".to_owned(),
            reason: "exhausted".to_owned(),
            error: "no answer".to_owned(),
            error_type: "db.Timeout".to_owned(),
            routing_key: "order.new".to_owned(),
            message_id: Some("m-1".to_owned()),
            type_name: None,
            fields: BTreeMap::new(),
            rule: "payments".to_owned(),
            count: 1,
            per_minute: 1,
            opened: at(0),
            first: at(0),
            last: at(1),
            at: at(2),
            channels: Vec::new(),
        }
    }

    #[test]
    fn a_channel_is_exactly_one() {
        let why = Channel::default().open().unwrap_err();
        assert!(why.contains("exactly one"));
        let two = Channel {
            log: Some(Log {}),
            webhook: Some(Webhook {
                url: Some("http://127.0.0.1:1/".to_owned()),
                ..Webhook::default()
            }),
            ..Channel::default()
        };
        assert!(two.open().unwrap_err().contains("exactly one"));
    }

    #[test]
    fn what_cannot_work_says_so_without_the_url() {
        let url = |url: &str| Channel {
            webhook: Some(Webhook {
                url: Some(url.to_owned()),
                ..Webhook::default()
            }),
            ..Channel::default()
        };
        for bad in [
            "s3cret",
            "ftp://s3cret",
            "http://s3cret:x:y",
            "file:///s3cret",
        ] {
            let why = url(bad).open().unwrap_err();
            assert!(
                why.contains("https://host/path") && !why.contains("s3cret"),
                "{why}"
            );
        }
        let slack = Channel {
            slack: Some(Slack::default()),
            ..Channel::default()
        };
        assert!(
            slack
                .open()
                .unwrap_err()
                .contains("`url_file` or `url_env`")
        );
    }
}
