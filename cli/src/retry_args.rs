//! The options about retrying, for the subcommands that consume with them or plan for them.

use std::str::FromStr;

use clap::Args;
use retryrmq::{Policy, QueueType, Rule, Rules, Strategy, WorkQueue, work_queue_of};

use crate::error::CliError;

/// How failures are retried.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Retrying")]
pub(crate) struct RetryArgs {
    /// When a failed message is tried again, and how often [default: exponential(1s, factor=4, max=5m, retries=5)]
    ///
    /// `fixed(5s, retries=3)`, `linear(1s, step=2s, max=1m, retries=5)`, `list(1s, 10s, 1m)` or `exponential(1s,
    /// factor=4, max=5m, retries=5, jitter=0.2)`; each also takes `max_age=1h`. When the retries are spent the message
    /// is parked.
    #[arg(long, value_name = "POLICY")]
    retry: Option<String>,

    /// Another policy for some failures; may be repeated. The first rule that matches decides
    ///
    /// `CONDITION[, CONDITION] => POLICY`, where a condition is `routing_key=eu.#`, `header.kind=invoice*` or
    /// `error=exit status 3` (the error's type: `exit status N`, `signal N` or `HandlerTimeout`).
    #[arg(long = "rule", value_name = "RULE")]
    rules: Vec<String>,

    /// How a failed message waits: retry-queues, dead-letter, native, delayed-exchange or service [default: retry-queues]
    ///
    /// With `service` it is handed over to `retryrmq serve`, whose policy decides; then without --retry and --rule.
    #[arg(long, value_name = "STRATEGY")]
    strategy: Option<String>,

    /// The type of the queues in which messages wait and are parked: quorum or classic [default: quorum]
    #[arg(long, value_name = "TYPE")]
    queue_type: Option<String>,

    /// How to create QUEUE if it is missing: quorum, classic, a JSON object of arguments, or existing (never create it)
    /// [default: quorum]
    ///
    /// An object gives it exactly these arguments, such as `{"x-max-priority": 10}`; `{}` for none. Everybody else who declares the
    /// queue must use the same ones. An existing queue is not changed; only the strategies dead-letter and native compare its
    /// arguments.
    #[arg(long, value_name = "WHAT")]
    work_queue: Option<String>,
}

impl RetryArgs {
    // Not by way of clap: the crate's own sentences say what to write instead.

    pub(crate) fn rules(&self) -> Result<Rules, CliError> {
        let rules = self.rules.iter().map(|rule| rule.parse::<Rule>());
        let rules = rules.collect::<Result<Vec<_>, _>>()?;
        let rules = Rules::new(rules, given(self.retry.as_deref())?);
        rules.validate()?;
        Ok(rules)
    }

    pub(crate) fn strategy(&self) -> Result<Strategy, CliError> {
        given(self.strategy.as_deref())
    }

    pub(crate) fn queue_type(&self) -> Result<QueueType, CliError> {
        given(self.queue_type.as_deref())
    }

    pub(crate) fn work_queue(&self) -> Result<Option<WorkQueue>, CliError> {
        self.work_queue
            .as_deref()
            .map(str::parse)
            .transpose()
            .map_err(CliError::in_flags)
    }

    /// An option that was given.
    pub(crate) fn any(&self) -> Option<&'static str> {
        [
            ("--retry", self.retry.is_some()),
            ("--rule", !self.rules.is_empty()),
            ("--strategy", self.strategy.is_some()),
            ("--queue-type", self.queue_type.is_some()),
            ("--work-queue", self.work_queue.is_some()),
        ]
        .into_iter()
        .find_map(|(option, is_given)| is_given.then_some(option))
    }
}

/// Refuses to take a queue that belongs to a work queue for one, unless `is_meant` says that it is one.
pub(crate) fn not_reserved(queue: &str, is_meant: bool) -> Result<(), CliError> {
    match work_queue_of(queue).filter(|_| !is_meant) {
        None => Ok(()),
        Some(work) => Err(CliError::usage(format!(
            "messages of {work} wait, are parked or were moved out of the way in {queue}, and consuming takes them away: name {work}, or look at \
             `retryrmq parked` and `retryrmq unreadable`; if it is your own queue, pass --reserved-name"
        ))),
    }
}

/// The policies of an option that may be given several times.
pub(crate) fn policies(texts: &[String]) -> Result<Vec<Policy>, CliError> {
    let policies = texts.iter().map(|text| text.parse());
    Ok(policies.collect::<retryrmq::Result<_>>()?)
}

/// What was given, read; otherwise the crate's default.
fn given<T: Default + FromStr<Err = retryrmq::Error>>(text: Option<&str>) -> Result<T, CliError> {
    Ok(text.map(str::parse).transpose()?.unwrap_or_default())
}
