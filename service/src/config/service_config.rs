//! A policy file that was read and checked: what each part of the service is told.

use std::sync::Arc;

use retryrmq::Addresses;
use retryrmq_operator::configuration::ConfigError;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::file::PolicyFile;
use crate::{
    PolicyRules, Settings,
    alerting_runtime::AlertSections,
    alerts, delayed, history,
    store::redis::{self, RedisStore},
    web,
};

/// What a policy file says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServiceConfig {
    rules: PolicyRules,
    alerts: AlertSections,
    store: Option<redis::Configuration>,
    delayed: delayed::DelayedSections,
    settings: Settings,
    history: history::Configuration,
    page: web::Configuration,
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
        service_config.rules = PolicyRules::read(text, &file.defaults, &file.rules)?;
        service_config.alerts = AlertSections {
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
        let [rules, otherwise, ends] = self.rules.digest_values();
        let whole = json!([rules, otherwise, ends, self.delayed]);
        let digest = Sha256::digest(whole.to_string());
        digest[..8]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }

    /// What becomes of dead letters.
    #[must_use]
    pub fn rules(&self) -> &PolicyRules {
        &self.rules
    }

    /// Who is told what.
    pub(crate) fn alerts(&self) -> &AlertSections {
        &self.alerts
    }

    /// Whether a rule of the alerts looks into bodies.
    pub(crate) fn reads_bodies(&self) -> bool {
        let alerts = self.alerts.alerts.as_ref();
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

    /// Who may see the page, and what the page has to know of messages that wait.
    pub(crate) fn web(&self) -> web::WebConfig {
        web::WebConfig {
            page: self.page.clone(),
            retry_policies: self.rules.policies().collect(),
            has_delayed_exchanges: !self.delayed.is_empty(),
        }
    }

    /// Where messages wait; without it in waiting queues of the broker.
    #[must_use]
    pub fn store(&self) -> Option<&redis::Configuration> {
        self.store.as_ref()
    }

    /// The store, for the virtual host of this URL. Nothing is connected yet.
    pub(crate) fn open_store(&self, url: &str) -> Result<Option<Arc<RedisStore>>, String> {
        let Some(configuration) = &self.store else {
            return Ok(None);
        };
        let addresses: Addresses = url
            .parse()
            .map_err(|why: retryrmq::Error| why.to_string())?;
        let store = RedisStore::new(configuration, addresses.vhost());
        store
            .map(|store| Some(Arc::new(store)))
            .map_err(|why| why.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_empty_file_says_what_no_file_says() {
        assert_eq!(ServiceConfig::read("").unwrap(), ServiceConfig::default());
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
            digest("[defaults]\nmaxlen = \"retry\"\n"),
            digest("[[rules]]\nheaders = { kind = \"invoice*\" }\nretry = \"list(1s, 1m)\"\n"),
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
        let schema = crate::schema().to_value().to_string();
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
    }
}
