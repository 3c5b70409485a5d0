//! The table `[orphans]` of the configuration file.

use std::{path::PathBuf, time::Duration};

use reqwest::Url;
use retryrmq::glob::glob;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ConfigDuration;

/// Which queues are watched, how, and when people are told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Configuration {
    /// Whether queues are watched at all.
    pub enabled: bool,
    /// How often they are looked at.
    pub every: ConfigDuration,
    /// A queue with messages or bindings is an orphan when it had no consumer for so long.
    pub after: ConfigDuration,
    /// The queues that are watched; `*` is any text.
    pub include: Vec<String>,
    /// Those of them that are not.
    pub exclude: Vec<String>,
    /// A parking queue that grows by so many messages within `parked_within` is told.
    pub parked_growth: u64,
    /// See `parked_growth`.
    pub parked_within: ConfigDuration,
    /// A consumer that holds messages and acknowledges none for so long, while others wait, is told.
    pub stuck_after: ConfigDuration,
    /// Queues to ask for by name (AMQP, passive), which needs no plugin. Where neither the management API nor `prometheus` lists the
    /// queues, these are all.
    pub queues: Vec<String>,
    /// The Prometheus endpoints of all nodes, such as `http://node1:15692`.
    pub prometheus: Vec<String>,
    /// A PEM file of the only authorities that count for `prometheus`; otherwise those of the system.
    pub ca: Option<PathBuf>,
}

impl Default for Configuration {
    fn default() -> Self {
        Self {
            enabled: true,
            every: ConfigDuration::seconds(30),
            after: ConfigDuration::minutes(15),
            include: vec!["*".to_owned()],
            exclude: vec!["amq.gen-*".to_owned()],
            parked_growth: 100,
            parked_within: ConfigDuration::minutes(60),
            stuck_after: ConfigDuration::minutes(10),
            queues: Vec::new(),
            prometheus: Vec::new(),
            ca: None,
        }
    }
}

impl Configuration {
    /// Checks everything that can be checked without asking anybody.
    ///
    /// # Errors
    /// One sentence that names what to change.
    pub fn check(&self) -> Result<(), String> {
        let least = ConfigDuration(Duration::from_millis(100));
        let most = ConfigDuration::minutes(7 * 24 * 60);
        for (name, span, least) in [
            ("every", self.every, least),
            ("after", self.after, self.every),
            ("parked_within", self.parked_within, self.every),
            ("stuck_after", self.stuck_after, self.every),
        ] {
            if span < least || span > most {
                return Err(format!(
                    "[orphans]: `{name} = \"{span}\"` must be between {least} and {most}"
                ));
            }
        }
        if self.parked_growth == 0 {
            return Err("[orphans]: `parked_growth` must be at least 1".to_owned());
        }
        for url in &self.prometheus {
            // It may hold a login, so it is not repeated.
            let parsed = Url::parse(url).ok();
            if !parsed.is_some_and(|url| matches!(url.scheme(), "http" | "https")) {
                return Err("[orphans]: an address in `prometheus` is none; write it like \"http://node1:15692\"".to_owned());
            }
        }
        crate::tls::tls(self.ca.as_deref())
            .map(drop)
            .map_err(|why| format!("[orphans]: {why}"))
    }

    /// Whether a queue is watched.
    #[must_use]
    pub fn watches(&self, queue: &str) -> bool {
        let fits = |patterns: &[String]| patterns.iter().any(|pattern| glob(pattern, queue));
        fits(&self.include) && !fits(&self.exclude)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_named_without_a_password() {
        let read = |text: &str| -> Result<(), String> {
            let read: Configuration = toml::from_str(text).map_err(|why| why.to_string())?;
            read.check()
        };
        assert_eq!(read(""), Ok(()));
        for (text, words) in [
            ("evry = \"1s\"", "unknown field"),
            ("after = \"1s\"", "`after = \"1s\"` must be between 30s"),
            ("parked_growth = 0", "`parked_growth`"),
            ("prometheus = [\"ftp://u:s3cret@h\"]", "http://node1:15692"),
            ("ca = \"/no/such/file\"", "`ca`"),
        ] {
            let why = read(text).unwrap_err();
            assert!(why.contains(words) && !why.contains("s3cret"), "{why}");
        }
    }
}
