//! Every fix that the doctor prints is run: what it mends is found no more, and what mends nothing only shows something.

use std::collections::BTreeSet;

use lapin::{options::QueueBindOptions, types::FieldTable};
use retryrmq_harness::{eventually, on_brokers};
use serde_json::{Value, json};
use tokio::process::Child;

use crate::{
    doctor::make_faults,
    fixture::DEADLINE,
    management_fixture::{ManagementFixture, NOT_OF_OTHER_TESTS},
};

/// Where dead letters may end, in place of the queue that a fix leaves to its reader.
const DEAD: &str = "dead";

/// What is left to people: these commands change nothing, or need a cluster.
fn only_shows(fix: &str) -> bool {
    [
        "rabbitmqctl list_",
        "retryrmq unreadable ls ",
        "rabbitmq-queues delete_member ",
    ]
    .iter()
    .any(|begin| fix.starts_with(begin))
}

fn text<'a>(finding: &'a Value, name: &str) -> &'a str {
    finding[name].as_str().unwrap()
}

fn key(finding: &Value) -> (String, String) {
    (
        text(finding, "code").to_owned(),
        text(finding, "name").to_owned(),
    )
}

struct Mender<'a> {
    management_fixture: &'a ManagementFixture,
    /// How long handlers may take, as the last fix of RQ115 has it.
    handler_timeout: String,
    /// What consumes from now on.
    consumers: Vec<Child>,
}

impl Mender<'_> {
    async fn findings(&self) -> Vec<Value> {
        let handler_timeout = format!("--handler-timeout={}", self.handler_timeout);
        let arguments = [
            "--json",
            "doctor",
            NOT_OF_OTHER_TESTS,
            "--stuck-after=1s",
            &handler_timeout,
        ];
        let report = self.management_fixture.run(&arguments).await.json();
        report["findings"].as_array().unwrap().clone()
    }

    async fn run(&mut self, fix: &str) {
        let fixture = self.management_fixture;
        let command = fix.split("   # ").next().unwrap();
        let words = shell_words::split(command).unwrap();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words.as_slice() {
            ["rabbitmqctl", rest @ ..] => {
                fixture.broker().ctl(rest).await;
            }
            ["retryrmq", "consume", rest @ ..] => {
                if let Some(at) = rest.iter().position(|word| *word == "--timeout") {
                    self.handler_timeout = rest[at + 1].to_owned();
                }
                let mut arguments = vec!["consume"];
                arguments.extend(rest.iter().map(|word| match *word {
                    "./your-handler" => "true",
                    word => word,
                }));
                let mut command = fixture.command(&arguments);
                command.kill_on_drop(true);
                self.consumers.push(command.spawn().unwrap());
            }
            ["retryrmq", "enable", rest @ ..] => {
                let arguments = [&["enable", "--yes"], rest].concat();
                fixture.run(&arguments).await.exits(0);
            }
            ["retryrmq", rest @ ..] => {
                fixture.run(rest).await.exits(0);
            }
            // Version 2 of this program is no part of a broker: the same by other means.
            ["rabbitmqadmin", "--vhost", vhost, "declare", rest @ ..] => {
                assert_eq!(*vhost, fixture.fixture.vhost.name());
                match rest {
                    [
                        "exchange",
                        "--name",
                        name,
                        "--type",
                        "fanout",
                        "--durable",
                        "true",
                    ] => fixture.fanout(name).await,
                    [
                        "queue",
                        "--name",
                        name,
                        "--durable",
                        "true",
                        "--type",
                        "quorum",
                    ] => fixture.queue(name, json!({"x-queue-type": "quorum"})).await,
                    [
                        "binding",
                        "--source",
                        source,
                        "--destination-type",
                        "queue",
                        "--destination",
                        "QUEUE",
                        "--routing-key",
                        key,
                    ] => self.bind(source, key).await,
                    _ => panic!("{fix}"),
                }
            }
            _ => panic!("nobody can run {fix}"),
        }
    }

    async fn bind(&self, exchange: &str, key: &str) {
        let channel = self.management_fixture.fixture.amqp.new_channel().await;
        let options = QueueBindOptions::default();
        let bound = channel.queue_bind(
            DEAD.into(),
            exchange.into(),
            key.into(),
            options,
            FieldTable::default(),
        );
        bound.await.unwrap();
    }
}

#[tokio::test]
async fn every_printed_fix_mends_or_only_shows_something() {
    on_brokers(|broker| async move {
        if !broker.is_controllable() {
            return;
        }
        let management_fixture = ManagementFixture::of(&broker).await;
        let _faults = make_faults(&management_fixture).await;
        let mut mender = Mender {
            management_fixture: &management_fixture,
            handler_timeout: "1m".to_owned(),
            consumers: Vec::new(),
        };
        // Counts are renewed every few seconds.
        eventually(
            DEADLINE,
            "the doctor finds who does not consume",
            || async {
                let found: BTreeSet<_> = mender.findings().await.iter().map(key).collect();
                let name = |code: &str, name: &str| (code.to_owned(), name.to_owned());
                let is_seen = [name("RQ112", "unheard"), name("RQ111", "stock.retry.1000")]
                    .iter()
                    .all(|wanted| found.contains(wanted));
                is_seen.then_some(()).ok_or(format!("{found:?}"))
            },
        )
        .await;
        let mut mended: BTreeSet<(String, String)> = BTreeSet::new();
        loop {
            let mut findings = mender.findings().await;
            findings.sort_by_key(|finding| finding["severity"] != "error");
            // One of each queue at a time, as people do it.
            let (mut queues, mut these) = (BTreeSet::new(), BTreeSet::new());
            for finding in &findings {
                let fix = text(finding, "fix");
                if only_shows(fix) || !queues.insert(text(finding, "name").to_owned()) {
                    continue;
                }
                assert!(
                    mended.insert(key(finding)),
                    "it is found again after its fix: {finding:#}"
                );
                mender.run(fix).await;
                these.insert(key(finding));
            }
            if these.is_empty() {
                break;
            }
            eventually(DEADLINE, "what was mended is found no more", || async {
                let found: BTreeSet<_> = mender.findings().await.iter().map(key).collect();
                let left: Vec<_> = these.intersection(&found).cloned().collect();
                left.is_empty().then_some(()).ok_or(format!("{left:?}"))
            })
            .await;
        }
        let codes: BTreeSet<&str> = mended.iter().map(|(code, _)| code.as_str()).collect();
        for code in [
            "RQ101", "RQ102", "RQ103", "RQ105", "RQ107", "RQ110", "RQ111", "RQ112", "RQ113",
            "RQ121",
        ] {
            assert!(codes.contains(code), "{code} was not mended: {codes:?}");
        }
        for mut consumer in mender.consumers {
            consumer.kill().await.unwrap();
        }
    })
    .await;
}
