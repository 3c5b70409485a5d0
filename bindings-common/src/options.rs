//! The options of a consumer, from plain values. What is not given is the core's to decide.

use std::{str::FromStr, time::Duration};

use retryrmq::{Consumer, Error, ErrorKind, Limits, Pause, Policy, Rule};

use crate::Refusal;

/// A rule: its text, or its conditions and its policy.
#[derive(Clone, Debug, Default)]
pub struct RuleGiven {
    /// All of it as text; then nothing else counts.
    pub text: Option<String>,
    /// A topic pattern for the routing key.
    pub routing_key: Option<String>,
    /// Headers and patterns for their values.
    pub headers: Vec<(String, String)>,
    /// A pattern for the error's type.
    pub error: Option<String>,
    /// The policy.
    pub policy: String,
}

impl RuleGiven {
    fn read(self) -> Result<Rule, Error> {
        if let Some(text) = self.text {
            return text.parse();
        }
        let mut rule = Rule::new(self.policy.parse::<Policy>()?);
        if let Some(pattern) = self.routing_key {
            rule = rule.routing_key(pattern);
        }
        for (name, value) in self.headers {
            rule = rule.header(name, value);
        }
        if let Some(pattern) = self.error {
            rule = rule.error(pattern);
        }
        Ok(rule)
    }
}

/// When to stop taking messages for a while.
#[derive(Clone, Copy, Debug, Default)]
pub struct PauseGiven {
    /// The share of failures that is too much.
    pub failures: Option<f64>,
    /// Of how many attempts.
    pub window: Option<usize>,
    /// For how long.
    pub pause: Option<Duration>,
}

impl PauseGiven {
    fn read(self) -> Pause {
        let usual = Pause::default();
        usual
            .failures(self.failures.unwrap_or(usual.failures))
            .window(self.window.unwrap_or(usual.window))
            .pause(self.pause.unwrap_or(usual.pause))
    }
}

/// What a consumer was told.
#[derive(Clone, Debug, Default)]
#[allow(
    missing_docs,
    reason = "each is the option of `Consumer` with that name"
)]
pub struct Given {
    pub queue: String,
    pub dlx: Option<bool>,
    pub retry: Option<String>,
    pub strategy: Option<String>,
    pub rules: Vec<RuleGiven>,
    pub prefetch: Option<u16>,
    pub priority: Option<i32>,
    pub concurrency: Option<usize>,
    pub handler_timeout: Option<Duration>,
    pub park: Option<bool>,
    pub pause: Option<PauseGiven>,
    pub declare: Option<bool>,
    pub work_queue: Option<String>,
    pub reserved_name: Option<bool>,
    pub drain_timeout: Option<Duration>,
    pub crash_limit: Option<u32>,
    pub defer_limit: Option<u32>,
    /// Whether the language's half knows errors that no retry can mend; it is that half that asks.
    pub fatal: bool,
}

/// The options of a consumer, checked.
#[derive(Clone, Debug)]
pub struct Options {
    /// The consumer, without a client.
    pub consumer: Consumer,
    /// Whether the kinds of an error matter to somebody.
    pub has_rules: bool,
}

/// Why options cannot work, and which option that is about, if the sentence does not name it itself.
#[derive(Debug)]
pub struct Refused {
    /// The option.
    pub option: Option<&'static str>,
    /// What is wrong with it.
    pub error: Error,
}

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Self {
        refused.error.into()
    }
}

fn parsed<T: FromStr<Err = Error>>(option: &'static str, text: &str) -> Result<T, Refused> {
    text.parse().map_err(about(option))
}

fn about(option: &'static str) -> impl Fn(Error) -> Refused {
    move |error| Refused {
        option: Some(option),
        error,
    }
}

macro_rules! given {
    ($consumer:ident, $given:ident, $($option:ident),*) => {
        $(if let Some(value) = $given.$option {
            $consumer = $consumer.$option(value);
        })*
    };
}

impl Given {
    /// Reads and checks them; nothing is asked of a broker.
    ///
    /// # Errors
    /// As [`Consumer::validate`], and those of reading policies, rules, strategies and arguments.
    pub fn read(self) -> Result<Options, Refused> {
        let mut consumer = Consumer::new(self.queue);
        given!(
            consumer,
            self,
            dlx,
            prefetch,
            priority,
            concurrency,
            handler_timeout,
            drain_timeout,
            park,
            declare,
            reserved_name
        );
        if let Some(text) = self.retry {
            consumer = consumer.retry(parsed("retry", &text)?);
        }
        if let Some(text) = self.strategy {
            consumer = consumer.strategy(parsed("strategy", &text)?);
        }
        let has_rules = !self.rules.is_empty();
        let rules = self.rules.into_iter().map(RuleGiven::read);
        consumer = consumer.rules(
            rules
                .collect::<Result<Vec<_>, _>>()
                .map_err(about("rules"))?,
        );
        if let Some(pause) = self.pause {
            consumer = consumer.pause(pause.read());
        }
        if let Some(text) = self.work_queue {
            let work_queue = text.parse().map_err(|error| Refused {
                option: None,
                error,
            })?;
            consumer = consumer.work_queue(work_queue);
        }
        if self.fatal {
            consumer = consumer.fatal(|_| false);
        }
        let usual = Limits::default();
        consumer = consumer.limits(
            usual
                .crashes(self.crash_limit.unwrap_or(usual.crashes))
                .deferrals(self.defer_limit.unwrap_or(usual.deferrals)),
        );
        consumer.validate().map_err(|error| Refused {
            // The only option that can be too long.
            option: (error.kind() == ErrorKind::TooLarge).then_some("queue"),
            error,
        })?;
        Ok(Options {
            consumer,
            has_rules,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_names_its_option() {
        let given = || Given {
            queue: "orders".into(),
            dlx: Some(true),
            ..Given::default()
        };
        given().read().unwrap();
        let rule = RuleGiven {
            policy: "hope".into(),
            ..RuleGiven::default()
        };
        for (given, option) in [
            (
                Given {
                    retry: Some("hope".into()),
                    ..given()
                },
                Some("retry"),
            ),
            (
                Given {
                    strategy: Some("hope".into()),
                    ..given()
                },
                Some("strategy"),
            ),
            (
                Given {
                    rules: vec![rule],
                    ..given()
                },
                Some("rules"),
            ),
            (
                Given {
                    queue: "x".repeat(300),
                    ..given()
                },
                Some("queue"),
            ),
            (
                Given {
                    work_queue: Some("hope".into()),
                    ..given()
                },
                None,
            ),
            (
                Given {
                    dlx: None,
                    fatal: true,
                    ..given()
                },
                None,
            ),
            (
                Given {
                    dlx: None,
                    park: Some(false),
                    ..given()
                },
                None,
            ),
        ] {
            assert_eq!(given.read().unwrap_err().option, option);
        }
    }
}
