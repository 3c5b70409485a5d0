//! The options of a consumer, from plain JavaScript values.

use std::time::Duration;

use napi_derive::napi;
use retryrmq::Consumer;
use retryrmq_bindings::{Given, PauseGiven, PolicyText as Read, RuleGiven};

use crate::{
    errors::{Result, about, thrown},
    outcome::duration,
};

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

/// Reads a duration such as `"5m"`; milliseconds.
#[napi(catch_unwind)]
pub fn parse_duration(text: String) -> Result<f64> {
    retryrmq::parse_duration(&text).map(ms).map_err(thrown)
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
    let read = Read::read(Some(&text)).map_err(thrown)?;
    Ok(PolicyText {
        text: read.text,
        retries: read.retries,
        delays: read.delays.into_iter().map(ms).collect(),
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

impl From<RuleInput> for RuleGiven {
    fn from(rule: RuleInput) -> Self {
        let mut headers = rule.headers.unwrap_or_default().into_iter();
        let pairs = std::iter::from_fn(|| Some((headers.next()?, headers.next()?)));
        Self {
            headers: pairs.collect(),
            text: rule.text,
            routing_key: rule.routing_key,
            error: rule.error,
            policy: rule.policy.unwrap_or_default(),
        }
    }
}

/// The retry budget.
#[napi(object, object_to_js = false)]
pub struct PauseInput {
    /// The share of failures that is too much.
    pub failures: Option<f64>,
    /// Of how many attempts.
    pub window: Option<u32>,
    /// For how long, in milliseconds.
    pub duration: Option<f64>,
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
    pub priority: Option<i32>,
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
    pub fatal: Option<bool>,
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
        let span = |option, ms: Option<f64>| ms.map(|ms| duration(option, ms)).transpose();
        let pause = given.pause.map(|pause| {
            Ok::<_, napi::Error<crate::errors::Code>>(PauseGiven {
                failures: pause.failures,
                window: pause.window.map(|window| window as usize),
                pause: span("pause", pause.duration)?,
            })
        });
        let rules = given.rules.unwrap_or_default();
        let given = Given {
            queue: given.queue,
            dlx: given.dlx,
            retry: given.retry,
            strategy: given.strategy,
            rules: rules.into_iter().map(Into::into).collect(),
            prefetch: given
                .prefetch
                .map(|prefetch| u16::try_from(prefetch).unwrap_or(u16::MAX)),
            priority: given.priority,
            concurrency: given.concurrency.map(|concurrency| concurrency as usize),
            handler_timeout: span("handlerTimeout", given.handler_timeout)?,
            park: given.park,
            pause: pause.transpose()?,
            declare: given.declare,
            work_queue: given.work_queue,
            reserved_name: given.reserved_name,
            drain_timeout: span("drainTimeout", given.drain_timeout)?,
            crash_limit: given.crash_limit,
            defer_limit: given.defer_limit,
            fatal: given.fatal == Some(true),
        };
        let options = given.read().map_err(|refused| match refused.option {
            Some(option) => about(option, &refused.error),
            None => thrown(refused),
        })?;
        Ok(Self {
            consumer: options.consumer,
            has_rules: options.has_rules,
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
        self.consumer.limit().map(ms)
    }

    /// Whether the kinds of an error matter to somebody.
    #[napi(getter, catch_unwind)]
    pub fn has_rules(&self) -> bool {
        self.has_rules
    }
}
