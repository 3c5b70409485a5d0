//! The options of a consumer, as a language's façade writes them. The core has the defaults.

use std::{collections::BTreeMap, str::FromStr, time::Duration};

use retryrmq::{Consumer, Error, ErrorKind, Limits, Pause, Policy, Rule};
use serde::Deserialize;

use crate::{BindingError, seconds};

/// A rule: its text, or its conditions and its policy.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum RuleJson {
    Text(String),
    Parts(RuleParts),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleParts {
    /// A topic pattern.
    routing_key: Option<String>,
    /// Headers and patterns for their values.
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// A pattern for the error's type.
    error: Option<String>,
    policy: String,
}

impl RuleJson {
    fn read(self) -> Result<Rule, Error> {
        let parts = match self {
            Self::Text(text) => return text.parse(),
            Self::Parts(parts) => parts,
        };
        let mut rule = Rule::new(parts.policy.parse::<Policy>()?);
        if let Some(pattern) = parts.routing_key {
            rule = rule.routing_key(pattern);
        }
        for (name, value) in parts.headers {
            rule = rule.header(name, value);
        }
        if let Some(pattern) = parts.error {
            rule = rule.error(pattern);
        }
        Ok(rule)
    }
}

/// When to stop taking messages for a while.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PauseJson {
    failures: Option<f64>,
    window: Option<usize>,
    duration: Option<f64>,
}

impl PauseJson {
    fn read(self) -> Result<Pause, OptionsError> {
        let usual = Pause::default();
        Ok(usual
            .failures(self.failures.unwrap_or(usual.failures))
            .window(self.window.unwrap_or(usual.window))
            .pause(span("pause", self.duration)?.unwrap_or(usual.pause)))
    }
}

/// The given options. Each is the option of `Consumer` with that name; durations are in seconds.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct OptionsJson {
    queue: String,
    dlx: Option<bool>,
    retry: Option<String>,
    strategy: Option<String>,
    rules: Vec<RuleJson>,
    prefetch: Option<u16>,
    prefetch_bytes: Option<u64>,
    priority: Option<i32>,
    concurrency: Option<usize>,
    batch: Option<usize>,
    batch_wait: Option<f64>,
    handler_timeout: Option<f64>,
    park: Option<bool>,
    pause: Option<PauseJson>,
    /// Whether the language's half has errors that no retry can fix. That half checks them.
    fatal: bool,
    declare: Option<bool>,
    work_queue: Option<String>,
    reserved_name: Option<bool>,
    drain_timeout: Option<f64>,
    crash_limit: Option<u32>,
    defer_limit: Option<u32>,
}

/// The options of a consumer, checked.
#[derive(Clone, Debug)]
pub struct Options {
    /// The consumer, without a client.
    pub consumer: Consumer,
    /// Whether rules need the types of an error.
    pub has_rules: bool,
}

/// Why options cannot work, and the name of the option if the sentence does not contain it.
#[derive(Debug)]
pub struct OptionsError {
    /// The option.
    pub option: Option<&'static str>,
    /// What is wrong with it.
    pub why: BindingError,
}

impl From<OptionsError> for BindingError {
    fn from(refused: OptionsError) -> Self {
        refused.why
    }
}

impl From<BindingError> for OptionsError {
    fn from(why: BindingError) -> Self {
        Self { option: None, why }
    }
}

fn parsed<T: FromStr<Err = Error>>(
    option: &'static str,
    text: Option<String>,
) -> Result<Option<T>, OptionsError> {
    text.map(|text| text.parse().map_err(about(option)))
        .transpose()
}

fn about(option: &'static str) -> impl Fn(Error) -> OptionsError {
    move |error| OptionsError {
        option: Some(option),
        why: error.into(),
    }
}

fn span(option: &str, given: Option<f64>) -> Result<Option<Duration>, OptionsError> {
    Ok(given.map(|given| seconds(option, given)).transpose()?)
}

impl Options {
    /// Reads and checks the options, without a broker. `given` is a JSON object with the options under their names in
    /// `table.json`: texts for a policy, a strategy and a work queue, seconds for durations. A rule is its text, or an object
    /// with `policy` and its conditions `routing_key`, `headers` and `error`. `pause` is an object with `failures`, `window` and
    /// `duration`. `fatal` says whether the language has errors that no retry can fix.
    ///
    /// So a new option is named only here and where users write it, not in between.
    ///
    /// # Errors
    /// Those of [`Consumer::validate`], those of parsing policies, rules, strategies and arguments, and `invalid_option` for an object that
    /// this version does not know.
    pub fn read(given: &str) -> Result<Self, OptionsError> {
        let given: OptionsJson = serde_json::from_str(given)
            .map_err(|why| BindingError::option(format!("the options cannot be read: {why}")))?;
        given.read()
    }
}

impl OptionsJson {
    fn read(self) -> Result<Options, OptionsError> {
        let mut consumer = Consumer::new(self.queue);
        let (batch_wait, handler_timeout, drain_timeout) = (
            span("batch_wait", self.batch_wait)?,
            span("handler_timeout", self.handler_timeout)?,
            span("drain_timeout", self.drain_timeout)?,
        );
        macro_rules! said {
            ($($option:ident: $value:expr),* $(,)?) => {
                $(if let Some(value) = $value {
                    consumer = consumer.$option(value);
                })*
            };
        }
        said! {
            dlx: self.dlx,
            prefetch: self.prefetch,
            prefetch_bytes: self.prefetch_bytes,
            priority: self.priority,
            concurrency: self.concurrency,
            batch: self.batch,
            batch_wait: batch_wait,
            handler_timeout: handler_timeout,
            drain_timeout: drain_timeout,
            park: self.park,
            declare: self.declare,
            reserved_name: self.reserved_name,
            retry: parsed("retry", self.retry)?,
            strategy: parsed("strategy", self.strategy)?,
            // The core's error about its text names the option.
            work_queue: self.work_queue.map(|text| text.parse()).transpose().map_err(BindingError::from)?,
            pause: self.pause.map(PauseJson::read).transpose()?,
        }
        if self.fatal {
            consumer = consumer.fatal(|_| false);
        }
        let has_rules = !self.rules.is_empty();
        let rules = self.rules.into_iter().map(RuleJson::read);
        consumer = consumer.rules(
            rules
                .collect::<Result<Vec<_>, _>>()
                .map_err(about("rules"))?,
        );
        let usual = Limits::default();
        consumer = consumer.limits(
            usual
                .crashes(self.crash_limit.unwrap_or(usual.crashes))
                .deferrals(self.defer_limit.unwrap_or(usual.deferrals)),
        );
        consumer.validate().map_err(|error| OptionsError {
            // The only option that can be too long.
            option: (error.kind() == ErrorKind::TooLarge).then_some("queue"),
            why: error.into(),
        })?;
        Ok(Options {
            consumer,
            has_rules,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_refused_names_its_option() {
        let long = "x".repeat(300);
        Options::read(r#"{"queue": "orders", "dlx": true}"#).unwrap();
        for (given, option) in [
            (json!({"dlx": true, "retry": "hope"}), Some("retry")),
            (json!({"dlx": true, "strategy": "hope"}), Some("strategy")),
            (
                json!({"dlx": true, "rules": [{"policy": "hope"}]}),
                Some("rules"),
            ),
            (json!({"dlx": true, "rules": ["hope"]}), Some("rules")),
            (json!({"dlx": true, "queue": long}), Some("queue")),
            (json!({"dlx": true, "work_queue": "hope"}), None),
            (json!({"dlx": true, "handler_timeout": -1}), None),
            (json!({"fatal": true}), None),
            (json!({"park": false}), None),
            (json!({"hope": 1}), None),
            (json!({"prefetch": 70_000}), None),
            (json!({"prefetch_bytes": 0}), None),
            (json!({"prefetch_bytes": -1}), None),
            (json!({"batch": 0}), None),
            (json!({"batch": 100, "prefetch": 99}), None),
            (json!({"batch_wait": 0.2}), None),
            (json!({"batch": 2, "batch_wait": -1}), None),
        ] {
            let mut all = json!({"queue": "orders"});
            let given = given.as_object().unwrap().clone();
            all.as_object_mut().unwrap().extend(given);
            let refused = Options::read(&all.to_string()).unwrap_err();
            assert_eq!(refused.option, option, "{all}");
        }
    }

    #[test]
    fn all_that_is_said_reaches_the_consumer() {
        let read = Options::read(
            r#"{"queue": "orders", "dlx": true, "prefetch": 7, "prefetch_bytes": 8388608, "concurrency": 3, "handler_timeout": 1.5, "drain_timeout": 0.25,
                "pause": {"window": 5}, "rules": [{"policy": "fixed(1s)", "headers": {"a": "b"}}, "error=X => fixed(2s)"]}"#,
        );
        let Options {
            consumer,
            has_rules,
        } = read.unwrap();
        assert_eq!(
            (
                consumer.configured_prefetch(),
                consumer.configured_concurrency()
            ),
            (7, 3)
        );
        assert_eq!(consumer.configured_prefetch_bytes(), Some(8 << 20));
        assert_eq!(
            consumer.configured_handler_timeout(),
            Some(Duration::from_millis(1500))
        );
        assert_eq!(
            consumer.configured_drain_timeout(),
            Duration::from_millis(250)
        );
        assert!(has_rules);
        let read = Options::read(r#"{"queue": "orders", "batch": 100, "batch_wait": 0}"#);
        let batches = read.unwrap().consumer;
        assert_eq!(
            (batches.batch_size(), batches.configured_prefetch()),
            (Some(100), 1_600)
        );
        assert_eq!(batches.configured_batch_wait(), Duration::ZERO);
    }
}
