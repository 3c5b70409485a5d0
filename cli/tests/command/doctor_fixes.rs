//! Every fix that the doctor prints is run: what it mends is found no more, and what mends nothing only shows something and says what to do.

use std::collections::BTreeSet;

use lapin::{
    options::{QueueBindOptions, QueueDeclareOptions},
    types::FieldTable,
};
use retryrmq_harness::{Version, eventually, on_brokers, on_brokers_where, on_every_broker};
use serde_json::{Value, json};
use tokio::process::Child;

use crate::{
    doctor::make_faults,
    fixture::DEADLINE,
    management_fixture::{ManagementFixture, NOT_OF_OTHER_TESTS, found},
};

/// Where dead letters may end, in place of the queue that a fix leaves to its reader.
const DEAD: &str = "dead";

/// What is left to people: these commands change nothing.
fn only_shows(fix: &str) -> bool {
    ["rabbitmqctl list_", "retryrmq unreadable ls "]
        .iter()
        .any(|begin| fix.starts_with(begin))
}

/// The command of a fix, and what its comment says.
fn parts(fix: &str) -> (&str, &str) {
    fix.split_once("   # ").unwrap_or((fix, ""))
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
        for command in parts(fix).0.split(" && ") {
            self.run_one(command).await;
        }
    }

    async fn run_one(&mut self, command: &str) {
        let fixture = self.management_fixture;
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
            ["retryrmq", command @ ("enable" | "disable"), rest @ ..] => {
                let arguments = [&[*command, "--yes"], rest].concat();
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
                    _ => panic!("{command}"),
                }
            }
            _ => panic!("nobody can run {command}"),
        }
    }

    /// Runs the fixes, until what is left needs people. What was mended.
    async fn mend_all(&mut self) -> BTreeSet<(String, String)> {
        let mut mended: BTreeSet<(String, String)> = BTreeSet::new();
        loop {
            let mut findings = self.findings().await;
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
                self.run(fix).await;
                these.insert(key(finding));
            }
            if these.is_empty() {
                return mended;
            }
            eventually(DEADLINE, "what was mended is found no more", || async {
                let found: BTreeSet<_> = self.findings().await.iter().map(key).collect();
                let left: Vec<_> = these.intersection(&found).cloned().collect();
                left.is_empty().then_some(()).ok_or(format!("{left:?}"))
            })
            .await;
        }
    }

    /// What no command mends says what to do, and the command that it prints works. The codes of these findings.
    async fn look_at_the_rest(&mut self) -> BTreeSet<String> {
        let (mut codes, mut commands) = (BTreeSet::new(), BTreeSet::new());
        for finding in self.findings().await {
            let (command, comment) = parts(text(&finding, "fix"));
            assert!(
                !comment.is_empty(),
                "it says nothing of what to do: {finding:#}"
            );
            codes.insert(text(&finding, "code").to_owned());
            if commands.insert(command.to_owned()) {
                self.run_one(command).await;
            }
        }
        codes
    }

    async fn end(self) {
        for mut consumer in self.consumers {
            consumer.kill().await.unwrap();
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
        let mended = mender.mend_all().await;
        let codes: BTreeSet<&str> = mended.iter().map(|(code, _)| code.as_str()).collect();
        for code in [
            "RQ101", "RQ102", "RQ103", "RQ105", "RQ107", "RQ108", "RQ110", "RQ111", "RQ112",
            "RQ113", "RQ121",
        ] {
            assert!(codes.contains(code), "{code} was not mended: {codes:?}");
        }
        let rest = mender.look_at_the_rest().await;
        for code in [
            "RQ104", "RQ106", "RQ109", "RQ114", "RQ118", "RQ119", "RQ122", "RQ124",
        ] {
            assert!(
                rest.contains(code),
                "{code} was not left to people: {rest:?}"
            );
        }
        mender.end().await;
    })
    .await;
}

/// Puts faults into a virtual host whose cause is a policy. What it returns holds a consumer.
async fn make_faults_of_policies(management_fixture: &ManagementFixture) -> impl Sized {
    let fixture = management_fixture;
    let version = fixture.broker().version();
    for name in [DEAD, "slow.parked"] {
        let limit = json!({"x-delivery-limit": 1_000_000_000});
        fixture.queue(name, limit).await;
    }
    // A circle by time alone. Whoever is worked on keeps no time.
    let time = json!({"x-message-ttl": 600_000});
    fixture.routed("ping", "pong", time.clone()).await;
    fixture.routed("pong", "ping", json!({})).await;
    let time_alone = json!({"message-ttl": 600_000});
    fixture.policy("time", "^pong$", 0, time_alone).await;
    let worked_on = fixture.fixture.amqp.consume("pong", 5).await;
    fixture.routed("slow", "slow.parked", json!({})).await;
    let wait = json!({"x-message-ttl": 5000});
    fixture.routed("slow.retry.5000", "slow", wait).await;
    let expires = json!({"expires": 3_600_000});
    fixture.policy("tidy", "^slow.retry", 0, expires).await;
    let classic = json!({"x-queue-type": "classic"});
    fixture.routed("circling", "circling-away", classic).await;
    fixture
        .routed("circling-away", "circling", time.clone())
        .await;
    fixture
        .policy("short", "^circling$", 0, json!({"max-length": 5}))
        .await;
    fixture.routed("crashing", "crashing-away", json!({})).await;
    fixture.routed("crashing-away", "crashing", time).await;
    let limits = json!({"delivery-limit": 3, "max-length": 5});
    fixture.policy("few", "^crashing$", 0, limits).await;
    // Policies of `enable`: its base has changed, somebody has changed it, and its queue is gone.
    for name in ["based", "bent", "gone", "elsewhere"] {
        let keys = json!({"max-length": 1000, "overflow": "reject-publish"});
        fixture.policy(name, &format!("^{name}$"), 0, keys).await;
        fixture.queue(name, json!({})).await;
        let to = if name == "elsewhere" { DEAD } else { "" };
        let mut enable = vec!["enable", "--yes", name];
        if !to.is_empty() {
            enable.extend(["--to", to]);
        }
        fixture.run(&enable).await.exits(0);
    }
    for name in ["based", "elsewhere"] {
        let keys = json!({"max-length": 2000, "overflow": "reject-publish"});
        fixture.policy(name, &format!("^{name}$"), 0, keys).await;
    }
    let bent = policy_of_enable(fixture, "bent").await;
    let keys = json!({"max-length": 1, "overflow": "reject-publish", "dead-letter-exchange": "", "dead-letter-routing-key": "bent.parked"});
    fixture.policy(&bent, "^bent$", 1, keys).await;
    fixture.fixture.amqp.delete("gone").await;
    if version >= Version::V4_0 {
        fixture.routed("brief", DEAD, json!({})).await;
        let timeout = json!({"consumer-timeout": 30_000});
        fixture.policy("brief", "^brief$", 0, timeout).await;
    }
    if version >= Version::V4_3 {
        for name in ["off", "hasty"] {
            let native = ["--strategy=native", "--retry=fixed(5s)", "--apply"];
            let apply = [&["topology", name], &native[..]].concat();
            fixture.run(&apply).await.exits(0);
        }
        let off = json!({"delayed-retry-type": "disabled"});
        fixture.policy("off", "^off$", 0, off).await;
        let short = json!({"delayed-retry-min": 1, "delayed-retry-max": 1});
        fixture.policy("hasty", "^hasty$", 0, short).await;
    }
    worked_on
}

/// The name of the policy that `enable` made for a queue.
async fn policy_of_enable(fixture: &ManagementFixture, queue: &str) -> String {
    let path = format!("policies/{}", fixture.fixture.vhost.name());
    let policies = fixture.broker().management().get(path).await.unwrap();
    let names = policies.as_array().unwrap().iter();
    let mut names = names.map(|policy| policy["name"].as_str().unwrap());
    let made = names
        .find(|name| name.starts_with("retryrmq.enable.") && name.ends_with(&format!(".{queue}")));
    made.unwrap_or_else(|| panic!("{policies:#}")).to_owned()
}

#[tokio::test]
async fn every_printed_fix_of_what_a_policy_does_mends() {
    on_every_broker(|broker| async move {
        if !broker.is_controllable() {
            return;
        }
        let management_fixture = ManagementFixture::of(&broker).await;
        let _worked_on = make_faults_of_policies(&management_fixture).await;
        let mut expected: BTreeSet<(&str, String)> = [
            ("RQ104", "ping"),
            ("RQ109", "slow.retry.5000"),
            ("RQ118", "crashing"),
        ]
        .map(|(code, name)| (code, name.to_owned()))
        .into();
        for queue in ["based", "bent", "gone", "elsewhere"] {
            expected.insert(("RQ120", policy_of_enable(&management_fixture, queue).await));
        }
        if broker.version() >= Version::V4_0 {
            expected.insert(("RQ115", "brief".to_owned()));
        }
        if broker.version() >= Version::V4_3 {
            for name in ["off", "hasty"] {
                expected.insert(("RQ123", name.to_owned()));
            }
        }
        let mut mender = Mender {
            management_fixture: &management_fixture,
            handler_timeout: "1m".to_owned(),
            consumers: Vec::new(),
        };
        eventually(DEADLINE, "the doctor finds what policies do", || async {
            let found: BTreeSet<_> = mender.findings().await.iter().map(key).collect();
            let missing = expected
                .iter()
                .find(|(code, name)| !found.contains(&((*code).to_owned(), name.clone())));
            match missing {
                None => Ok(()),
                Some(missing) => Err(format!("{missing:?} of {found:?}")),
            }
        })
        .await;
        let mended = mender.mend_all().await;
        for (code, name) in expected {
            let is_mended = mended.contains(&(code.to_owned(), name.clone()));
            assert!(is_mended, "{code} {name} was not mended: {mended:?}");
        }
        assert_eq!(mender.handler_timeout, "1m", "policies are what is mended");
        // Dead letters go where they went.
        let elsewhere = policy_of_enable(&management_fixture, "elsewhere").await;
        let path = format!(
            "policies/{}/{elsewhere}",
            management_fixture.fixture.vhost.name()
        );
        let policy = broker.management().get(path).await.unwrap();
        assert_eq!(policy["definition"]["dead-letter-routing-key"], DEAD);
        assert_eq!(policy["definition"]["max-length"], 2000);
        // A classic queue that refuses what is too much would drop what comes back.
        let rest = mender.look_at_the_rest().await;
        assert!(rest.contains("RQ118"), "{rest:?}");
        mender.end().await;
    })
    .await;
}

#[tokio::test]
async fn a_consumer_that_never_acknowledges_is_mended_by_ending_it() {
    on_brokers(|broker| async move {
        let management_fixture = ManagementFixture::of(&broker).await;
        management_fixture
            .queue(DEAD, json!({"x-delivery-limit": 1_000_000_000}))
            .await;
        management_fixture.routed("stuck", DEAD, json!({})).await;
        let program = management_fixture.fixture.vhost.connect().await;
        let _stuck = program.consume("stuck", 1).await;
        for body in ["one", "two"] {
            program.publish("stuck", body).await;
        }
        let stuck = found([("RQ114", "stuck")]);
        management_fixture
            .finds(&["--stuck-after=1s"], &stuck)
            .await;
        let done = management_fixture
            .run(&["doctor", NOT_OF_OTHER_TESTS, "--stuck-after=1s"])
            .await
            .exits(8);
        let words = "no command of the broker mends it: restart the program that holds them";
        assert!(done.out.contains(words), "{done:#?}");
        program.close().await;
        let unheard = found([("RQ112", "stuck")]);
        management_fixture
            .finds(&["--stuck-after=1s"], &unheard)
            .await;
    })
    .await;
}

#[tokio::test]
async fn a_deprecated_feature_is_mended_by_using_it_no_more() {
    on_brokers_where(
        |broker| broker.is_controllable() && broker.version() >= Version::V4_0,
        |broker| async move {
            // What one test uses, another would find.
            let node = broker.own_node(&[]).await;
            let management_fixture = ManagementFixture::of(&node).await;
            let amqp = &management_fixture.fixture.amqp;
            let channel = amqp.new_channel().await;
            let passing = channel.queue_declare(
                "passing".into(),
                QueueDeclareOptions::default(),
                FieldTable::default(),
            );
            passing.await.unwrap();
            let deprecated = || async {
                let report = management_fixture.run(&["--json", "doctor"]).await.json();
                let findings = report["findings"].as_array().unwrap().clone();
                let mut these = findings.into_iter().filter(|one| one["code"] == "RQ116");
                these.find(|one| one["name"] == "transient_nonexcl_queues")
            };
            let fix = eventually(DEADLINE, "the feature is found", || async {
                let found = deprecated().await.ok_or_else(|| "nothing".to_owned())?;
                Ok::<_, String>(text(&found, "fix").to_owned())
            })
            .await;
            let (command, comment) = parts(&fix);
            assert!(comment.contains("change the programs"), "{fix}");
            let words = shell_words::split(command).unwrap();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let shown = node.ctl(&words[1..]).await;
            assert!(shown.contains("transient_nonexcl_queues"), "{shown}");
            amqp.delete("passing").await;
            eventually(DEADLINE, "the feature is not found", || async {
                deprecated()
                    .await
                    .map_or(Ok(()), |one| Err(one.to_string()))
            })
            .await;
        },
    )
    .await;
}
