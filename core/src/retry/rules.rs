//! Rules that choose another policy by routing key, header or error class.
//!
//! Their text form is `routing_key=eu.#, error=*Timeout => fixed(5s, retries=3)`. The first rule whose conditions all match decides. If
//! none matches, the consumer's own policy decides.

use std::{fmt, str::FromStr};

use lapin::types::{AMQPValue, FieldTable};

use super::{Failure, Policy, duration::cut, headers};
use crate::{
    Error, ErrorKind, Result,
    glob::{glob, topic},
};

/// A policy and its conditions. If all of them match, the policy replaces the consumer's own.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    conditions: Vec<Condition>,
    policy: Policy,
}

#[derive(Clone, Debug, PartialEq)]
enum Condition {
    /// A topic pattern as in AMQP bindings: words separated by dots, `*` for one word, `#` for any number of words.
    RoutingKey(String),
    /// A header's value as text; `*` matches any text.
    Header { name: String, value: String },
    /// One of the error's types; `*` matches any text.
    Error(String),
}

impl Rule {
    /// A rule that matches every failure until conditions are added.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self {
            conditions: Vec::new(),
            policy,
        }
    }

    /// Adds a condition: the original routing key matches this topic pattern, such as `eu.*` or `orders.#`.
    #[must_use]
    pub fn routing_key(mut self, pattern: impl Into<String>) -> Self {
        self.conditions.push(Condition::RoutingKey(pattern.into()));
        self
    }

    /// Adds a condition: the header `name` has this value. `*` in the value matches any text.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.conditions.push(Condition::Header {
            name: name.into(),
            value: value.into(),
        });
        self
    }

    /// Adds a condition: the error's type matches, or one of its [other names](Failure::kinds). `*` matches any text.
    /// [`Consumer::error_type`](crate::Consumer::error_type) says which Rust types are known.
    #[must_use]
    pub fn error(mut self, pattern: impl Into<String>) -> Self {
        self.conditions.push(Condition::Error(pattern.into()));
        self
    }

    /// The policy that this rule chooses.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Whether all its conditions match. `routing_key` is the one the message was first published with.
    #[must_use]
    pub fn holds(
        &self,
        routing_key: &str,
        headers: Option<&FieldTable>,
        failure: &Failure,
    ) -> bool {
        self.conditions.iter().all(|condition| match condition {
            Condition::RoutingKey(pattern) => topic(pattern, routing_key),
            Condition::Header { name, value } => headers
                .and_then(|headers| headers.inner().get(name.as_str()))
                .and_then(scalar_text)
                .is_some_and(|text| glob(value, &text)),
            Condition::Error(pattern) => {
                glob(pattern, &failure.error_type)
                    || failure.kinds.iter().any(|kind| glob(pattern, kind))
            }
        })
    }
}

impl FromStr for Rule {
    type Err = Error;

    /// Parses `CONDITION[, CONDITION…] => POLICY`. A condition is `routing_key=PATTERN`, `header.NAME=VALUE` or `error=PATTERN`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidPolicy`] for any other text.
    fn from_str(text: &str) -> Result<Self> {
        let bad = |why: String| {
            Error::new(
                ErrorKind::InvalidPolicy,
                format!(
                    "cannot read the rule `{}`: {why}; write it like routing_key=eu.# => fixed(5s, retries=3), \
                     header.kind=invoice => list(1s, 1m) or error=*Timeout => fixed(1s)",
                    cut(text)
                ),
            )
        };
        let (conditions, policy) = text
            .rsplit_once("=>")
            .ok_or_else(|| bad("`=>` is missing".to_owned()))?;
        let mut rule = Self::new(policy.parse()?);
        for condition in conditions.split(',').map(str::trim) {
            let (name, value) = condition
                .split_once('=')
                .ok_or_else(|| bad(format!("`{}` has no `=`", cut(condition))))?;
            let value = value.trim();
            rule = match name.trim() {
                "routing_key" => rule.routing_key(value),
                "error" if value.is_empty() => {
                    return Err(bad(
                        "`error` has no value, and every error has a type".to_owned()
                    ));
                }
                "error" => rule.error(value),
                name => match name.strip_prefix("header.") {
                    Some(header) if !header.is_empty() => rule.header(header, value),
                    _ => return Err(bad(format!("`{}` is not a condition", cut(name)))),
                },
            };
        }
        Ok(rule)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, condition) in self.conditions.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { ", " })?;
            match condition {
                Condition::RoutingKey(pattern) => write!(f, "routing_key={pattern}")?,
                Condition::Header { name, value } => write!(f, "header.{name}={value}")?,
                Condition::Error(pattern) => write!(f, "error={pattern}")?,
            }
        }
        write!(f, " => {}", self.policy)
    }
}

/// The consumer's own policy and the rules that come before it.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Rules {
    /// Tried in order; the first that matches decides.
    pub rules: Vec<Rule>,
    /// Decides if no rule matches.
    pub otherwise: Policy,
}

impl Rules {
    /// Rules in the order in which they are tried, and the policy for failures that none matches.
    #[must_use]
    pub fn new(rules: impl IntoIterator<Item = Rule>, otherwise: Policy) -> Self {
        Self {
            rules: rules.into_iter().collect(),
            otherwise,
        }
    }

    /// The policy for this failure. `routing_key` is the one the message was first published with.
    #[must_use]
    pub fn policy(
        &self,
        routing_key: &str,
        headers: Option<&FieldTable>,
        failure: &Failure,
    ) -> &Policy {
        self.rules
            .iter()
            .find(|rule| rule.holds(routing_key, headers, failure))
            .map_or(&self.otherwise, |rule| &rule.policy)
    }

    /// Every policy that can decide, the consumer's own first.
    pub fn policies(&self) -> impl Iterator<Item = &Policy> {
        std::iter::once(&self.otherwise).chain(self.rules.iter().map(Rule::policy))
    }

    /// The fewest retries after which one of the policies may park a message; 0 if one of them has a `max_age`.
    #[must_use]
    pub fn fewest_retries(&self) -> u32 {
        self.policies()
            .map(|policy| policy.max_age.map_or(policy.retries, |_| 0))
            .min()
            .unwrap_or(0)
    }

    /// Checks every policy.
    ///
    /// # Errors
    /// Those of [`Policy::validate`].
    pub fn validate(&self) -> Result<()> {
        self.policies().try_for_each(Policy::validate)
    }
}

/// A header value as the text that a rule compares: strings, numbers and booleans only.
fn scalar_text(value: &AMQPValue) -> Option<String> {
    match value {
        AMQPValue::Boolean(flag) => Some(flag.to_string()),
        AMQPValue::Float(number) => Some(number.to_string()),
        AMQPValue::Double(number) => Some(number.to_string()),
        other => headers::integer(other)
            .map(|number| number.to_string())
            .or_else(|| headers::text(other)),
    }
}

#[cfg(test)]
mod tests {
    use retryrmq_harness::fuzz::{fuzz, gist};

    use super::*;

    #[test]
    fn the_first_rule_that_holds_decides() {
        let rules = Rules {
            rules: vec![
                "routing_key=eu.#, error=*Timeout => fixed(1s)"
                    .parse()
                    .unwrap(),
                "error=*Timeout => fixed(2s)".parse().unwrap(),
                "header.kind=invoice* => fixed(3s)".parse().unwrap(),
                "header.size=7 => fixed(4s)".parse().unwrap(),
            ],
            otherwise: "fixed(9s)".parse().unwrap(),
        };
        let timeout = Failure::new("late").of_type("ReadTimeout");
        let mut headers = FieldTable::default();
        headers.insert("kind".into(), AMQPValue::LongString("invoice-b".into()));
        let mut sized = FieldTable::default();
        sized.insert("size".into(), AMQPValue::ShortShortInt(7));
        let other = Failure::new("x");
        let chosen = |key, headers, failure| rules.policy(key, headers, failure).to_string();
        assert!(chosen("eu.de", None, &timeout).starts_with("fixed(1s"));
        assert!(chosen("us.ny", None, &timeout).starts_with("fixed(2s"));
        assert!(chosen("us.ny", Some(&headers), &other).starts_with("fixed(3s"));
        assert!(chosen("us.ny", Some(&sized), &other).starts_with("fixed(4s"));
        assert!(chosen("us.ny", None, &other).starts_with("fixed(9s"));
        let kin = Failure::new("x")
            .of_type("Gone")
            .also(["SocketTimeout", "OSError"]);
        assert!(chosen("us.ny", None, &kin).starts_with("fixed(2s"));
    }

    #[test]
    fn text_is_read_back_and_rubbish_refused() {
        let text = "routing_key=eu.#, header.kind=a*, error=*Timeout => fixed(1s, retries=5)";
        assert_eq!(text.parse::<Rule>().unwrap().to_string(), text);
        for bad in [
            "",
            "fixed(1s)",
            "colour=red => fixed(1s)",
            "header.=1 => fixed(1s)",
            "error => fixed(1s)",
            "error= => fixed(1s)",
            "error=x => never",
        ] {
            assert_eq!(
                bad.parse::<Rule>().unwrap_err().kind(),
                ErrorKind::InvalidPolicy,
                "{bad}"
            );
        }
    }

    #[test]
    fn any_text_is_refused_or_a_rule_that_ends() {
        let seeds: [&[u8]; 4] = [
            b"error=*Timeout => fixed(5s)",
            b"routing_key=eu.# => exponential(1s)",
            b"header.kind=invoice* => list(1s, 10s)",
            b"routing_key=*.a.#, header.size=7, error=A*B => fixed(1s, retries=1)",
        ];
        let words = [
            "error=",
            "routing_key=",
            "header.",
            "header.kind=",
            " => ",
            "=>",
            ", ",
            "*",
            "#",
            ".#.",
            "fixed(1s)",
            "list(1s)",
        ];
        let failure = Failure::new("x").of_type("ReadTimeout").also(["OSError"]);
        let mut headers = FieldTable::default();
        headers.insert("kind".into(), AMQPValue::LongString("invoice-7".into()));
        fuzz(&seeds, &words, |text| {
            let text = String::from_utf8_lossy(text);
            let rule = match text.parse::<Rule>() {
                Ok(rule) => rule,
                Err(refused) => return gist(&refused.to_string()),
            };
            let written = rule.to_string();
            assert_eq!(
                written.parse::<Rule>().expect("what is written is read"),
                rule,
                "{written}"
            );
            let rules = Rules {
                rules: vec![rule],
                otherwise: "fixed(9s)".parse().unwrap(),
            };
            rules.validate().expect("what is read can work");
            let chosen = rules.policy("eu.de.berlin", Some(&headers), &failure);
            format!(
                "{} {}",
                written.matches(", ").count().min(9),
                chosen == &rules.otherwise
            )
        });
    }
}
