//! A policy that was read and checked, ready to be asked.

use retryrmq::{Failure, Policy, types::FieldTable};
use retryrmq_operator::configuration::ConfigError;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::{
    file::{ActionName, PolicyFile, Reason},
    rule::{Action, CheckedRule},
};
use crate::{
    Settings, alerting_runtime::AlertSections, alerts, delayed, history, store::redis, web,
};

/// What becomes of each dead letter.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceConfig {
    lines: Vec<CheckedRule>,
    otherwise: Policy,
    ends: [(Reason, ActionName); 5],
    sections: AlertSections,
    store: Option<redis::Configuration>,
    delayed: delayed::DelayedSections,
    settings: Settings,
    history: history::Configuration,
    page: web::Configuration,
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

impl Default for ServiceConfig {
    fn default() -> Self {
        Self {
            lines: Vec::new(),
            otherwise: Policy::default(),
            ends: ENDS,
            sections: AlertSections::default(),
            store: None,
            delayed: delayed::DelayedSections::default(),
            settings: Settings::default(),
            history: history::Configuration::default(),
            page: web::Configuration::default(),
        }
    }
}

impl ServiceConfig {
    /// Reads the text of a policy file.
    ///
    /// # Errors
    /// What cannot be read, with its line and column and what to change: no TOML, an unknown key, a policy that cannot work, a rule that says
    /// nothing or two things.
    pub fn read(text: &str) -> Result<Self, ConfigError> {
        let file: PolicyFile = toml::from_str(text).map_err(|why| {
            let offset = why.span().map_or(0, |span| span.start);
            let words: Vec<&str> = why.message().split_whitespace().collect();
            ConfigError::at(text, offset, words.join(" "))
        })?;
        let policy = |said: &toml::Spanned<String>| -> Result<Policy, ConfigError> {
            let policy: retryrmq::Result<Policy> = said.get_ref().parse();
            let checked = policy.and_then(|policy| policy.validate().map(|()| policy));
            checked.map_err(|why| ConfigError::at(text, said.span().start, why.to_string()))
        };
        let mut service_config = Self::default();
        if let Some(said) = &file.alerts {
            let fault = |why: String| ConfigError::at(text, said.span().start, why);
            said.get_ref().check().map_err(fault)?;
            let orphans = file.orphans.as_ref().map(toml::Spanned::get_ref);
            if orphans.is_some_and(|watched| watched.enabled) {
                said.get_ref().check_queue_problems().map_err(fault)?;
            }
        }
        if let Some(said) = &file.orphans {
            let fault = |why: String| ConfigError::at(text, said.span().start, why);
            said.get_ref().check().map_err(fault)?;
        }
        if let Some(said) = file.delayed {
            let fault = |why: String| ConfigError::at(text, said.span().start, why);
            delayed::check(said.get_ref()).map_err(fault)?;
            service_config.delayed = said.into_inner();
        }
        service_config.settings = file.service;
        if let Some(said) = file.history {
            let place = said.span().start;
            service_config.history = said.into_inner();
            let checked = service_config.history.check();
            checked.map_err(|why| ConfigError::at(text, place, why))?;
        }
        if let Some(said) = file.page {
            let place = said.span().start;
            service_config.page = said.into_inner();
            let checked = service_config.page.check();
            checked.map_err(|why| ConfigError::at(text, place, why))?;
        }
        let defaults = &file.defaults;
        if let Some(said) = &defaults.retry {
            service_config.otherwise = policy(said)?;
        }
        for (reason, word) in &mut service_config.ends {
            let said = match reason {
                Reason::Rejected => defaults.rejected,
                Reason::Failed => defaults.failed,
                Reason::Expired => defaults.expired,
                Reason::Maxlen => defaults.maxlen,
                Reason::DeliveryLimit => defaults.delivery_limit,
            };
            *word = said.unwrap_or(*word);
        }
        for rule in &file.rules {
            let entry = rule.get_ref();
            let bad = |why: &str| ConfigError::at(text, rule.span().start, why);
            let retry = entry.retry.as_ref().map(policy).transpose()?;
            service_config
                .lines
                .push(CheckedRule::read(entry, retry).map_err(bad)?);
        }
        service_config.sections = AlertSections {
            alerts: file.alerts.map(toml::Spanned::into_inner),
            orphans: file.orphans.map(toml::Spanned::into_inner),
        };
        if let Some(said) = file.store.redis {
            let place = said.span().start;
            let configuration = said.into_inner();
            configuration
                .check()
                .map_err(|why| ConfigError::at(text, place, why.to_string()))?;
            service_config.store = Some(configuration);
        }
        Ok(service_config)
    }

    /// Equal where the same becomes of each message: of the defaults, the rules and the exchanges with delays. No secret goes in, and no
    /// words of one version, because the services of a virtual host show it to each other.
    pub(crate) fn digest(&self) -> String {
        let rules: Vec<_> = self.lines.iter().map(CheckedRule::digest_value).collect();
        let whole = json!([rules, self.otherwise.to_string(), self.ends, self.delayed]);
        let digest = Sha256::digest(whole.to_string());
        digest[..8]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }

    /// Who is told what.
    pub(crate) fn sections(&self) -> &AlertSections {
        &self.sections
    }

    /// Whether a rule of the alerts looks into bodies.
    pub(crate) fn reads_bodies(&self) -> bool {
        let alerts = self.sections.alerts.as_ref();
        alerts.is_some_and(alerts::Configuration::reads_bodies)
    }

    /// Whose messages are kept until they are due.
    pub(crate) fn delayed(&self) -> &delayed::DelayedSections {
        &self.delayed
    }

    /// How the program runs, where neither the command line nor the environment says it.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What is written of what happened.
    #[must_use]
    pub fn history(&self) -> &history::Configuration {
        &self.history
    }

    /// Who may see the page.
    #[must_use]
    pub fn page(&self) -> &web::Configuration {
        &self.page
    }

    /// The policies by which messages wait.
    pub(crate) fn policies(&self) -> impl Iterator<Item = Policy> {
        let lines = self.lines.iter().filter_map(|line| match line.action() {
            Action::Retry(policy) => Some(policy),
            Action::Park | Action::Drop => None,
        });
        lines.chain([&self.otherwise]).cloned()
    }

    /// Where messages wait; without it in waiting queues of the broker.
    #[must_use]
    pub fn store(&self) -> Option<&redis::Configuration> {
        self.store.as_ref()
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
        let holds = |line: &&CheckedRule| line.holds(queue, routing_key, headers, reason, failure);
        if let Some(line) = self.lines.iter().find(holds) {
            return line.action().clone();
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

    fn named(action: &Action) -> String {
        match action {
            Action::Retry(policy) => policy.to_string(),
            Action::Park => "park".to_owned(),
            Action::Drop => "drop".to_owned(),
        }
    }

    fn ask(
        service_config: &ServiceConfig,
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
        named(&service_config.action(queue, key, headers.as_ref(), Some(reason), &failure))
    }

    #[test]
    fn the_first_rule_that_holds_decides_and_else_the_defaults() {
        use Reason::{DeliveryLimit, Expired, Failed, Maxlen, Rejected};
        let service_config = ServiceConfig::read(FILE).unwrap();
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
            let said = ask(&service_config, queue, key, kind, reason);
            assert!(
                said.starts_with(expected),
                "{queue} {key} {kind:?} {reason:?}: {said}"
            );
        }
    }

    #[test]
    fn without_a_file_what_was_rejected_is_retried_and_the_rest_parked() {
        let service_config = ServiceConfig::default();
        assert_eq!(ServiceConfig::read("").unwrap(), service_config);
        let usual = Policy::default().to_string();
        for reason in [Reason::Rejected, Reason::Failed] {
            assert_eq!(ask(&service_config, "q", "k", None, reason), usual);
        }
        for reason in [Reason::Expired, Reason::Maxlen, Reason::DeliveryLimit] {
            assert_eq!(ask(&service_config, "q", "k", None, reason), "park");
        }
        let failure = Failure::default();
        assert_eq!(
            service_config.action("q", "k", None, None, &failure),
            Action::Park
        );
    }

    #[test]
    fn a_rule_with_an_error_is_about_failures_of_that_type_that_were_handed_over() {
        let service_config = "[[rules]]\nqueue = \"orders\"\nerror_type = \"db.*Timeout\"\nretry = \"fixed(7s)\"\n\
                    [[rules]]\nerror_type = \"*\"\nreason = [\"failed\"]\nend = \"park\"\n";
        let service_config = ServiceConfig::read(service_config).unwrap();
        let ask = |queue, reason, kind| {
            let failure = Failure::new("late").of_type(kind);
            named(&service_config.action(queue, "k", None, Some(reason), &failure))
        };
        let usual = Policy::default().to_string();
        assert!(ask("orders", Reason::Failed, "db.ReadTimeout").starts_with("fixed(7s"));
        assert_eq!(ask("orders", Reason::Failed, "db.Gone"), "park");
        assert_eq!(ask("bills", Reason::Failed, "db.ReadTimeout"), "park");
        assert_eq!(ask("orders", Reason::Rejected, ""), usual);
    }

    #[test]
    fn a_fault_is_told_with_its_place_and_what_to_change() {
        for (text, place, says) in [
            ("x = 1", "1:1", "unknown field"),
            ("[defaults]\nretri = \"fixed(1s)\"", "2:1", "unknown field"),
            (
                "[defaults]\nretry = \"often\"",
                "2:9",
                "cannot read the retry policy",
            ),
            ("[defaults]\nexpired = \"later\"", "2:11", "unknown variant"),
            ("[[rules]]\nqueue = \"q\"", "1:1", "says nothing"),
            (
                "\n[[rules]]\nretry = \"fixed(1s)\"\nend = \"park\"",
                "2:1",
                "leave out one",
            ),
            (
                "[[rules]]\nreason = []\nend = \"park\"",
                "1:1",
                "empty list",
            ),
            (
                "[[rules]]\nerror_type = \"\"\nend = \"park\"",
                "1:1",
                "every error has one",
            ),
            (
                "[[rules]]\nerror_type = \"*Timeout\"\nreason = [\"failed\", \"rejected\"]\nend = \"park\"",
                "1:1",
                "`reason = \"failed\"`",
            ),
            (
                "[[rules]]\nreason = \"bored\"\nend = \"park\"",
                "2:10",
                "one or several of",
            ),
            ("[defaults", "1:", ""),
            (
                "[delayed.\"amq.topic\"]\nto = \"shop\"",
                "1:",
                "not yours to declare",
            ),
            ("[delayed.orders]\ntoo = \"shop\"", "2:1", "unknown field"),
            ("[service]\nprefetch = 0", "2:12", "nonzero"),
            ("[store]\nmemory = 1", "2:1", "unknown field"),
            ("[store.redis]\nadress = []", "2:1", "unknown field"),
            ("\n[store.redis]\nconnections = 0", "2:1", "`connections`"),
        ] {
            let why = ServiceConfig::read(text).unwrap_err().to_string();
            assert!(
                why.starts_with(place) && why.contains(says),
                "{text}: {why}"
            );
        }
    }

    #[test]
    fn a_rule_about_any_routing_key_is_the_last_one_unless_queues_are_watched() {
        let alerts = "[[alerts.rules]]\nname = \"rest\"\nrouting_key = \"#\"\nseverity = \"count\"\n\
                      [alerts.channels.a]\nseverities = [\"wake\"]\nlog = {}\n";
        ServiceConfig::read(alerts).unwrap();
        ServiceConfig::read(&format!("{alerts}[orphans]\nenabled = false\n")).unwrap();
        let why = ServiceConfig::read(&format!("{alerts}[orphans]\n")).unwrap_err();
        let why = why.to_string();
        assert!(
            why.contains("`routing_key`") && why.contains("`rest`"),
            "{why}"
        );
    }

    #[test]
    fn the_digest_is_of_what_becomes_of_messages_and_of_nothing_else() {
        let digest = |text: &str| ServiceConfig::read(text).unwrap().digest();
        assert_eq!(digest(""), ServiceConfig::default().digest());
        let rule = "[[rules]]\nqueue = \"a\"\nreason = [\"expired\", \"maxlen\"]\nend = \"park\"\n";
        let same = "# the same\n[[rules]]\nend = \"park\"\nreason = [\"maxlen\", \"expired\"]\nqueue = \"a\"\n";
        assert_eq!(digest(rule), digest(same));
        assert_eq!(
            digest("[defaults]\nretry = \"fixed(60s)\""),
            digest("[defaults]\nretry = \"fixed(1m)\"")
        );
        assert_eq!(
            digest("[service]\nprefetch = 7\n[alerts]\n[history]\nrecords = 5\n"),
            digest("")
        );
        let other = "[[rules]]\nqueue = \"b\"\nend = \"drop\"\n";
        let mut all = vec![
            digest(""),
            digest(FILE),
            digest(rule),
            digest(other),
            digest(&format!("{rule}{other}")),
            digest(&format!("{other}{rule}")),
            digest(&rule.replace("park", "drop")),
            digest(&rule.replace("queue", "routing_key")),
            digest("[defaults]\nretry = \"fixed(2m)\""),
            digest("[defaults]\nexpired = \"retry\""),
            digest("[delayed.orders]\nto = \"shop\"\n"),
        ];
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn the_schema_names_every_key() {
        let schema = super::super::schema().to_value().to_string();
        for key in [
            "defaults",
            "rules",
            "retry",
            "rejected",
            "failed",
            "expired",
            "maxlen",
            "delivery-limit",
            "queue",
            "routing_key",
            "headers",
            "error_type",
            "reason",
            "end",
            "park",
            "drop",
        ] {
            assert!(schema.contains(&format!("\"{key}\"")), "{key}: {schema}");
        }
        assert!(
            schema.contains("\"additionalProperties\":false"),
            "{schema}"
        );
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,200}") {
            let _ = ServiceConfig::read(&text);
        }

        #[test]
        fn every_message_has_an_end(
            queue in "[a-z.]{0,12}", key in "[a-z.]{0,12}", word in "[a-z_]{0,12}",
        ) {
            let service_config = ServiceConfig::read(FILE).unwrap();
            let action = service_config.action(&queue, &key, None, Reason::parse(&word), &Failure::default());
            if Reason::parse(&word).is_none() {
                prop_assert_eq!(action, Action::Park);
            }
        }
    }
}
