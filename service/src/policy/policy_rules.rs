//! The rules of a policy, checked, ready to be asked.

use retryrmq::{Failure, Policy, types::FieldTable};
use retryrmq_operator::configuration::ConfigError;
use serde_json::{Value, json};
use toml::Spanned;

use super::{
    Reason,
    configuration::{ActionName, Defaults, RuleEntry},
    rule::{Action, CheckedRule},
};

/// What becomes of each dead letter.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyRules {
    rules: Vec<CheckedRule>,
    otherwise: Policy,
    ends: [(Reason, ActionName); 5],
}

/// What was not a failure of a consumer is not retried unless somebody says so: a message that outlived its time would be late again, and
/// one that a full queue pushed out would push out the next.
const ENDS: [(Reason, ActionName); 5] = [
    (Reason::Rejected, ActionName::Retry),
    (Reason::Failed, ActionName::Retry),
    (Reason::Expired, ActionName::Park),
    (Reason::Maxlen, ActionName::Park),
    (Reason::DeliveryLimit, ActionName::Park),
];

impl Default for PolicyRules {
    fn default() -> Self {
        Self {
            rules: Vec::new(),
            otherwise: Policy::default(),
            ends: ENDS,
        }
    }
}

impl PolicyRules {
    /// Checks the tables of a file with this text.
    ///
    /// # Errors
    /// What is wrong, with its line and column and what to change: a policy that cannot work, a rule that says nothing or two things.
    pub(crate) fn read(
        text: &str,
        defaults: &Defaults,
        rules: &[Spanned<RuleEntry>],
    ) -> Result<Self, ConfigError> {
        let policy = |said: &Spanned<String>| -> Result<Policy, ConfigError> {
            let policy: retryrmq::Result<Policy> = said.get_ref().parse();
            let checked = policy.and_then(|policy| policy.validate().map(|()| policy));
            checked.map_err(|why| ConfigError::at(text, said.span().start, why.to_string()))
        };
        let mut policy_rules = Self::default();
        if let Some(said) = &defaults.retry {
            policy_rules.otherwise = policy(said)?;
        }
        for (reason, word) in &mut policy_rules.ends {
            let said = match reason {
                Reason::Rejected => defaults.rejected,
                Reason::Failed => defaults.failed,
                Reason::Expired => defaults.expired,
                Reason::Maxlen => defaults.maxlen,
                Reason::DeliveryLimit => defaults.delivery_limit,
            };
            *word = said.unwrap_or(*word);
        }
        for rule in rules {
            let entry = rule.get_ref();
            let bad = |why: &str| ConfigError::at(text, rule.span().start, why);
            let retry = entry.retry.as_ref().map(policy).transpose()?;
            policy_rules
                .rules
                .push(CheckedRule::read(entry, retry).map_err(bad)?);
        }
        Ok(policy_rules)
    }

    /// Equal where the same becomes of each message.
    pub(crate) fn digest_values(&self) -> [Value; 3] {
        let rules = self.rules.iter().map(CheckedRule::digest_value);
        [
            rules.cloned().collect(),
            json!(self.otherwise.to_string()),
            json!(self.ends),
        ]
    }

    /// The policies by which messages wait.
    pub(crate) fn policies(&self) -> impl Iterator<Item = Policy> {
        let rules = self.rules.iter().filter_map(|rule| match rule.action() {
            Action::Retry(policy) => Some(policy),
            Action::Park | Action::Drop => None,
        });
        rules.chain([&self.otherwise]).cloned()
    }

    /// What becomes of a message that died in `queue` for this reason. `routing_key` is the one it was first published with, `failure` what a client
    /// handed over; of a dead letter nothing is known. A reason that is not known is parked.
    #[must_use]
    pub fn action(
        &self,
        queue: &str,
        routing_key: &str,
        headers: Option<&FieldTable>,
        reason: Option<Reason>,
        failure: &Failure,
    ) -> Action {
        let Some(reason) = reason else {
            return Action::Park;
        };
        let holds = |rule: &&CheckedRule| rule.holds(queue, routing_key, headers, reason, failure);
        if let Some(rule) = self.rules.iter().find(holds) {
            return rule.action().clone();
        }
        let word = self.ends.iter().find(|(of, _)| *of == reason);
        match word.map(|(_, word)| *word) {
            Some(ActionName::Retry) => Action::Retry(self.otherwise.clone()),
            Some(ActionName::Drop) => Action::Drop,
            Some(ActionName::Park) | None => Action::Park,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use retryrmq::types::AMQPValue;
    use serde::Deserialize;

    use super::*;

    const FILE: &str = r##"
[defaults]
retry = "fixed(2s, retries=4)"
maxlen = "retry"

[[rules]]
queue = "mail.*"
reason = ["expired", "rejected"]
end = "drop"

[[rules]]
routing_key = "eu.#"
headers = { kind = "invoice*" }
retry = "list(1s, 1m)"

[[rules]]
queue = "orders"
reason = "delivery-limit"
retry = "fixed(1m, retries=1)"
"##;

    #[derive(Deserialize)]
    struct Tables {
        #[serde(default)]
        defaults: Defaults,
        #[serde(default)]
        rules: Vec<Spanned<RuleEntry>>,
    }

    fn read(text: &str) -> PolicyRules {
        let tables: Tables = toml::from_str(text).unwrap();
        PolicyRules::read(text, &tables.defaults, &tables.rules).unwrap()
    }

    fn named(action: &Action) -> String {
        match action {
            Action::Retry(policy) => policy.to_string(),
            Action::Park => "park".to_owned(),
            Action::Drop => "drop".to_owned(),
        }
    }

    fn ask(
        rules: &PolicyRules,
        queue: &str,
        key: &str,
        kind: Option<&str>,
        reason: Reason,
    ) -> String {
        let headers = kind.map(|kind| {
            let mut table = FieldTable::default();
            table.insert("kind".into(), AMQPValue::LongString(kind.into()));
            table
        });
        let failure = Failure::default();
        named(&rules.action(queue, key, headers.as_ref(), Some(reason), &failure))
    }

    #[test]
    fn the_first_rule_that_holds_decides_and_else_the_defaults() {
        use Reason::{DeliveryLimit, Expired, Failed, Maxlen, Rejected};
        let rules = read(FILE);
        for (queue, key, kind, reason, expected) in [
            ("orders", "a", None, Rejected, "fixed(2s, retries=4)"),
            ("orders", "a", None, Maxlen, "fixed(2s, retries=4)"),
            ("orders", "a", None, Failed, "fixed(2s, retries=4)"),
            ("mail.out", "x", None, Failed, "fixed(2s, retries=4)"),
            ("orders", "eu.de", Some("invoice"), Failed, "list(1s, 1m"),
            ("orders", "a", None, Expired, "park"),
            ("orders", "a", None, DeliveryLimit, "fixed(1m, retries=1)"),
            ("billing", "a", None, DeliveryLimit, "park"),
            ("mail.out", "eu.de", None, Expired, "drop"),
            ("mail.out", "eu.de", None, Rejected, "drop"),
            ("mail.out", "eu.de", None, Maxlen, "fixed(2s, retries=4)"),
            (
                "orders",
                "eu.de",
                Some("invoice-7"),
                Rejected,
                "list(1s, 1m",
            ),
            ("orders", "eu.de", Some("invoice-7"), Expired, "park"),
            (
                "orders",
                "eu.de",
                Some("bill"),
                Rejected,
                "fixed(2s, retries=4)",
            ),
            (
                "orders",
                "us",
                Some("invoice-7"),
                Rejected,
                "fixed(2s, retries=4)",
            ),
        ] {
            let said = ask(&rules, queue, key, kind, reason);
            assert!(
                said.starts_with(expected),
                "{queue} {key} {kind:?} {reason:?}: {said}"
            );
        }
    }

    #[test]
    fn without_a_file_what_was_rejected_is_retried_and_the_rest_parked() {
        let rules = PolicyRules::default();
        assert_eq!(read(""), rules);
        let usual = Policy::default().to_string();
        for reason in [Reason::Rejected, Reason::Failed] {
            assert_eq!(ask(&rules, "q", "k", None, reason), usual);
        }
        for reason in [Reason::Expired, Reason::Maxlen, Reason::DeliveryLimit] {
            assert_eq!(ask(&rules, "q", "k", None, reason), "park");
        }
        let failure = Failure::default();
        assert_eq!(rules.action("q", "k", None, None, &failure), Action::Park);
    }

    #[test]
    fn a_rule_with_an_error_is_about_failures_of_that_type_that_were_handed_over() {
        let rules = "[[rules]]\nqueue = \"orders\"\nerror_type = \"db.*Timeout\"\nretry = \"fixed(7s)\"\n\
                    [[rules]]\nerror_type = \"*\"\nreason = [\"failed\"]\nend = \"park\"\n";
        let rules = read(rules);
        let ask = |queue, reason, kind| {
            let failure = Failure::new("late").of_type(kind);
            named(&rules.action(queue, "k", None, Some(reason), &failure))
        };
        let usual = Policy::default().to_string();
        assert!(ask("orders", Reason::Failed, "db.ReadTimeout").starts_with("fixed(7s"));
        assert_eq!(ask("orders", Reason::Failed, "db.Gone"), "park");
        assert_eq!(ask("bills", Reason::Failed, "db.ReadTimeout"), "park");
        assert_eq!(ask("orders", Reason::Rejected, ""), usual);
    }

    proptest! {
        #[test]
        fn every_message_has_an_end(
            queue in "[a-z.]{0,12}", key in "[a-z.]{0,12}", word in "[a-z_]{0,12}",
        ) {
            let rules = read(FILE);
            let action = rules.action(&queue, &key, None, Reason::parse(&word), &Failure::default());
            if Reason::parse(&word).is_none() {
                prop_assert_eq!(action, Action::Park);
            }
        }
    }
}
