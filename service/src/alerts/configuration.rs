//! The table `[alerts]` of the configuration file.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    BusinessHours, Channel, ConfigDuration, Rule, Severity, Silence,
    channels::{ChannelTimeouts, Log, OpenChannel},
    engine::{Settings, Triggers},
    rule::RuleSet,
};
use crate::redaction;

/// Who is told what, when and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Configuration {
    /// The name of this service in notices: letters, digits, `-` and `_`.
    pub service: String,
    /// The rules; the first that fits decides. What fits none is told in the morning.
    pub rules: Vec<Rule>,
    /// The channels, by name. Without any there is the log.
    pub channels: BTreeMap<String, Channel>,
    /// Silences. People make others while the service runs.
    pub silences: Vec<Silence>,
    /// When the morning is.
    pub hours: BusinessHours,
    /// An incident is over when nothing of it was seen for so long.
    pub quiet: ConfigDuration,
    /// An incident that goes on is told again after so long, then after twice as long, and so on.
    pub growing_after: ConfigDuration,
    /// A group that was quiet for so long is forgotten: the next failure is the first of its kind.
    pub forget_after: ConfigDuration,
    /// Groups that are known at a time.
    pub most_groups: usize,
    /// A channel that fails is tried again after so long, then after twice as long, up to five minutes.
    pub retry_after: ConfigDuration,
    /// A notice that no channel took for so long is given up.
    pub give_up_after: ConfigDuration,
    /// Headers and fields of bodies whose name fits are sent as `***`, whatever a rule asks for; `*` is any text, case is ignored.
    pub redact: Vec<String>,
    /// How often timers are looked at. A leader that hears nothing for three times as long falls silent.
    pub tick: ConfigDuration,
}

impl Default for Configuration {
    fn default() -> Self {
        Self {
            service: "retryrmq".to_owned(),
            rules: Vec::new(),
            channels: BTreeMap::new(),
            silences: Vec::new(),
            hours: BusinessHours::default(),
            quiet: ConfigDuration::minutes(30),
            growing_after: ConfigDuration::minutes(10),
            forget_after: ConfigDuration::minutes(30 * 24 * 60),
            most_groups: 500,
            retry_after: ConfigDuration::seconds(1),
            give_up_after: ConfigDuration::minutes(24 * 60),
            redact: redaction::usual(),
            tick: ConfigDuration::seconds(5),
        }
    }
}

/// The configuration, checked and ready.
#[derive(Debug)]
pub(super) struct CheckedConfiguration {
    pub(super) rule_set: RuleSet,
    pub(super) reads_bodies: bool,
    pub(super) settings: Settings,
    pub(super) lines: BTreeMap<String, OpenChannel>,
    pub(super) channel_timeouts: ChannelTimeouts,
    pub(super) tick: Duration,
}

impl Configuration {
    /// Whether any rule looks into bodies: only then need [`ParkedReport::body`](crate::ParkedReport::body) and
    /// [`type_name`](crate::ParkedReport::type_name) be decoded for the alerts.
    #[must_use]
    pub fn reads_bodies(&self) -> bool {
        self.rules.iter().any(Rule::reads_bodies)
    }

    /// Checks everything that can be checked without telling anybody. Files and variables with secrets are read.
    ///
    /// # Errors
    /// One sentence that names what to change, without a secret.
    pub fn check(&self) -> Result<(), String> {
        self.ready().map(drop)
    }

    /// Checks that somebody is told of each queue in trouble, too; asked where queues are watched.
    ///
    /// # Errors
    /// One sentence that names what to change.
    pub fn check_queue_problems(&self) -> Result<(), String> {
        if self.rules.iter().any(Rule::fits_everything) {
            return Ok(());
        }
        let Err(why) = check_rule(&Rule::otherwise(), &self.channels()) else {
            return Ok(());
        };
        let almost = self.rules.iter().rfind(|rule| rule.fits_every_message());
        let change = match almost {
            Some(rule) => format!(
                "leave `routing_key`, `error_type` and `type` out of the rule `{}`, because a queue has none",
                rule.name.escape_debug()
            ),
            None => REST.to_owned(),
        };
        Err(format!(
            "[alerts]: {why}, and a queue that [orphans] finds in trouble has it where no rule matches; add it to the `severities` of a channel, or {change}"
        ))
    }

    pub(super) fn ready(&self) -> Result<CheckedConfiguration, String> {
        let place = |why: String| format!("[alerts]: {why}");
        self.bounds().map_err(place)?;
        let calendar = self
            .hours
            .calendar()
            .map_err(|why| format!("[alerts.hours]: {why}"))?;
        let channels = self.channels();
        let mut lines = BTreeMap::new();
        let mut severities = BTreeMap::new();
        for (name, channel) in &channels {
            let place = |why: String| format!("[alerts.channels.{}]: {why}", name.escape_debug());
            lines.insert(name.clone(), channel.open().map_err(place)?);
            self.check_severities(name, channel).map_err(place)?;
            let taken = channel.severities.clone();
            let taken = taken.unwrap_or_else(|| vec![Severity::Wake, Severity::Morning]);
            severities.insert(name.clone(), taken.into_iter().collect::<BTreeSet<_>>());
        }
        let mut rules = BTreeMap::new();
        for rule in &self.rules {
            let place =
                |why: String| format!("[[alerts.rules]] `{}`: {why}", rule.name.escape_debug());
            check_rule(rule, &channels).map_err(place)?;
            if rule.name == Rule::OTHERWISE {
                return Err(place(
                    "this is the name of the last rule, which has what matches no other; choose another".to_owned(),
                ));
            }
            if rules
                .insert(rule.name.clone(), Triggers::from(rule))
                .is_some()
            {
                return Err(place("another rule has this name".to_owned()));
            }
        }
        // The last rule, which nobody writes; it is not asked where another one fits everything.
        if !self.rules.iter().any(Rule::fits_every_message) {
            check_rule(&Rule::otherwise(), &channels).map_err(|why| {
                place(format!(
                    "{why}, and what matches no rule has it; add it to the `severities` of a channel, or {REST}"
                ))
            })?;
        }
        for silence in &self.silences {
            silence
                .check()
                .map_err(|why| format!("[[alerts.silences]]: {why}"))?;
        }
        Ok(CheckedConfiguration {
            rule_set: RuleSet::new(&self.rules, &self.redact).map_err(place)?,
            reads_bodies: self.reads_bodies(),
            settings: Settings {
                service: self.service.clone(),
                rules,
                channels: severities,
                silences: self.silences.clone(),
                calendar,
                quiet: self.quiet.0,
                growing_after: self.growing_after.0,
                forget_after: self.forget_after.0,
                most_groups: self.most_groups,
            },
            lines,
            channel_timeouts: ChannelTimeouts {
                pause: self.retry_after.0,
                give_up_after: self.give_up_after.0,
            },
            tick: self.tick.0,
        })
    }

    /// A rule that names a channel reaches it whatever severities the channel takes; any other one by these alone.
    fn check_severities(&self, name: &String, channel: &Channel) -> Result<(), String> {
        let Some(taken) = &channel.severities else {
            return Ok(());
        };
        let is_told = |severity: &Severity| *severity != Severity::Count;
        let names = |rule: &Rule| {
            is_told(&rule.severity) && rule.channels.as_ref().is_some_and(|all| all.contains(name))
        };
        if taken.iter().any(is_told) || self.rules.iter().any(names) {
            return Ok(());
        }
        let what = match taken.is_empty() {
            true => "`severities` is empty",
            false => "`severities` has only \"count\", of which nobody is told",
        };
        Err(format!(
            "{what}, and no rule names this channel, so it would never be used; add \"wake\" or \"morning\", leave `severities` out for both, or name it in the `channels` of a rule"
        ))
    }

    fn channels(&self) -> BTreeMap<String, Channel> {
        if !self.channels.is_empty() {
            return self.channels.clone();
        }
        let log = Channel {
            log: Some(Log {}),
            ..Channel::default()
        };
        BTreeMap::from([("log".to_owned(), log)])
    }

    fn bounds(&self) -> Result<(), String> {
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if !(1..=40).contains(&self.service.len()) || !self.service.chars().all(fits) {
            return Err(
                "`service` must be 1 to 40 letters, digits, `-` and `_`, such as \"shop-eu\""
                    .to_owned(),
            );
        }
        if !(1..=10_000).contains(&self.most_groups) {
            return Err("`most_groups` must be 1 to 10000".to_owned());
        }
        let (least, usual) = (
            ConfigDuration(Duration::from_millis(100)),
            ConfigDuration::seconds(1),
        );
        for (name, span, least, most) in [
            (
                "quiet",
                self.quiet,
                usual,
                ConfigDuration::minutes(7 * 24 * 60),
            ),
            (
                "growing_after",
                self.growing_after,
                usual,
                ConfigDuration::minutes(7 * 24 * 60),
            ),
            (
                "forget_after",
                self.forget_after,
                self.quiet,
                ConfigDuration::minutes(366 * 24 * 60),
            ),
            (
                "retry_after",
                self.retry_after,
                least,
                ConfigDuration::minutes(5),
            ),
            (
                "give_up_after",
                self.give_up_after,
                usual,
                ConfigDuration::minutes(7 * 24 * 60),
            ),
            ("tick", self.tick, least, ConfigDuration::minutes(1)),
        ] {
            if span < least || span > most {
                return Err(format!(
                    "`{name} = \"{span}\"` must be between {least} and {most}"
                ));
            }
        }
        Ok(())
    }
}

/// What takes what nobody else does.
const REST: &str = "add a last rule with `severity = \"count\"`";

fn check_rule(rule: &Rule, channels: &BTreeMap<String, Channel>) -> Result<(), String> {
    if rule.name.is_empty() || rule.name.len() > 100 || rule.name.chars().any(char::is_control) {
        return Err("`name` must be 1 to 100 characters".to_owned());
    }
    if rule.on.is_empty() {
        return Err(
            "`on` is empty, so nobody would ever be told; say `severity = \"count\"` if that is meant"
                .to_owned(),
        );
    }
    if rule.severity != Severity::Count && rule.channels.as_ref().is_some_and(Vec::is_empty) {
        return Err(
            "`channels` is empty, so nobody would ever be told; leave it out for all, or say `severity = \"count\"`"
                .to_owned(),
        );
    }
    if let Some(unknown) = rule
        .channels
        .iter()
        .flatten()
        .find(|name| !channels.contains_key(*name))
    {
        return Err(format!(
            "there is no channel `{}`; there are {}",
            unknown.escape_debug(),
            channels.keys().cloned().collect::<Vec<_>>().join(", ")
        ));
    }
    // Nobody should learn at night that a rule that wakes people reaches no channel.
    let takes = |channel: &Channel| {
        let severities = channel.severities.as_deref();
        severities.is_none_or(|all| all.contains(&rule.severity))
    };
    if rule.severity != Severity::Count && rule.channels.is_none() && !channels.values().any(takes)
    {
        return Err(format!("no channel takes the severity `{}`", rule.severity));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Configuration, String> {
        let configuration: Configuration = toml::from_str(text).map_err(|why| why.to_string())?;
        configuration.check().map(|()| configuration)
    }

    #[test]
    fn the_example_of_the_documentation_is_one() {
        let text = include_str!("../../../docs/alerts.md");
        let mut examples = 0;
        for part in text.split("```toml").skip(1) {
            let example = part.split("```").next().unwrap();
            let whole: toml::Table = toml::from_str(example).unwrap();
            if let Some(alerts) = whole.get("alerts") {
                // Secrets in places that only the reader has are left out of what is checked.
                let configuration: Configuration = alerts.clone().try_into().unwrap();
                assert!(!configuration.rules.is_empty() || !configuration.channels.is_empty());
                examples += 1;
            }
            if let Some(orphans) = whole.get("orphans") {
                let configuration: crate::queue_watch::Configuration =
                    orphans.clone().try_into().unwrap();
                configuration.check().unwrap();
                examples += 1;
            }
        }
        assert!(examples >= 2);
    }

    #[test]
    fn nothing_said_is_the_log_in_the_morning() {
        let ready = read("").unwrap().ready().unwrap();
        assert_eq!(ready.lines.keys().collect::<Vec<_>>(), ["log"]);
        assert!(!ready.reads_bodies);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let rule = "[[rules]]\nname = \"gold\"\nseverity = \"wake\"\n";
        for (text, words) in [
            ("quit = \"5m\"".to_owned(), "unknown field `quit`"),
            ("quiet = \"5\"".to_owned(), "5m"),
            (
                "quiet = \"1ms\"".to_owned(),
                "`quiet = \"1ms\"` must be between 1s and 7d",
            ),
            ("service = \"a b\"".to_owned(), "`service`"),
            ("most_groups = 0".to_owned(), "`most_groups`"),
            ("[hours]\ntime_zone = \"x\"".to_owned(), "[alerts.hours]"),
            (
                "[channels.a]\n".to_owned(),
                "[alerts.channels.a]: it needs exactly one",
            ),
            (format!("{rule}{rule}"), "another rule has this name"),
            (
                format!("{rule}channels = [\"x\"]"),
                "no channel `x`; there are log",
            ),
            (format!("{rule}where = \"bdy.x\""), "rule `gold`"),
            (format!("{rule}on = []"), "`on` is empty"),
            (format!("{rule}channels = []"), "`channels` is empty"),
            (
                "[channels.a]\nseverities = [\"wake\"]\nlog = {}".to_owned(),
                "no channel takes the severity `morning`, and what matches no rule has it",
            ),
            (format!("{rule}sevrity = \"x\""), "unknown field"),
            (
                format!("{rule}[channels.a]\nseverities = [\"morning\"]\nlog = {{}}"),
                "no channel takes the severity `wake`",
            ),
            (
                "[[silences]]\nuntil = \"2026-12-01T00:00:00Z\"\nauthor = \"a\"\nwhy = \"b\""
                    .to_owned(),
                "must say what it silences",
            ),
            (
                "[channels.a.pagerduty]\nrouting_key_env = \"RETRYRMQ_NO_SUCH\"".to_owned(),
                "RETRYRMQ_NO_SUCH is not set",
            ),
        ] {
            let why = read(&text).unwrap_err();
            assert!(why.contains(words), "{text}: {why}");
        }
    }

    #[test]
    fn a_channel_that_nothing_reaches_is_refused_unless_a_rule_names_it() {
        for (severities, says) in [("[]", "is empty"), ("[\"count\"]", "has only \"count\"")] {
            let channels = format!(
                "[channels.all]\nlog = {{}}\n[channels.a]\nlog = {{}}\nseverities = {severities}\n"
            );
            let rule = |severity| {
                format!("[[rules]]\nname = \"x\"\nchannels = [\"a\"]\nseverity = \"{severity}\"\n")
            };
            for text in [channels.clone(), format!("{}{channels}", rule("count"))] {
                let why = read(&text).unwrap_err();
                assert!(
                    why.contains("[alerts.channels.a]") && why.contains(says),
                    "{text}: {why}"
                );
            }
            read(&format!("{}{channels}", rule("wake"))).unwrap();
        }
        let mixed = "[channels.a]\nlog = {}\nseverities = [\"count\", \"morning\"]\n";
        read(mixed).unwrap();
    }

    #[test]
    fn a_last_rule_takes_what_no_channel_would_be_told_of() {
        let channel = "[channels.a]\nseverities = [\"wake\"]\nlog = {}\n";
        let rest = "[[rules]]\nname = \"rest\"\nseverity = \"count\"\n";
        read(&format!("{channel}{rest}")).unwrap();
        let some = format!("{channel}{rest}queue = \"orders\"\n");
        assert!(read(&some).unwrap_err().contains("`morning`"));
    }

    #[test]
    fn a_last_rule_for_any_routing_key_takes_every_message_and_no_queue_in_trouble() {
        let channel = "[channels.a]\nseverities = [\"wake\"]\nlog = {}\n";
        let rest = "[[rules]]\nname = \"rest\"\nseverity = \"count\"\n";
        for asked in [
            "routing_key = \"#\"",
            "error_type = \"*\"\ntype = \"*\"\nqueue = \"*\"",
        ] {
            let configuration = read(&format!("{channel}{rest}{asked}\n")).unwrap();
            let why = configuration.check_queue_problems().unwrap_err();
            assert!(
                why.contains("[orphans]") && why.contains("out of the rule `rest`"),
                "{why}"
            );
        }
        for asked in ["routing_key = \"*\"", "where = \"true\""] {
            let why = read(&format!("{channel}{rest}{asked}\n")).unwrap_err();
            assert!(why.contains("what matches no rule"), "{asked}: {why}");
        }
        let whole = read(&format!("{channel}{rest}")).unwrap();
        whole.check_queue_problems().unwrap();
        read("").unwrap().check_queue_problems().unwrap();
    }

    #[test]
    fn it_has_a_schema_and_is_written_as_it_is_read() {
        let schema = schemars::schema_for!(Configuration);
        let text = serde_json::to_string(&schema).unwrap();
        assert!(text.contains("growing_after") && text.contains("\"additionalProperties\":false"));
        let configuration = Configuration::default();
        let text = toml::to_string(&configuration).unwrap();
        assert_eq!(
            toml::from_str::<Configuration>(&text).unwrap(),
            configuration
        );
    }
}
