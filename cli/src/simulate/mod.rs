//! `retryrmq simulate`: a policy is chosen by looking at what it does, before a broker sees it.

mod format;
mod report;
mod svg_plot;
mod term_plot;

use std::{path::PathBuf, time::Duration};

use clap::Args;
use retryrmq::{Forecast, Load, Policy, format_duration, parse_duration};

use crate::{error::CliError, exit::Exit, output::Output, rate, retry_args};

/// Show what a retry policy does under load, without a broker
///
/// Messages arrive evenly, handlers take them, some attempts fail, and the policy decides as it does in a consumer. This shows when
/// attempts are made, the load that retries add, what is parked, and how deep the waiting queues get. The same options give the
/// same result on every machine; two policies get the same random numbers.
#[derive(Clone, Debug, Args)]
#[command(override_usage = "retryrmq simulate [OPTIONS] [--retry <POLICY>]...", after_help = EXAMPLES)]
pub(crate) struct Options {
    /// The policy; twice for two side by side [default: exponential(1s, factor=4, max=5m, retries=5)]
    #[arg(long, value_name = "POLICY")]
    retry: Vec<String>,

    /// How many messages arrive: a number per s, m or h
    #[arg(long, value_name = "N/s", default_value = "100/s")]
    rate: String,

    /// For how long they arrive [default: three times the outage, at least 10m]
    #[arg(long = "for", value_name = "DURATION")]
    lasts: Option<String>,

    /// Every attempt fails for this long; it begins when a quarter of the other time is over
    #[arg(long, value_name = "DURATION")]
    outage: Option<String>,

    /// The share of all other attempts that fail, at random
    #[arg(long, value_name = "SHARE", default_value_t = 0.05)]
    fail_rate: f64,

    /// The share of messages that fail at every attempt
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    poison: f64,

    /// How long an attempt takes
    #[arg(long, value_name = "DURATION", default_value = "50ms")]
    handler_time: String,

    /// How many attempts are made at a time, by all consumers together
    #[arg(long, value_name = "N", default_value_t = 16)]
    handlers: usize,

    /// Other random numbers
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// Write the plot to FILE, as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  retryrmq simulate --outage 10m
  retryrmq simulate --outage 10m --retry 'fixed(5s, retries=10)' \\
      --retry 'exponential(1s, factor=4, max=5m, jitter=0.2)'
  retryrmq simulate --rate 20/s --fail-rate 0.3 --poison 0.001 --svg retries.svg

Among the attempts, `after` is the shortest time from a message's arrival to that
attempt, and `on average` the mean of all messages that had it.

What is not simulated: the time that the broker and the network take, consumers that
crash, and rules. The strategy `native` brings messages back at the head of the queue,
here they go to the tail.

JSON, one document: the options as they were understood, and policies, each with
policy, messages, attempts, handled, parked (by reason), ends_ms, most_waiting, most_ready,
rounds, queues and intervals (interval_ms apart).";

/// What was asked for, read.
pub(crate) struct SimulationArgs {
    /// Messages a second.
    rate: f64,
    lasts: Duration,
    /// When it begins, and how long it is.
    outage: Option<(Duration, Duration)>,
    handler_time: Duration,
    options: Options,
}

/// A policy and what it did.
pub(crate) struct PolicyForecast {
    policy: Policy,
    forecast: Forecast,
}

/// How many intervals are plotted: as many as points in a row of a wide terminal.
const INTERVALS: usize = 480;

pub(crate) fn run(options: Options, output: &Output) -> Result<Exit, CliError> {
    let policies = policies(&options.retry)?;
    let question = SimulationArgs::read(options)?;
    let load = question.load();
    let mut answers = Vec::with_capacity(policies.len());
    for policy in policies {
        let forecast = load.forecast(&policy)?;
        answers.push(PolicyForecast { policy, forecast });
    }
    if let Some(file) = &question.options.svg {
        let svg = svg_plot::draw(&question, &answers)?;
        std::fs::write(file, svg)
            .map_err(|why| CliError::failed(format!("cannot write {}: {why}", file.display())))?;
    }
    if output.is_json() {
        output.json_document(&report::as_json(&question, &answers))?;
        return Ok(Exit::Ok);
    }
    report::print(&question, &answers, output)?;
    question.remark(output);
    if let Some(file) = &question.options.svg {
        output.note(&format!("the plot is in {}", file.display()));
    }
    Ok(Exit::Ok)
}

fn policies(texts: &[String]) -> Result<Vec<Policy>, CliError> {
    if texts.len() > 2 {
        return Err(CliError::usage(format!(
            "two policies fit side by side, and {} were given: leave some out",
            texts.len()
        )));
    }
    let mut policies = retry_args::policies(texts)?;
    if policies.is_empty() {
        policies.push(Policy::default());
    }
    Ok(policies)
}

impl SimulationArgs {
    fn read(options: Options) -> Result<Self, CliError> {
        const USUAL: Duration = Duration::from_secs(600);
        let outage = options.outage.as_deref().map(parse_duration).transpose()?;
        let lasts = match &options.lasts {
            Some(text) => parse_duration(text)?,
            None => outage.map_or(USUAL, |outage| outage.saturating_mul(3).max(USUAL)),
        };
        if let Some(outage) = outage.filter(|outage| *outage > lasts) {
            return Err(CliError::usage(format!(
                "an outage of {} is longer than messages arrive, {}: raise --for",
                format_duration(outage),
                format_duration(lasts)
            )));
        }
        Ok(Self {
            rate: read_rate(&options.rate)?,
            lasts,
            outage: outage.map(|outage| ((lasts - outage) / 4, outage)),
            handler_time: parse_duration(&options.handler_time)?,
            options,
        })
    }

    fn load(&self) -> Load {
        let load = Load::new(self.rate, self.lasts)
            .handler_time(self.handler_time)
            .handlers(self.options.handlers)
            .fail_rate(self.options.fail_rate)
            .poison(self.options.poison)
            .seed(self.options.seed)
            .intervals(INTERVALS);
        match self.outage {
            Some((start, length)) => load.outage(start, length),
            None => load,
        }
    }

    /// What the handlers can do, in messages a second.
    fn pace(&self) -> f64 {
        self.options.handlers as f64 / self.handler_time.as_secs_f64()
    }

    /// Says so where no policy would help.
    fn remark(&self, output: &Output) {
        if self.pace() < self.rate {
            output.note(&format!(
                "{} handlers that take {} are good for {:.1} messages a second, fewer than arrive: the work queue grows whatever the \
                 policy; raise --handlers or lower --rate",
                self.options.handlers,
                format_duration(self.handler_time),
                self.pace()
            ));
        }
    }
}

fn read_rate(text: &str) -> Result<f64, CliError> {
    rate::per_second(text).ok_or_else(|| {
        let shown: String = text.chars().take(40).collect();
        CliError::usage(format!(
            "cannot read the rate `{shown}`: write a number and a unit, such as 100/s, 20/m or 5/h"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_that_cannot_be_read_is_refused_with_examples() {
        for text in [
            "", "/s", "many/s", "-1/s", "0/s", "5/d", "inf/s", "nan", "5/s/s",
        ] {
            let why = read_rate(text).unwrap_err();
            assert!(why.sentence().contains("100/s, 20/m or 5/h"), "{text}");
        }
    }
}
