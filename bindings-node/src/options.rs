//! The options of a consumer, from plain JavaScript values.

use napi_derive::napi;
use retryrmq::{Consumer, ErrorKind, Limits, Pause, Policy, Rule};

use crate::{
    errors::{Result, about, thrown},
    outcome::duration,
};

/// Reads a duration such as `"5m"`; milliseconds.
#[napi(catch_unwind)]
pub fn parse_duration(text: String) -> Result<f64> {
    retryrmq::parse_duration(&text)
        .map(|duration| duration.as_secs_f64() * 1000.0)
        .map_err(|error| thrown(&error))
}

/// A policy, read and written in its full form.
#[napi(object, object_from_js = false)]
pub struct PolicyText {
    /// Its full form.
    pub text: String,
    /// How many retries it has.
    pub retries: u32,
    /// The delay before each of them, in milliseconds.
    pub delays: Vec<f64>,
}

/// Reads a policy.
#[napi(catch_unwind)]
pub fn read_policy(text: String) -> Result<PolicyText> {
    let policy: Policy = text.parse().map_err(|error| thrown(&error))?;
    Ok(PolicyText {
        text: policy.to_string(),
        retries: policy.max_retries(),
        delays: (1..=policy.max_retries().min(1_000))
            .map(|retry| policy.delay(retry, 2).as_secs_f64() * 1000.0)
            .collect(),
    })
}

/// A rule: its text, or its parts.
#[napi(object, object_to_js = false)]
pub struct RuleInput {
    /// The whole rule.
    pub text: Option<String>,
    /// A topic pattern.
    pub routing_key: Option<String>,
    /// Names and values, by turns.
    pub headers: Option<Vec<String>>,
    /// A pattern for the error's type.
    pub error: Option<String>,
    /// The policy.
    pub policy: Option<String>,
}

impl RuleInput {
    fn rule(self) -> std::result::Result<Rule, retryrmq::Error> {
        if let Some(text) = self.text {
            return text.parse();
        }
        let mut rule = Rule::new(self.policy.unwrap_or_default().parse()?);
        if let Some(pattern) = self.routing_key {
            rule = rule.routing_key(pattern);
        }
        let mut headers = self.headers.unwrap_or_default().into_iter();
        while let (Some(name), Some(value)) = (headers.next(), headers.next()) {
            rule = rule.header(name, value);
        }
        if let Some(pattern) = self.error {
            rule = rule.error(pattern);
        }
        Ok(rule)
    }
}

/// The retry budget.
#[napi(object, object_to_js = false)]
pub struct PauseInput {
    /// The share of failures that is too much.
    pub failures: f64,
    /// Of how many attempts.
    pub window: u32,
    /// For how long, in milliseconds.
    pub duration: f64,
}

/// What was given; what is missing has the core's default. Milliseconds for durations.
#[napi(object, object_to_js = false)]
#[allow(missing_docs)] // the TypeScript half has the documentation of each
pub struct OptionsInput {
    pub queue: String,
    pub dlx: Option<bool>,
    pub retry: Option<String>,
    pub strategy: Option<String>,
    pub rules: Option<Vec<RuleInput>>,
    pub prefetch: Option<u32>,
    pub concurrency: Option<u32>,
    pub handler_timeout: Option<f64>,
    pub drain_timeout: Option<f64>,
    pub park: Option<bool>,
    pub pause: Option<PauseInput>,
    pub declare: Option<bool>,
    pub work_queue: Option<String>,
    pub reserved_name: Option<bool>,
    pub crash_limit: Option<u32>,
    pub defer_limit: Option<u32>,
}

/// The options of a consumer, checked.
#[napi]
pub struct Options {
    pub(crate) consumer: Consumer,
    has_rules: bool,
}

#[napi]
impl Options {
    /// Checks all options.
    #[napi(constructor, catch_unwind)]
    pub fn new(given: OptionsInput) -> Result<Self> {
        let named = |option| move |error: retryrmq::Error| about(option, &error);
        let mut consumer = Consumer::new(given.queue);
        let has_rules = given.rules.as_ref().is_some_and(|rules| !rules.is_empty());
        if let Some(dlx) = given.dlx {
            consumer = consumer.dlx(dlx);
        }
        if let Some(policy) = given.retry {
            consumer = consumer.retry(policy.parse().map_err(named("retry"))?);
        }
        if let Some(strategy) = given.strategy {
            consumer = consumer.strategy(strategy.parse().map_err(named("strategy"))?);
        }
        if let Some(rules) = given.rules {
            let rules = rules
                .into_iter()
                .map(|rule| rule.rule().map_err(named("rules")))
                .collect::<Result<Vec<_>>>()?;
            consumer = consumer.rules(rules);
        }
        if let Some(prefetch) = given.prefetch {
            consumer = consumer.prefetch(u16::try_from(prefetch).unwrap_or(u16::MAX));
        }
        if let Some(concurrency) = given.concurrency {
            consumer = consumer.concurrency(concurrency as usize);
        }
        if let Some(ms) = given.handler_timeout {
            consumer = consumer.handler_timeout(duration("handlerTimeout", ms)?);
        }
        if let Some(ms) = given.drain_timeout {
            consumer = consumer.drain_timeout(duration("drainTimeout", ms)?);
        }
        if let Some(park) = given.park {
            consumer = consumer.park(park);
        }
        if let Some(pause) = given.pause {
            consumer = consumer.pause(
                Pause::default()
                    .failures(pause.failures)
                    .window(pause.window as usize)
                    .pause(duration("pause", pause.duration)?),
            );
        }
        if let Some(declare) = given.declare {
            consumer = consumer.declare(declare);
        }
        if let Some(work_queue) = given.work_queue {
            // What the core says of it names it already.
            consumer = consumer.work_queue(work_queue.parse().map_err(|error| thrown(&error))?);
        }
        if let Some(reserved_name) = given.reserved_name {
            consumer = consumer.reserved_name(reserved_name);
        }
        let mut limits = Limits::default();
        if let Some(crashes) = given.crash_limit {
            limits.crashes = crashes;
            limits.suspect = limits.suspect.min(crashes);
        }
        if let Some(deferrals) = given.defer_limit {
            limits.deferrals = deferrals;
        }
        let consumer = consumer.limits(limits);
        consumer.validate().map_err(|error| match error.kind() {
            // The only option that can be too long.
            ErrorKind::TooLarge => about("queue", &error),
            _ => thrown(&error),
        })?;
        Ok(Self {
            consumer,
            has_rules,
        })
    }

    /// How many handlers run at a time.
    #[napi(getter, catch_unwind)]
    pub fn concurrency(&self) -> u32 {
        u32::try_from(self.consumer.handlers()).unwrap_or(u32::MAX)
    }

    /// How long a handler may take, in milliseconds.
    #[napi(getter, catch_unwind)]
    pub fn handler_timeout(&self) -> Option<f64> {
        self.consumer
            .limit()
            .map(|limit| limit.as_secs_f64() * 1000.0)
    }

    /// Whether the kinds of an error matter to somebody.
    #[napi(getter, catch_unwind)]
    pub fn has_rules(&self) -> bool {
        self.has_rules
    }
}
