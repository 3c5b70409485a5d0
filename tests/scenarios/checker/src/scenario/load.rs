//! Reading scenario files, and refusing those that contradict themselves: a scenario that checks nothing, because it
//! names a message nobody publishes, would pass for ever.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};

use wildmatch::WildMatch;

use super::{HandlerEnd, Scenario, Step};
use crate::{field, property};

/// A scenario that cannot be used, and why.
#[derive(Debug)]
pub struct LoadError {
    path: PathBuf,
    problem: String,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.problem)
    }
}

impl Error for LoadError {}

/// The scenario files among these paths; a folder stands for the `.yaml` files in it.
pub fn find_files(paths: &[PathBuf]) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            for entry in std::fs::read_dir(path)? {
                let file = entry?.path();
                if file
                    .extension()
                    .is_some_and(|extension| extension == "yaml")
                {
                    files.push(file);
                }
            }
        } else {
            files.push(path.clone());
        }
    }
    files.sort();
    Ok(files)
}

impl Scenario {
    /// Reads a scenario from a file.
    pub fn from_file(path: &Path) -> Result<Self, LoadError> {
        let wrong = |problem: String| LoadError {
            path: path.to_owned(),
            problem,
        };
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        Self::from_yaml(&name, &text).map_err(wrong)
    }

    /// Reads a scenario from a text.
    pub fn from_yaml(name: &str, text: &str) -> Result<Self, String> {
        // YAML 1.2: `no` and `yes` are words
        let options = serde_saphyr::options! { strict_booleans: true };
        let mut scenario: Self = serde_saphyr::from_str_with_options(text, options)
            .map_err(|error| error.to_string())?;
        scenario.name = name.to_owned();
        scenario.check()?;
        Ok(scenario)
    }

    /// What a driver must be able to do: what the file says, and every step and option it uses, by its name.
    pub fn needs(&self) -> BTreeSet<String> {
        let mut needs: BTreeSet<String> = self.needs.iter().cloned().collect();
        let ids: Vec<String> = self
            .messages()
            .into_iter()
            .map(|message| message.id)
            .collect();
        for step in ids.iter().flat_map(|id| self.steps(id)) {
            let word = match step.act {
                HandlerEnd::Ok => continue,
                HandlerEnd::Error { .. } => "error",
                HandlerEnd::Fatal { .. } => "fatal",
                HandlerEnd::RetryAfter { .. } => "retry_after",
                HandlerEnd::Park { within: None, .. } => "park",
                HandlerEnd::Park { .. } => "wrapped_park",
                HandlerEnd::Defer { .. } => "defer",
                HandlerEnd::Panic { .. } => "panic",
                HandlerEnd::Exit => "exit",
            };
            needs.insert(word.into());
        }
        let consume = &self.consume;
        let options = [
            ("rules", !consume.rules.is_empty()),
            ("handler_timeout", consume.handler_timeout.is_some()),
            ("batch", consume.batch.is_some()),
            ("prefetch_bytes", consume.prefetch_bytes.is_some()),
            ("pause", consume.pause.is_some()),
            ("declare", consume.declare.is_some()),
            ("queue_type", consume.queue_type.is_some()),
            ("crash_limit", consume.crash_limit.is_some()),
            ("defer_limit", consume.defer_limit.is_some()),
            ("fatal", consume.fatal.is_some()),
            (
                "replay",
                self.then
                    .iter()
                    .any(|later| later.replay.queue("").is_some()),
            ),
            (
                "records",
                self.expect
                    .messages
                    .values()
                    .any(|message| !message.replayed.is_empty()),
            ),
            (
                "publish",
                self.then
                    .iter()
                    .any(|later| !later.driver_publish.is_empty()),
            ),
            ("no_park", consume.park == Some(false)),
            ("log", !self.expect.log.is_empty()),
            (
                "mended",
                self.expect
                    .messages
                    .values()
                    .flat_map(|message| message.sees.values())
                    .any(|matchers| matchers.contains_key("mended")),
            ),
            ("events", !self.expect.events.is_empty()),
            ("refused", self.expect.refused.is_some()),
        ];
        needs.extend(
            options
                .iter()
                .filter(|(_, used)| *used)
                .map(|(word, _)| (*word).to_owned()),
        );
        needs
    }

    fn check(&self) -> Result<(), String> {
        let messages = self.messages();
        let ids: BTreeSet<&str> = messages.iter().map(|message| message.id.as_str()).collect();
        if ids.len() != messages.len() {
            return Err("two messages have the same id".into());
        }
        if ids.is_empty() && self.expect.refused.is_none() {
            return Err("it publishes nothing".into());
        }
        if let Some(id) = ids.iter().find(|id| self.expected(id).is_none()) {
            return Err(format!("expect.messages says nothing of '{id}'"));
        }
        let named = |pattern: &str| ids.iter().any(|id| WildMatch::new(pattern).matches(id));
        let lists = self.handler.keys().chain(self.expect.messages.keys());
        let runs = self.then.iter().flat_map(|later| later.once.runs.keys());
        if let Some(stranger) = lists
            .chain(runs)
            .chain(self.expect.order.iter().flatten())
            .find(|id| !named(id))
        {
            return Err(format!("no message is called '{stranger}'"));
        }
        self.check_steps(&self.handler)?;
        self.check_expectations()?;
        for message in &messages {
            if (message.hostile.is_some() || message.unreadable)
                && !(message.headers.is_empty() && message.properties.is_empty())
            {
                return Err(format!(
                    "{}: a message that is hostile or unreadable has no headers and properties of its own",
                    message.id
                ));
            }
            for (key, value) in message.all_headers() {
                field::from_notation(&value)
                    .map_err(|problem| format!("header {key} of {}: {problem}", message.id))?;
            }
            property::from_notation(&message.all_properties())
                .map_err(|problem| format!("{}: {problem}", message.id))?;
        }
        Ok(())
    }

    fn check_steps(&self, handler: &BTreeMap<String, Vec<Step>>) -> Result<(), String> {
        match handler.iter().find(|(_, steps)| steps.is_empty()) {
            Some((id, _)) => Err(format!("the handler has no step for '{id}'")),
            None => Ok(()),
        }
    }

    fn check_expectations(&self) -> Result<(), String> {
        for (id, expected) in &self.expect.messages {
            let most = expected.runs.at_most;
            if expected.runs.at_least > most {
                return Err(format!("runs of '{id}' can never be met"));
            }
            if expected
                .attempts
                .as_ref()
                .is_some_and(|attempts| !expected.runs.allows(attempts.len()))
            {
                return Err(format!("attempts of '{id}' are not as many as its runs"));
            }
            if !expected.spacing.is_empty() && expected.spacing.len() >= most {
                return Err(format!(
                    "'{id}' has {} runs at most and as many spaces",
                    most
                ));
            }
            for run in expected.sees.keys() {
                let number = run.parse::<usize>().ok();
                if run != "last" && run != "each" && number.is_none_or(|n| n == 0 || n > most) {
                    return Err(format!("'{id}' has no run {run}"));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "
shows: It works.
consume: {retry: 'fixed(1s, retries=1)', handler_timeout: 1s}
publish: [{id: a}, {id: b, count: 2}]
handler: {a: [error, ok], 'b-*': [panic]}
expect:
  messages:
    a: {runs: 2, spacing: [1s], ends: handled, sees: {last: {attempt: 2}}}
    'b-*': {runs: {at_least: 1}, ends: {parked: exhausted}}
";

    #[test]
    fn a_good_one_says_what_it_needs() {
        let scenario = Scenario::from_yaml("good", GOOD).unwrap();
        let needs: Vec<String> = scenario.needs().into_iter().collect();
        assert_eq!(needs, ["error", "handler_timeout", "panic"]);
        let ids: Vec<String> = scenario
            .messages()
            .into_iter()
            .map(|message| message.id)
            .collect();
        assert_eq!(ids, ["a", "b-1", "b-2"]);
        assert_eq!(scenario.steps("b-2").len(), 1);
    }

    #[test]
    fn contradictions_are_refused() {
        let cases = [
            (
                "a: [error, ok]",
                "c: [error, ok]",
                "no message is called 'c'",
            ),
            ("{id: a}", "{id: a}, {id: a}", "same id"),
            ("'b-*': {runs", "b-1: {runs", "says nothing of 'b-2'"),
            ("spacing: [1s]", "spacing: [1s, 1s]", "as many spaces"),
            ("last: {attempt: 2}", "3: {attempt: 2}", "no run 3"),
            ("retry:", "retyr:", "unknown field"),
            ("{id: a}", "{id: a, headers: {x: {$int8: 300}}}", "int8"),
            ("{id: a}", "{id: a, properties: {colour: red}}", "colour"),
            ("handled", "happy", "happy"),
            ("[panic]", "[]", "no step"),
        ];
        for (good, bad, complaint) in cases {
            let text = GOOD.replace(good, bad);
            assert_ne!(text, GOOD, "{good} is not in the text");
            let error = Scenario::from_yaml("bad", &text).expect_err(bad);
            assert!(error.contains(complaint), "{bad}: {error}");
        }
    }
}
