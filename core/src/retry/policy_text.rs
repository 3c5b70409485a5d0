//! The one text form of a policy: `exponential(1s, factor=4, max=5m, retries=5, jitter=0.2)`.

use std::{fmt, str::FromStr, time::Duration};

use super::{
    AgeFrom, Backoff, Policy,
    duration::{cut, format_duration, parse_duration},
};
use crate::{Error, ErrorKind, Result};

const FORMS: &str = "write fixed(5s), linear(1s, step=2s, max=1m), list(1s, 10s, 1m) or exponential(1s, factor=4, \
                     max=5m), each with retries=5, jitter=0.2, max_age=1h, age_from=published as needed";

fn bad(text: &str, why: impl fmt::Display) -> Error {
    Error::new(
        ErrorKind::InvalidPolicy,
        format!(
            "cannot read the retry policy `{}`: {why}; {FORMS}",
            cut(text)
        ),
    )
}

impl FromStr for Policy {
    type Err = Error;

    /// Parses the text form.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidPolicy`] for any other text, with a list of the forms and options.
    fn from_str(text: &str) -> Result<Self> {
        let (shape, arguments) = text
            .trim()
            .strip_suffix(')')
            .and_then(|text| text.split_once('('))
            .ok_or_else(|| bad(text, "it is not of the form shape(…)"))?;
        let mut delays = Vec::new();
        let mut named = Vec::new();
        for argument in arguments
            .split(',')
            .map(str::trim)
            .filter(|argument| !argument.is_empty())
        {
            match argument.split_once('=') {
                Some((name, value)) => named.push((name.trim(), value.trim())),
                None if named.is_empty() => delays.push(duration(text, argument)?),
                None => {
                    return Err(bad(
                        text,
                        format!("put `{}` before the named values", cut(argument)),
                    ));
                }
            }
        }
        let first = delays
            .first()
            .copied()
            .ok_or_else(|| bad(text, "its first delay is missing"))?;
        let shape = shape.trim();
        if shape != "list" && delays.len() > 1 {
            return Err(bad(text, format!("`{}` takes one delay", cut(shape))));
        }
        let mut policy = match shape {
            "fixed" => Backoff::fixed(first),
            "linear" => Backoff::linear(first),
            "list" => Backoff::list(delays),
            "exponential" => Backoff::exponential(first),
            other => return Err(bad(text, format!("`{}` is not a known policy", cut(other)))),
        };
        let mut seen = Vec::new();
        for (name, value) in named {
            if seen.contains(&name) {
                return Err(bad(text, format!("`{name}` is given twice")));
            }
            seen.push(name);
            policy = policy.with(text, name, value)?;
        }
        policy.validate()?;
        Ok(policy)
    }
}

impl Policy {
    fn with(self, text: &str, name: &str, value: &str) -> Result<Self> {
        let no_number = || {
            bad(
                text,
                format!("`{name}={}` is not a valid number", cut(value)),
            )
        };
        let fits = match name {
            "max" => matches!(
                self.backoff,
                Backoff::Linear { .. } | Backoff::Exponential { .. }
            ),
            "step" => matches!(self.backoff, Backoff::Linear { .. }),
            "factor" => matches!(self.backoff, Backoff::Exponential { .. }),
            _ => true,
        };
        if !fits {
            return Err(bad(text, format!("this kind of policy has no `{name}`")));
        }
        Ok(match name {
            "retries" => self.retries(value.parse().map_err(|_| no_number())?),
            "jitter" => self.jitter(value.parse().map_err(|_| no_number())?),
            "factor" => self.factor(value.parse().map_err(|_| no_number())?),
            "max" => self.max(duration(text, value)?),
            "step" => self.step(duration(text, value)?),
            "max_age" => self.max_age(duration(text, value)?),
            "age_from" => self.age_from(match value {
                "first-failure" => AgeFrom::FirstFailure,
                "published" => AgeFrom::Published,
                _ => return Err(bad(text, "`age_from` must be first-failure or published")),
            }),
            other => return Err(bad(text, format!("there is no option `{}`", cut(other)))),
        })
    }
}

fn duration(text: &str, value: &str) -> Result<Duration> {
    parse_duration(value).map_err(|error| bad(text, error))
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = format_duration;
        match &self.backoff {
            Backoff::Fixed { delay } => write!(f, "fixed({}", show(*delay))?,
            Backoff::Linear { initial, step, max } => {
                write!(
                    f,
                    "linear({}, step={}, max={}",
                    show(*initial),
                    show(*step),
                    show(*max)
                )?;
            }
            Backoff::List { delays } => {
                let delays: Vec<_> = delays.iter().copied().map(show).collect();
                write!(f, "list({}", delays.join(", "))?;
            }
            Backoff::Exponential {
                initial,
                factor,
                max,
            } => {
                write!(
                    f,
                    "exponential({}, factor={factor}, max={}",
                    show(*initial),
                    show(*max)
                )?;
            }
        }
        match &self.backoff {
            Backoff::List { delays } if delays.len() == self.retries as usize => {}
            _ => write!(f, ", retries={}", self.retries)?,
        }
        if self.jitter != 0.0 {
            write!(f, ", jitter={}", self.jitter)?;
        }
        if let Some(age) = self.max_age {
            write!(f, ", max_age={}", show(age))?;
        }
        if self.age_from == AgeFrom::Published {
            f.write_str(", age_from=published")?;
        }
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use retryrmq_harness::fuzz::{fuzz, gist};

    use super::*;
    use crate::SECOND;

    fn millis(policy: &Policy) -> Vec<u128> {
        (1..=policy.max_retries())
            .map(|retry| policy.delay(retry, 2).as_millis())
            .collect()
    }

    #[test]
    fn the_default_is_what_the_documents_say() {
        assert_eq!(
            Policy::default().to_string(),
            "exponential(1s, factor=4, max=5m, retries=5)"
        );
        assert_eq!(
            millis(&Policy::default()),
            [1_000, 4_000, 16_000, 64_000, 256_000]
        );
    }

    #[test]
    fn every_shape_is_read() {
        for (text, expected) in [
            ("fixed(5s, retries=3)", vec![5_000, 5_000, 5_000]),
            (
                "linear(1s, step=2s, max=4s, retries=4)",
                vec![1_000, 3_000, 4_000, 4_000],
            ),
            ("list(1s, 10s, 1m)", vec![1_000, 10_000, 60_000]),
            ("list(1s, 10s, retries=3)", vec![1_000, 10_000, 10_000]),
            (
                " exponential( 100ms , factor = 2 , max=300ms,retries=4 ) ",
                vec![100, 200, 300, 300],
            ),
        ] {
            assert_eq!(millis(&text.parse().unwrap()), expected, "{text}");
        }
    }

    #[test]
    fn jitter_takes_three_delay_steps() {
        let policy: Policy = "fixed(1s, jitter=0.2)".parse().unwrap();
        let delays: Vec<_> = policy
            .delays()
            .into_iter()
            .map(|delay| delay.as_millis())
            .collect();
        assert_eq!(delays, [800, 900, 1_000]);
        assert_eq!(
            (0..3)
                .map(|draw| policy.delay(1, draw).as_millis())
                .collect::<Vec<_>>(),
            [800, 900, 1_000]
        );
    }

    #[test]
    fn refuses_with_a_sentence_that_names_the_part() {
        for (text, part) in [
            ("", "shape(…)"),
            ("fixed", "shape(…)"),
            ("fixed()", "first delay is missing"),
            ("fixed(1s, 2s)", "takes one delay"),
            ("sometimes(1s)", "`sometimes`"),
            ("fixed(0ms)", "at least 1ms"),
            ("fixed(-1s)", "negative"),
            ("fixed(1099511627777ms)", "longer than 365d"),
            ("fixed(1s, retries=-1)", "`retries=-1`"),
            ("fixed(1s, retries=4294967296)", "retries="),
            ("fixed(1s, colour=red)", "`colour`"),
            ("fixed(1s, factor=2)", "no `factor`"),
            ("fixed(1s, retries=1, retries=2)", "twice"),
            ("fixed(retries=3, 1s)", "before the named"),
            ("fixed(1s, jitter=1.5)", "`jitter`"),
            ("fixed(1s, jitter=NaN)", "`jitter`"),
            ("exponential(1s, factor=0.5)", "`factor`"),
            ("exponential(1s, factor=inf)", "`factor`"),
            ("exponential(1s, factor=1.0000001)", "`factor`"),
            ("list(1s, retries=4294967295)", "`retries`"),
            ("fixed(1s, retries=1000001)", "`retries`"),
            (
                "exponential(10ms, factor=1.05, max=1s, retries=100)",
                "waiting queues",
            ),
            ("exponential(10m)", "longer than `max`"),
            ("linear(10s, max=1s)", "longer than `max`"),
            (
                "linear(1s, step=1s, max=1h, retries=1000)",
                "waiting queues",
            ),
        ] {
            let error = text.parse::<Policy>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidPolicy, "{text}");
            assert!(error.to_string().contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn delays_that_repeat_by_rounding_do_not_end_the_plan() {
        let policy: Policy = "exponential(10ms, factor=1.05, max=1s, retries=30)"
            .parse()
            .unwrap();
        let every: BTreeSet<_> = (1..=30).map(|retry| policy.delay(retry, 2)).collect();
        assert_eq!(policy.delays(), every);
        assert!(every.len() > 20, "{every:?}");
    }

    #[test]
    fn as_many_retries_as_can_be_counted_cost_nothing() {
        for text in [
            "list(1s, 2s, retries=1000000)",
            "exponential(1ms, factor=1.001, max=60ms, retries=1000000)",
            "linear(1s, step=0.001ms, max=10s, retries=60000)",
        ] {
            for _ in 0..20 {
                text.parse::<Policy>().unwrap();
            }
        }
    }

    /// Delays that grow slowly, in short steps, so that rounding repeats them.
    fn slow_policy() -> impl Strategy<Value = Policy> {
        let policy = (1u64..200, 1u32..400, 1u64..200, 1u32..=1_000_000, 0u32..=4);
        let slow = policy.prop_map(|(ms, thousandths, longest, retries, jitter)| {
            Backoff::exponential(Duration::from_millis(ms))
                .factor(1.0 + f64::from(thousandths) / 1000.0)
                .max(Duration::from_millis(ms + longest))
                .retries(retries)
                .jitter(f64::from(jitter) / 10.0)
        });
        slow.prop_filter("has too many delays", |policy| policy.validate().is_ok())
    }

    fn any_policy() -> impl Strategy<Value = Policy> {
        let delay = (1u64..100_000_000).prop_map(Duration::from_millis);
        let shape = prop_oneof![
            delay.clone().prop_map(Backoff::fixed),
            (delay.clone(), delay.clone(), delay.clone()).prop_map(|(initial, step, more)| {
                Backoff::linear(initial).step(step).max(initial + more)
            }),
            prop::collection::vec(delay.clone(), 1..6).prop_map(Backoff::list),
            (delay.clone(), 10u32..100, delay).prop_map(|(initial, tenths, more)| {
                Backoff::exponential(initial)
                    .factor(f64::from(tenths) / 10.0)
                    .max(initial + more)
            }),
        ];
        (shape, 0u32..20, 0u32..=9).prop_map(|(policy, retries, tenths)| {
            policy
                .retries(retries)
                .jitter(f64::from(tenths) / 10.0)
                .max_age(retries.max(1) * SECOND)
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(policy in any_policy()) {
            prop_assert_eq!(policy.to_string().parse::<Policy>().unwrap(), policy);
        }

        #[test]
        fn every_delay_has_its_queue(policy in any_policy(), retry in 1u32..1_000, draw: u64) {
            let delay = policy.delay(retry.min(policy.max_retries().max(1)), draw);
            prop_assert!(policy.max_retries() == 0 || policy.delays().contains(&delay));
            prop_assert!(delay >= Duration::from_millis(1));
        }

        #[test]
        fn every_delay_of_a_slow_policy_has_its_queue(policy in slow_policy(), retry: u32, draw: u64) {
            let delays = policy.delays();
            for retry in [1 + retry % policy.max_retries(), 1 + retry % 100.min(policy.max_retries())] {
                prop_assert!(delays.contains(&policy.delay(retry, draw)), "{} at retry {}", policy, retry);
            }
            prop_assert!(delays.len() <= 64);
        }

        #[test]
        fn never_panics(text in "[a-z(),=0-9.ms ]{0,60}") {
            let _ = text.parse::<Policy>();
        }
    }

    #[test]
    fn any_text_is_refused_or_a_policy_that_works() {
        let seeds: [&[u8]; 5] = [
            b"fixed(5s, retries=3)",
            b"linear(1s, step=2s, max=1m, retries=5)",
            b"list(1s, 10s, 1m)",
            b"exponential(1s, factor=4, max=5m, retries=5, jitter=0.2)",
            b"fixed(1500ms, max_age=1h, age_from=published)",
        ];
        let words = [
            "fixed(",
            "linear(",
            "list(",
            "exponential(",
            "retries=",
            "step=",
            "max=",
            "factor=",
            "jitter=",
            "max_age=",
            "age_from=",
            "published",
            ", ",
            ")",
            "1ms",
            "365d",
            "1.5s",
            "5 m",
        ];
        fuzz(&seeds, &words, |text| {
            let text = String::from_utf8_lossy(text);
            let policy = match text.parse::<Policy>() {
                Ok(policy) => policy,
                Err(refused) => return gist(&refused.to_string()),
            };
            policy.validate().expect("what is read can work");
            let written = policy.to_string();
            assert_eq!(
                written.parse::<Policy>().expect("what is written is read"),
                policy,
                "{written}"
            );
            let delays = policy.delays();
            assert!(delays.len() <= 64);
            for retry in [1, 2, 3, policy.max_retries().max(1)] {
                for draw in [0, 1, u64::MAX] {
                    let delay = policy.delay(retry, draw);
                    assert!(delay >= Duration::from_millis(1) && delay <= crate::MAX_DELAY);
                    assert!(policy.max_retries() < retry || delays.contains(&delay));
                }
            }
            let (shape, _) = written.split_once('(').expect("a policy has arguments");
            format!("{shape} {} {}", delays.len(), written.matches('=').count())
        });
    }
}
