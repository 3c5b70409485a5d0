//! What a program sends to have something done.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};

use super::{super::job_request::JobRequest, problem::Problem};

/// What is to be done.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(tag = "action", rename_all = "snake_case")]
pub(super) enum NewJob {
    /// Parked messages go back to the tail of their queue, counted from the start.
    Replay(GroupJob),
    /// Parked messages are dropped, and kept in `<queue>.parked.dropped` for a while. Role `admin`. Of more than ten messages `expected_count` is
    /// required.
    Drop(GroupJob),
    /// Dropped messages that are still kept are parked again.
    Restore(MessagesJob),
    /// Waiting messages are parked, as `requested`.
    Cancel(MessagesJob),
    /// Waiting messages come back to their queue now.
    Flush(MessagesJob),
    /// No alerts are sent for a group for a while. Its failures are still counted. Needs `[alerts]`.
    Silence(SilenceJob),
    /// The incident of a group is resolved. Its messages are not changed.
    Close(CloseJob),
    /// Reads the parking queue once, so that the history knows what is in it. Everything stays parked.
    Scan(ScanJob),
    /// Searches the bodies of the parked messages for a text. Masked values are not found. Everything stays parked.
    Search(SearchJob),
}

/// Parked messages: those that `marks` names, or all of a group that the history knows.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("oneOf" = [
    {"required": ["marks"], "properties": {"fingerprint": false}},
    {"required": ["fingerprint", "expected_count"], "properties": {"marks": false}},
    {"required": ["fingerprint", "dry_run"], "properties": {"marks": false, "expected_count": false, "dry_run": {"const": true}}},
]))]
pub(super) struct GroupJob {
    /// The work queue.
    #[schemars(length(min = 1, max = 255))]
    queue: String,
    /// The messages.
    #[serde(default, deserialize_with = "some")]
    #[schemars(
        with = "Vec<String>",
        length(min = 1),
        inner(regex(pattern = "^[0-9a-fA-F]{16}$"))
    )]
    marks: Option<Vec<String>>,
    /// The group, if `marks` is left out.
    #[serde(default, deserialize_with = "some")]
    #[schemars(with = "String", length(min = 1))]
    fingerprint: Option<String>,
    /// How many messages it is about. If it is about another number, nothing is done (409). Required with `fingerprint`, and to drop more than ten.
    #[serde(default, deserialize_with = "some")]
    #[schemars(with = "usize")]
    expected_count: Option<usize>,
    /// Say what would be done, and do nothing.
    #[serde(default)]
    dry_run: bool,
}

/// Messages by their marks.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct MessagesJob {
    /// The work queue.
    #[schemars(length(min = 1, max = 255))]
    queue: String,
    /// The messages.
    #[schemars(length(min = 1), inner(regex(pattern = "^[0-9a-fA-F]{16}$")))]
    marks: Vec<String>,
    /// How many messages it is about. If it is about another number, nothing is done (409).
    #[serde(default, deserialize_with = "some")]
    #[schemars(with = "usize")]
    expected_count: Option<usize>,
    /// Say what would be done, and do nothing.
    #[serde(default)]
    dry_run: bool,
}

/// A group, for so long.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SilenceJob {
    /// The work queue.
    #[schemars(length(min = 1, max = 255))]
    queue: String,
    /// The group.
    #[schemars(length(min = 1))]
    fingerprint: String,
    /// For how long, such as `1h`, `8h`, `1d` or `7d`; at most `90d`.
    #[schemars(regex(pattern = r"^([0-9]{1,3}(s|m|h)|([0-9]|[1-8][0-9]|90)d)$"))]
    duration: String,
    /// Why. 200 characters of it are kept.
    #[schemars(regex(pattern = r"\S"))]
    why: String,
    /// Say what would be done, and do nothing.
    #[serde(default)]
    dry_run: bool,
}

/// The incident of a group.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CloseJob {
    /// The work queue.
    #[schemars(length(min = 1, max = 255))]
    queue: String,
    /// The `group` of the incident.
    #[schemars(regex(pattern = "^[0-9a-f]{16}$"))]
    group: String,
    /// The group's fingerprint, for the history.
    #[serde(default, deserialize_with = "some")]
    #[schemars(with = "String")]
    fingerprint: Option<String>,
    /// Say what would be done, and do nothing.
    #[serde(default)]
    dry_run: bool,
}

/// A parking queue.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ScanJob {
    /// The work queue.
    #[schemars(length(min = 1, max = 255))]
    queue: String,
    /// Say what would be done, and do nothing.
    #[serde(default)]
    dry_run: bool,
}

/// A text in bodies.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SearchJob {
    /// The work queue.
    #[schemars(length(min = 1, max = 255))]
    queue: String,
    /// The text, 3 to 200 bytes. Case is ignored.
    #[schemars(length(min = 3, max = 200), regex(pattern = r"^\s*\S[\s\S]+\S\s*$"))]
    text: String,
    /// Say what would be done, and do nothing.
    #[serde(default)]
    dry_run: bool,
}

/// A field that is there has a value: a program that sends `null` may mean anything.
fn some<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// What a program sent, in the words that the page's forms use as well.
pub(super) struct Read {
    pub(super) request: JobRequest,
    pub(super) expected_count: Option<usize>,
    pub(super) dry_run: bool,
}

impl NewJob {
    /// # Errors
    /// What is wrong with its marks.
    pub(super) fn read(self) -> Result<Read, Problem> {
        let action = self.word().to_owned();
        let (request, expected_count, dry_run) = match self {
            Self::Replay(job) | Self::Drop(job) => {
                let (marks, fingerprint) = (job.marks, job.fingerprint.unwrap_or_default());
                if marks.is_some() != fingerprint.is_empty() {
                    return Err(Problem::invalid(
                        "Name the messages either by `marks` or, all of a group, by `fingerprint`.",
                    ));
                }
                let request = JobRequest {
                    queue: job.queue,
                    marks: marks.map(checked).transpose()?.unwrap_or_default(),
                    fingerprint,
                    ..JobRequest::default()
                };
                (request, job.expected_count, job.dry_run)
            }
            Self::Restore(job) | Self::Cancel(job) | Self::Flush(job) => {
                let request = JobRequest {
                    queue: job.queue,
                    marks: checked(job.marks)?,
                    ..JobRequest::default()
                };
                (request, job.expected_count, job.dry_run)
            }
            Self::Silence(job) => {
                let request = JobRequest {
                    queue: job.queue,
                    fingerprint: job.fingerprint,
                    length: job.duration,
                    why: job.why,
                    ..JobRequest::default()
                };
                (request, None, job.dry_run)
            }
            Self::Close(job) => {
                let request = JobRequest {
                    queue: job.queue,
                    group: job.group,
                    fingerprint: job.fingerprint.unwrap_or_default(),
                    ..JobRequest::default()
                };
                (request, None, job.dry_run)
            }
            Self::Scan(job) => {
                let request = JobRequest {
                    queue: job.queue,
                    ..JobRequest::default()
                };
                (request, None, job.dry_run)
            }
            Self::Search(job) => {
                let request = JobRequest {
                    queue: job.queue,
                    text: job.text,
                    ..JobRequest::default()
                };
                (request, None, job.dry_run)
            }
        };
        Ok(Read {
            request: JobRequest { action, ..request },
            expected_count,
            dry_run,
        })
    }

    fn word(&self) -> &'static str {
        match self {
            Self::Replay(_) => "replay",
            Self::Drop(_) => "drop",
            Self::Restore(_) => "restore",
            Self::Cancel(_) => "cancel",
            Self::Flush(_) => "flush",
            Self::Silence(_) => "silence",
            Self::Close(_) => "close",
            Self::Scan(_) => "scan",
            Self::Search(_) => "search",
        }
    }
}

/// The marks, each once and in lower case. A form leaves out what is no mark; a program is told.
fn checked(marks: Vec<String>) -> Result<Vec<String>, Problem> {
    let is_mark = |mark: &str| mark.len() == 16 && mark.bytes().all(|b| b.is_ascii_hexdigit());
    match marks.iter().find(|mark| !is_mark(mark)) {
        Some(mark) => {
            let mark: String = mark.chars().take(40).collect();
            Err(Problem::invalid(format!(
                "{} is no mark: a mark has 16 hexadecimal digits.",
                serde_json::Value::from(mark)
            )))
        }
        None if marks.is_empty() => Err(Problem::invalid("`marks` names no message.")),
        None => Ok(super::super::jobs::marks(&marks.join(","))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Read, String> {
        let job: NewJob = serde_json::from_str(text).map_err(|error| error.to_string())?;
        job.read().map_err(|problem| problem.detail().to_owned())
    }

    #[test]
    fn a_job_names_messages_or_a_group_and_nothing_else() {
        let job = read(
            r#"{"action": "drop", "queue": "q", "marks": ["0123456789ABCDEF", "0123456789abcdef"], "dry_run": true}"#,
        )
        .unwrap();
        assert_eq!(job.request.action, "drop");
        assert_eq!(job.request.marks, ["0123456789abcdef"]);
        assert!(job.dry_run);
        for (text, words) in [
            (r#"{"queue": "q"}"#, "missing field `action`"),
            (
                r#"{"action": "erase", "queue": "q"}"#,
                "unknown variant `erase`",
            ),
            (r#"{"action": "scan"}"#, "missing field `queue`"),
            (
                r#"{"action": "scan", "queue": "q", "force": 1}"#,
                "unknown field `force`",
            ),
            (
                r#"{"action": "scan", "queue": "q", "queue": "p"}"#,
                "duplicate field",
            ),
            (r#"{"action": "replay", "queue": "q"}"#, "either by `marks`"),
            (
                r#"{"action": "replay", "queue": "q", "fingerprint": "f", "marks": ["0123456789abcdef"]}"#,
                "either by `marks`",
            ),
            (
                r#"{"action": "cancel", "queue": "q", "fingerprint": "f"}"#,
                "unknown field",
            ),
            (
                r#"{"action": "flush", "queue": "q", "marks": []}"#,
                "names no message",
            ),
            (
                r#"{"action": "flush", "queue": "q", "marks": ["7"]}"#,
                "\"7\" is no mark",
            ),
            (
                r#"{"action": "drop", "queue": "q", "marks": 7}"#,
                "invalid type",
            ),
            (
                r#"{"action": "drop", "queue": "q", "marks": null}"#,
                "invalid type: null",
            ),
            (
                r#"{"action": "drop", "queue": "q", "fingerprint": "f", "expected_count": -1}"#,
                "invalid value",
            ),
        ] {
            match read(text) {
                Err(why) => assert!(why.contains(words), "{text}: {why}"),
                Ok(_) => panic!("{text}"),
            }
        }
    }
}
