//! A vhost whose management API the command asks, and faults to put into it.

use std::collections::BTreeSet;

use retryrmq_harness::{Broker, Policy, eventually};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::fixture::{CommandOutput, DEADLINE, Fixture, finish};

/// A vhost with the management API.
pub(crate) struct ManagementFixture {
    pub(crate) fixture: Fixture,
}

/// Whether deprecated features are in use is a matter of the whole broker, on which other tests are.
pub(crate) const NOT_OF_OTHER_TESTS: &str = "--ignore=RQ116";

/// A code and the name it is about.
pub(crate) type Found = BTreeSet<(String, String)>;

/// What is expected, written shortly.
pub(crate) fn found<'a>(all: impl IntoIterator<Item = (&'a str, &'a str)>) -> Found {
    let owned = |(code, name): (&str, &str)| (code.to_owned(), name.to_owned());
    all.into_iter().map(owned).collect()
}

impl ManagementFixture {
    pub(crate) async fn of(broker: &Broker) -> Self {
        Self {
            fixture: Fixture::of(broker).await,
        }
    }

    pub(crate) fn broker(&self) -> &Broker {
        self.fixture.vhost.broker()
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.fixture.command(arguments);
        command.env("RETRYRMQ_MANAGEMENT_URL", self.broker().management().url());
        command
    }

    pub(crate) async fn run(&self, arguments: &[&str]) -> CommandOutput {
        finish(self.command(arguments), None).await
    }

    /// Runs the command until it has looked at policies: what the management API of a busy broker takes too long for is left out.
    pub(crate) async fn run_with_policies(&self, arguments: &[&str]) -> CommandOutput {
        eventually(DEADLINE, "policies are looked at", || async {
            let done = self.run(arguments).await;
            if done.err.contains("policies were not looked at") {
                Err(done.err)
            } else {
                Ok(done)
            }
        })
        .await
    }

    async fn put(&self, what: &str, name: &str, body: Value) {
        let path = format!("{what}/{}/{name}", self.fixture.vhost.name());
        let put = self.broker().management().put(path, body).await;
        put.unwrap_or_else(|why| panic!("{what} {name}: {why}"));
    }

    /// Makes a durable queue, quorum unless its arguments say otherwise.
    pub(crate) async fn queue(&self, name: &str, mut arguments: Value) {
        let all = arguments.as_object_mut().unwrap();
        all.entry("x-queue-type").or_insert("quorum".into());
        self.put(
            "queues",
            name,
            json!({"durable": true, "arguments": arguments}),
        )
        .await;
    }

    /// A queue whose dead letters go to another by name.
    pub(crate) async fn routed(&self, name: &str, to: &str, mut arguments: Value) {
        let all = arguments.as_object_mut().unwrap();
        all.insert("x-dead-letter-exchange".to_owned(), "".into());
        all.insert("x-dead-letter-routing-key".to_owned(), to.into());
        self.queue(name, arguments).await;
    }

    pub(crate) async fn fanout(&self, name: &str) {
        self.put(
            "exchanges",
            name,
            json!({"type": "fanout", "durable": true}),
        )
        .await;
    }

    pub(crate) async fn policy(&self, name: &str, pattern: &str, priority: i64, definition: Value) {
        let mut policy = Policy::new(pattern, definition);
        policy.priority = priority;
        self.fixture.vhost.put_policy(name, &policy).await.unwrap();
    }

    /// What the doctor finds, and whether its exit code agrees.
    pub(crate) async fn findings(&self, arguments: &[&str]) -> Found {
        let all = [&["--json", "doctor", NOT_OF_OTHER_TESTS], arguments].concat();
        let done = self.run(&all).await;
        let report = done.json();
        let findings = report["findings"].as_array().unwrap();
        assert_eq!(
            done.status.code(),
            Some(if findings.is_empty() { 0 } else { 8 }),
            "{done:#?}"
        );
        assert_eq!(report["healthy"], findings.is_empty());
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        for finding in findings {
            let page = text(&finding["page"]);
            assert!(
                page.ends_with(&text(&finding["code"]).to_lowercase()),
                "{finding}"
            );
            assert!(!text(&finding["fix"]).is_empty(), "{finding}");
            let named = text(&finding["sentence"]).contains(&text(&finding["name"]));
            assert!(named || finding["kind"] != "queue", "{finding}");
        }
        findings
            .iter()
            .map(|finding| (text(&finding["code"]), text(&finding["name"])))
            .collect()
    }

    /// Waits until the doctor finds exactly this: counts are renewed every few seconds.
    pub(crate) async fn finds(&self, arguments: &[&str], expected: &Found) {
        eventually(DEADLINE, "the doctor finds what is wrong", || async {
            let seen = self.findings(arguments).await;
            if seen == *expected {
                return Ok(());
            }
            let missing: Vec<_> = expected.difference(&seen).collect();
            let more: Vec<_> = seen.difference(expected).collect();
            Err(format!("missing: {missing:?}; too much: {more:?}"))
        })
        .await;
    }
}
