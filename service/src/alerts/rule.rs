//! Rules: which failures are how important, and who is told when.
//!
//! A rule is judged where a message was parked, because only there is its body. What the leader hears of it is the rule's name
//! and the fields that were asked for.

use std::collections::BTreeMap;

use retryrmq::glob::{glob, topic};
use retryrmq_operator::condition::{Condition, EvaluationError, Variables};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Severity, sanitize};
use crate::{ParkedReport, QueueProblemReport, redaction::Redaction};

/// What makes people be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Trigger {
    /// The first failure of its kind.
    First,
    /// More than `more_than` in a minute.
    Rate,
    /// It goes on after people were told.
    Growing,
    /// It comes again after it was over.
    Again,
}

/// One rule. The first that fits decides; every matcher that is left out fits everything.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Its name, in notices and metrics. Once only.
    pub name: String,
    /// The queue; `*` is any text.
    #[serde(default)]
    pub queue: Option<String>,
    /// The routing key the message was first published with; `*` is one word, `#` any number, as in bindings.
    #[serde(default)]
    pub routing_key: Option<String>,
    /// The word of the record, such as `exhausted`, `fatal`, `expired`; of a queue in trouble its kind, such as `no_consumer`.
    /// `*` is any text.
    #[serde(default)]
    pub reason: Option<String>,
    /// The class of the error; `*` is any text.
    #[serde(default)]
    pub error_type: Option<String>,
    /// The type that a decoder found in the body, such as `shop.Order`; `*` is any text.
    #[serde(default, rename = "type")]
    pub type_name: Option<String>,
    /// A condition on `body` and `headers` in the Common Expression Language, such as `body.customer.tier == "gold"`. A message
    /// that it cannot be judged on does not fit.
    #[serde(default, rename = "where")]
    pub condition: Option<String>,
    /// How important it is.
    pub severity: Severity,
    /// What makes people be told.
    #[serde(default = "Rule::usual_triggers")]
    pub on: Vec<Trigger>,
    /// How many failures a minute the trigger `rate` takes without a word.
    #[serde(default = "Rule::usual_rate")]
    pub more_than: u32,
    /// The names of the channels; without it all that take its severity.
    #[serde(default)]
    pub channels: Option<Vec<String>>,
    /// Fields of the body to send, such as `customer.id`. Without it nothing of the body leaves.
    #[serde(default)]
    pub body: Vec<String>,
    /// Headers to send; `*` is any text.
    #[serde(default)]
    pub headers: Vec<String>,
}

impl Rule {
    /// The name of the last rule, which nobody writes.
    pub const OTHERWISE: &str = "otherwise";

    /// What every rule is judged on when it says nothing else.
    fn usual_triggers() -> Vec<Trigger> {
        vec![
            Trigger::First,
            Trigger::Rate,
            Trigger::Growing,
            Trigger::Again,
        ]
    }

    const fn usual_rate() -> u32 {
        100
    }

    /// What is done with whatever fits no rule: told in the morning.
    #[must_use]
    pub fn otherwise() -> Self {
        Self {
            name: Self::OTHERWISE.to_owned(),
            queue: None,
            routing_key: None,
            reason: None,
            error_type: None,
            type_name: None,
            condition: None,
            severity: Severity::Morning,
            on: Self::usual_triggers(),
            more_than: Self::usual_rate(),
            channels: None,
            body: Vec::new(),
            headers: Vec::new(),
        }
    }

    /// Whether it is about whatever there is, a queue's trouble as well.
    pub(super) fn fits_everything(&self) -> bool {
        let conditions = [
            &self.routing_key,
            &self.error_type,
            &self.type_name,
            &self.condition,
        ];
        self.fits_every_message() && conditions.iter().all(|asked| asked.is_none())
    }

    /// Whether it is about every message that dies. A pattern that asks for something of a message, even for anything, is not about a queue
    /// in trouble, which has no such thing.
    pub(super) fn fits_every_message(&self) -> bool {
        let all = |pattern: &Option<String>, any: &str| {
            pattern.as_deref().is_none_or(|pattern| pattern == any)
        };
        let texts = [&self.queue, &self.reason, &self.error_type, &self.type_name];
        texts.iter().all(|text| all(text, "*"))
            && all(&self.routing_key, "#")
            && self.condition.is_none()
    }

    /// Whether the rule needs the bodies of messages to be decoded.
    #[must_use]
    pub fn reads_bodies(&self) -> bool {
        !self.body.is_empty() || self.condition.is_some() || self.type_name.is_some()
    }
}

/// What a rule makes of a failure.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RuleMatch {
    pub(super) rule: String,
    pub(super) severity: Severity,
    /// What was asked for, safe to show and cut.
    pub(super) fields: BTreeMap<String, String>,
}

/// The rules in their order, ready to judge. Blocks while a condition is judged: half a second a message at most.
#[derive(Debug)]
pub(super) struct RuleSet {
    compiled_rules: Vec<CompiledRule>,
    redaction: Redaction,
    /// How often a condition could not be judged.
    pub(super) unevaluated: u64,
}

#[derive(Debug)]
struct CompiledRule {
    rule: Rule,
    condition: Option<Condition>,
    /// Whether it was said that the condition is slow.
    has_warned: bool,
}

/// The variables of a condition.
const VARIABLES: [&str; 2] = ["body", "headers"];

impl RuleSet {
    /// Reads the conditions.
    ///
    /// # Errors
    /// A sentence that names the rule.
    pub(super) fn new(rules: &[Rule], redacted: &[String]) -> Result<Self, String> {
        let compiled_rules = rules.iter().map(|rule| {
            let condition = match &rule.condition {
                Some(text) => Some(Condition::parse(text, &VARIABLES).map_err(|why| {
                    format!("the condition `where` of rule `{}`: {why}", rule.name)
                })?),
                None => None,
            };
            Ok(CompiledRule {
                rule: rule.clone(),
                condition,
                has_warned: false,
            })
        });
        Ok(Self {
            compiled_rules: compiled_rules.collect::<Result<_, String>>()?,
            redaction: Redaction::new(redacted),
            unevaluated: 0,
        })
    }

    /// The verdict on a parked message.
    pub(super) fn evaluate(&mut self, death: &ParkedReport) -> RuleMatch {
        let mut unevaluated = 0;
        let found = self.compiled_rules.iter_mut().find_map(|compiled_rule| {
            let rule = &compiled_rule.rule;
            let fits = fits(rule.queue.as_deref(), &death.queue)
                && rule
                    .routing_key
                    .as_deref()
                    .is_none_or(|pattern| topic(pattern, &death.routing_key))
                && fits(rule.reason.as_deref(), &death.reason)
                && fits(rule.error_type.as_deref(), &death.error_type)
                && fits(
                    rule.type_name.as_deref(),
                    death.type_name.as_deref().unwrap_or_default(),
                );
            if !fits {
                return None;
            }
            if let Some(condition) = &mut compiled_rule.condition {
                match condition.holds(variables(death)) {
                    Ok(true) => {}
                    Ok(false) => return None,
                    Err(EvaluationError { why, is_slow }) => {
                        unevaluated += 1;
                        if is_slow && !std::mem::replace(&mut compiled_rule.has_warned, true) {
                            tracing::warn!(
                                rule = rule.name,
                                queue = death.queue,
                                why,
                                "the condition `where` of a rule took too long on a message of this queue, so that message did not match the rule. Logged \
                                 once; retryrmq_serve_alerts_unevaluated_total counts all. Nested loops over lists are slow"
                            );
                        }
                        tracing::debug!(rule = rule.name, why, "the condition cannot be evaluated");
                        return None;
                    }
                }
            }
            Some(&compiled_rule.rule)
        });
        self.unevaluated += unevaluated;
        let otherwise;
        let rule = match found {
            Some(rule) => rule,
            None => {
                otherwise = Rule::otherwise();
                &otherwise
            }
        };
        RuleMatch {
            rule: rule.name.clone(),
            severity: rule.severity,
            fields: fields(rule, death, &self.redaction),
        }
    }

    /// The verdict on a queue in trouble: a rule that asks for anything of a message does not fit.
    pub(super) fn evaluate_queue_problem(&self, trouble: &QueueProblemReport) -> RuleMatch {
        let found = self
            .compiled_rules
            .iter()
            .map(|compiled_rule| &compiled_rule.rule)
            .find(|rule| {
                fits(rule.queue.as_deref(), &trouble.queue)
                    && fits(rule.reason.as_deref(), trouble.kind)
                    && rule.routing_key.is_none()
                    && rule.error_type.is_none()
                    && rule.type_name.is_none()
                    && rule.condition.is_none()
            });
        let otherwise = Rule::otherwise();
        let rule = found.unwrap_or(&otherwise);
        RuleMatch {
            rule: rule.name.clone(),
            severity: rule.severity,
            fields: BTreeMap::new(),
        }
    }
}

fn fits(pattern: Option<&str>, text: &str) -> bool {
    pattern.is_none_or(|pattern| glob(pattern, text))
}

fn variables(death: &ParkedReport) -> Variables {
    let mut variables = Variables::new();
    let body = death.body.as_deref().cloned().unwrap_or(Value::Null);
    variables.insert("body".to_owned(), body);
    variables.insert("headers".to_owned(), death.headers.clone());
    variables
}

/// No notice holds more of a message.
const MOST_FIELDS: usize = 20;

fn fields(rule: &Rule, death: &ParkedReport, redaction: &Redaction) -> BTreeMap<String, String> {
    let mut fields = BTreeMap::new();
    let is_secret = |name: &str| redaction.is_secret(name);
    let mut put = |name: String, shown: String| {
        if fields.len() < MOST_FIELDS {
            fields.insert(name, shown);
        }
    };
    for path in &rule.body {
        let mut at = death.body.as_deref();
        for step in path.split('.') {
            at = at.and_then(|value| match value {
                Value::Array(items) => step.parse::<usize>().ok().and_then(|i| items.get(i)),
                value => value.get(step),
            });
        }
        if let Some(value) = at {
            // A field below a secret one is as secret.
            let shown = match path.split('.').any(is_secret) {
                true => sanitize::HIDDEN.to_owned(),
                false => shown(value, redaction),
            };
            put(format!("body.{path}"), shown);
        }
    }
    if let Value::Object(headers) = &death.headers {
        for (name, value) in headers {
            if !rule.headers.iter().any(|pattern| glob(pattern, name)) {
                continue;
            }
            let shown = match is_secret(name) {
                true => sanitize::HIDDEN.to_owned(),
                false => shown(value, redaction),
            };
            put(format!("headers.{}", sanitize::line(name, 100)), shown);
        }
    }
    fields
}

/// A value as text. What is secret within it stays so.
fn shown(value: &Value, redaction: &Redaction) -> String {
    let mut value = value.clone();
    redaction.hide(&mut value);
    match value {
        Value::String(text) => sanitize::line(&text, sanitize::FIELD),
        value => sanitize::line(&value.to_string(), sanitize::FIELD),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rule(name: &str, change: impl FnOnce(&mut Rule)) -> Rule {
        let mut rule = Rule {
            name: name.to_owned(),
            ..Rule::otherwise()
        };
        change(&mut rule);
        rule
    }

    fn death() -> ParkedReport {
        ParkedReport {
            queue: "payments.eu".to_owned(),
            reason: "exhausted".to_owned(),
            routing_key: "order.paid.eu".to_owned(),
            error_type: "db.Timeout".to_owned(),
            type_name: Some("shop.Order".to_owned()),
            headers: json!({"x-tenant": "acme", "Authorization": "Bearer s3cret", "evil": "a\u{1b}[2J"}),
            body: Some(
                json!({"customer": {"id": 7, "password": "s3cret"}, "lines": [{"n": 1}]}).into(),
            ),
            ..ParkedReport::default()
        }
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        type Change = fn(&mut Rule);
        for (change, fits) in [
            ((|_| ()) as Change, true),
            (|r| r.queue = Some("payments.*".into()), true),
            (|r| r.queue = Some("orders".into()), false),
            (|r| r.routing_key = Some("order.#".into()), true),
            (|r| r.routing_key = Some("order.*".into()), false),
            (|r| r.reason = Some("fatal".into()), false),
            (|r| r.error_type = Some("*.Timeout".into()), true),
            (|r| r.type_name = Some("shop.Order".into()), true),
            (|r| r.type_name = Some("shop.Refund".into()), false),
            (|r| r.condition = Some("body.customer.id == 7".into()), true),
            (
                |r| r.condition = Some("headers['x-tenant'] == 'x'".into()),
                false,
            ),
            (|r| r.condition = Some("body.nothing == 7".into()), false),
        ] {
            let rules = [rule("mine", change), rule("rest", |_| ())];
            let mut rule_set = RuleSet::new(&rules, &[]).unwrap();
            let verdict = rule_set.evaluate(&death());
            assert_eq!(verdict.rule == "mine", fits, "{:?}", rules[0]);
        }
        let none = RuleSet::new(&[], &[]).unwrap().evaluate(&death());
        assert_eq!(
            (none.rule.as_str(), none.severity),
            ("otherwise", Severity::Morning)
        );
    }

    #[test]
    fn nothing_of_a_body_leaves_unless_asked_and_secrets_never() {
        let redacted = ["*password*".to_owned(), "authorization".to_owned()];
        let plain = RuleSet::new(&[rule("plain", |_| ())], &redacted)
            .unwrap()
            .evaluate(&death());
        assert!(plain.fields.is_empty());
        let asks = rule("asks", |r| {
            r.body = vec![
                "customer.id".into(),
                "customer".into(),
                "lines.0.n".into(),
                "customer.password".into(),
                "no.such".into(),
            ];
            r.headers = vec!["*".into()];
        });
        let fields = RuleSet::new(&[asks], &redacted)
            .unwrap()
            .evaluate(&death())
            .fields;
        let expected = [
            ("body.customer", r#"{"id":7,"password":"***"}"#),
            ("body.customer.id", "7"),
            ("body.customer.password", "***"),
            ("body.lines.0.n", "1"),
            ("headers.Authorization", "***"),
            ("headers.evil", "a\\x1b[2J"),
            ("headers.x-tenant", "acme"),
        ];
        let found: Vec<_> = fields
            .iter()
            .map(|(n, v)| (n.as_str(), v.as_str()))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_queue_in_trouble_fits_by_queue_and_kind_alone() {
        let trouble = QueueProblemReport {
            vhost: "/".into(),
            queue: "payments.eu".into(),
            kind: "no_consumer",
            text: String::new(),
            state: crate::QueueProblemState::Begun,
        };
        let rules = [
            rule("typed", |r| r.type_name = Some("*".into())),
            rule("orphans", |r| {
                r.reason = Some("no_consumer".into());
                r.severity = Severity::Wake;
            }),
        ];
        let verdict = RuleSet::new(&rules, &[])
            .unwrap()
            .evaluate_queue_problem(&trouble);
        assert_eq!(
            (verdict.rule.as_str(), verdict.severity),
            ("orphans", Severity::Wake)
        );
    }

    #[test]
    fn a_condition_that_is_none_names_its_rule() {
        let bad = rule("gold", |r| r.condition = Some("bdy.x".into()));
        let why = RuleSet::new(&[bad], &[]).unwrap_err();
        assert!(why.contains("rule `gold`") && why.contains("bdy"), "{why}");
    }
}
