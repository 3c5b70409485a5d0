//! The file of `setup`, understood: every value checked by the crate that means something by it, and named by its line and column.

use std::{fs, ops::Range, path::Path};

use retryrmq::{Policy, QueueType, Rule, Rules, Strategy, WorkQueue, terminal_escape};
use retryrmq_operator::configuration::{ConfigError, Configuration, Policies, Queue};
use toml::Spanned;

use super::{desired::DesiredQueue, permissions::Grant};
use crate::{error::CliError, retry_args::not_reserved};

/// Larger files are none of ours.
const MOST_BYTES: u64 = 4 * 1024 * 1024;

/// What a file asks for.
pub(crate) struct Setup {
    pub(crate) queues: Vec<DesiredQueue>,
    pub(super) grants: Vec<Grant>,
}

impl Setup {
    /// Reads a file.
    ///
    /// # Errors
    /// Exit code 2, with the line and column of what is wrong.
    pub(crate) fn read(file: &Path) -> Result<Self, CliError> {
        let shown = file.display();
        let size = fs::metadata(file)
            .map(|metadata| metadata.len())
            .unwrap_or(0);
        if size > MOST_BYTES {
            return Err(CliError::usage(format!(
                "{shown} has {size} bytes, and a setup file has a few thousand: is it another one?"
            )));
        }
        let text = fs::read_to_string(file)
            .map_err(|why| CliError::usage(format!("cannot read {shown}: {why}")))?;
        Self::understood(&text).map_err(|why| CliError::usage(format!("{shown}:{why}")))
    }

    fn understood(text: &str) -> Result<Self, ConfigError> {
        let reader = TomlReader { text };
        let file = Configuration::read(text)?;
        for (name, policy) in &file.policies {
            reader.policy(policy)?;
            if name.contains('(') {
                return Err(reader.at(
                    policy.span(),
                    "the name of a policy has no parenthesis: it would be read as a policy",
                ));
            }
        }
        let mut queues: Vec<DesiredQueue> = Vec::with_capacity(file.queues.len());
        for queue in &file.queues {
            let wanted = reader.queue(queue, &file.policies)?;
            if queues.iter().any(|earlier| earlier.name == wanted.name) {
                let why = format!(
                    "the queue `{}` is listed twice",
                    terminal_escape::line(&wanted.name)
                );
                return Err(reader.at(queue.name.span(), why));
            }
            queues.push(wanted);
        }
        if queues.is_empty() {
            return Err(reader.at(0..0, "no [[queues]] in it: there is nothing to set up"));
        }
        let mut grants: Vec<Grant> = Vec::with_capacity(file.permissions.len());
        for permission in &file.permissions {
            if permission.user.get_ref().is_empty() {
                return Err(reader.at(permission.user.span(), "the user's name is empty"));
            }
            for named in permission.consumes.iter().chain(&permission.operates) {
                if !queues.iter().any(|queue| queue.name == *named.get_ref()) {
                    let why = format!(
                        "there is no [[queues]] with the name `{}`",
                        terminal_escape::line(named.get_ref())
                    );
                    return Err(reader.at(named.span(), why));
                }
            }
            let grant = Grant::of(permission, &queues);
            if grants.iter().any(|earlier| earlier.user == grant.user) {
                let why = format!(
                    "the user `{}` is listed twice: RabbitMQ has one set of permissions for each",
                    terminal_escape::line(&grant.user)
                );
                return Err(reader.at(permission.user.span(), why));
            }
            grants.push(grant);
        }
        Ok(Self { queues, grants })
    }
}

/// Understands values, and says where those stand that it does not.
struct TomlReader<'a> {
    text: &'a str,
}

impl TomlReader<'_> {
    fn at(&self, span: Range<usize>, why: impl Into<String>) -> ConfigError {
        ConfigError::at(self.text, span.start, why)
    }

    fn parsed<T: std::str::FromStr<Err = retryrmq::Error>>(
        &self,
        value: &Spanned<String>,
    ) -> Result<T, ConfigError> {
        let parsed = value.get_ref().parse();
        parsed.map_err(|why: retryrmq::Error| self.at(value.span(), why.to_string()))
    }

    fn policy(&self, value: &Spanned<String>) -> Result<Policy, ConfigError> {
        let policy: Policy = self.parsed(value)?;
        policy
            .validate()
            .map_err(|why| self.at(value.span(), why.to_string()))?;
        Ok(policy)
    }

    /// A policy's text, or the name of one.
    fn named(&self, value: &Spanned<String>, policies: &Policies) -> Result<Policy, ConfigError> {
        match policies.get(value.get_ref()) {
            Some(policy) => self.policy(policy),
            None if value.get_ref().contains('(') => self.policy(value),
            None => Err(self.at(
                value.span(),
                format!(
                    "there is no policy `{}` in [policies]; write its name, or a policy such as fixed(5s, retries=3)",
                    terminal_escape::line(value.get_ref())
                ),
            )),
        }
    }

    fn queue(&self, queue: &Queue, policies: &Policies) -> Result<DesiredQueue, ConfigError> {
        let name = queue.name.get_ref().clone();
        let here = |why: String| self.at(queue.name.span(), why);
        if name.is_empty() {
            return Err(here("the name of a queue is empty".to_owned()));
        }
        not_reserved(&name, false).map_err(|_| {
            here(format!(
                "`{}` is the name of a queue that belongs to a work queue: name the work queue",
                terminal_escape::line(&name)
            ))
        })?;
        let otherwise = match &queue.retry {
            Some(policy) => self.named(policy, policies)?,
            None => Policy::default(),
        };
        let rules = queue.rules.iter().map(|rule| self.parsed::<Rule>(rule));
        let rules = Rules::new(rules.collect::<Result<Vec<_>, _>>()?, otherwise);
        let strategy = queue
            .strategy
            .as_ref()
            .map(|value| self.parsed(value))
            .transpose()?;
        let strategy: Strategy = strategy.unwrap_or_default();
        let queue_type = queue
            .queue_type
            .as_ref()
            .map(|value| self.parsed(value))
            .transpose()?;
        let queue_type: QueueType = queue_type.unwrap_or_default();
        let work_queue = queue
            .work_queue
            .as_ref()
            .map(|value| self.work_queue(value))
            .transpose()?;
        let plan = strategy
            .plan(&name, &rules, queue_type, work_queue.as_ref())
            .map_err(|why| here(why.to_string()))?;
        Ok(DesiredQueue {
            name,
            rules,
            strategy,
            queue_type,
            plan,
        })
    }

    /// A word, or a table of arguments: the same as `--work-queue` takes.
    fn work_queue(&self, value: &Spanned<toml::Value>) -> Result<WorkQueue, ConfigError> {
        let text =
            match value.get_ref() {
                toml::Value::String(word) => word.clone(),
                table @ toml::Value::Table(_) => serde_json::to_string(table)
                    .map_err(|why| self.at(value.span(), why.to_string()))?,
                _ => return Err(self.at(
                    value.span(),
                    "`work_queue` is \"quorum\", \"classic\", \"existing\" or a table of arguments",
                )),
            };
        text.parse()
            .map_err(|why: retryrmq::Error| self.at(value.span(), why.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        match Setup::understood(text) {
            Ok(_) => panic!("understood: {text}"),
            Err(why) => why.to_string(),
        }
    }

    #[test]
    fn queues_policies_and_permissions_are_understood() {
        let setup = Setup::understood(
            r#"
            [policies]
            slow = "list(1m, 10m)"
            [[queues]]
            name = "orders"
            retry = "slow"
            [[queues]]
            name = "mails"
            retry = "fixed(5s, retries=3)"
            queue_type = "classic"
            work_queue = { x-max-priority = 10 }
            [[permissions]]
            user = "shop"
            consumes = ["orders"]
            "#,
        )
        .unwrap();
        let names: Vec<_> = setup
            .queues
            .iter()
            .map(|queue| queue.name.as_str())
            .collect();
        assert_eq!(names, ["orders", "mails"]);
        assert_eq!(setup.queues[0].rules.otherwise.to_string(), "list(1m, 10m)");
        let items: Vec<_> = setup.queues[0]
            .plan
            .items
            .iter()
            .map(retryrmq::Item::name)
            .collect();
        assert!(items.contains(&"orders.retry.600000"), "{items:?}");
        assert_eq!(setup.grants.len(), 1);
    }

    #[test]
    fn what_cannot_be_is_told_with_its_line_and_column() {
        for (text, place, said) in [
            (
                "[[queues]]\nname = \"a\"\nretry = \"fixed(5x)\"",
                "3:9: ",
                "not a unit",
            ),
            (
                "[[queues]]\nname = \"a\"\nretry = \"slow\"",
                "3:9: ",
                "no policy `slow`",
            ),
            ("[policies]\nslow = \"often\"", "2:8: ", "often"),
            (
                "[[queues]]\nname = \"a\"\nrules = [\"error=x\"]",
                "3:10: ",
                "=>",
            ),
            (
                "[[queues]]\nname = \"a\"\nstrategy = \"best\"",
                "3:12: ",
                "not a strategy",
            ),
            (
                "[[queues]]\nname = \"a\"\nqueue_type = \"fast\"",
                "3:14: ",
                "not a queue type",
            ),
            (
                "[[queues]]\nname = \"a\"\nwork_queue = 7",
                "3:14: ",
                "work_queue",
            ),
            (
                "[[queues]]\nname = \"a\"\nstrategy = \"native\"",
                "2:8: ",
                "native",
            ),
            (
                "[[queues]]\nname = \"a.parked\"",
                "2:8: ",
                "belongs to a work queue",
            ),
            ("[[queues]]\nname = \"\"", "2:8: ", "empty"),
            (
                "[[queues]]\nname = \"a\"\n[[queues]]\nname = \"a\"",
                "4:8: ",
                "twice",
            ),
            (
                "[[queues]]\nname = \"a\"\n[[permissions]]\nuser = \"u\"\nconsumes = [\"b\"]",
                "5:13: ",
                "`b`",
            ),
            ("", "1:1: ", "nothing to set up"),
        ] {
            let why = refused(text);
            assert!(
                why.starts_with(place) && why.contains(said),
                "{text:?}: {why}"
            );
        }
    }
}
