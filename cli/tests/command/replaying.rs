//! Replay in waves: killed at any moment, twice at once, at a rate, behind a canary, edited, and written down.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use retryrmq::{Client, types::AMQPValue};
use retryrmq_harness::{
    Amqp10, Broker, Message10, Policy, QueueType, Version, on_brokers, on_every_broker_where,
};
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    time::timeout,
};

use crate::{
    fixture::{CommandOutput, DEADLINE, Fixture, PARKED, QUEUE, finish},
    interrupted_walks::{code, parked, pid},
};

/// As many are on their way at a time.
const WAVE: usize = 64;

/// So many parked messages of a queue that is there.
pub(crate) async fn set_up(broker: &Broker, count: u32) -> Fixture {
    let fixture = Fixture::with_queue(broker).await;
    fixture.amqp.declare(PARKED, QueueType::Quorum).await;
    let messages = (1..=count).map(|number| {
        let properties = parked(&number.to_string(), 1_700_000_000, "no answer");
        (PARKED, format!("body {number}"), properties)
    });
    fixture.amqp.publish_all("", messages).await;
    fixture.holds(PARKED, count).await;
    fixture
}

/// How often each id stands in a queue.
async fn ids(fixture: &Fixture, queue: &str) -> BTreeMap<String, usize> {
    let mut ids = BTreeMap::new();
    for message in fixture.amqp.drain(queue).await {
        *ids.entry(message.id().unwrap().to_owned()).or_default() += 1;
    }
    ids
}

/// Every message is in the one queue or the other, and at most so many are there twice.
async fn accounts(fixture: &Fixture, count: u32, doubled: usize) {
    let (there, left) = (ids(fixture, QUEUE).await, ids(fixture, PARKED).await);
    let known: BTreeSet<_> = there.keys().chain(left.keys()).cloned().collect();
    assert_eq!(known.len(), count as usize, "some are lost");
    let total: usize = there.values().chain(left.values()).sum();
    let more = total - known.len();
    assert!(more <= doubled, "{more} are there twice, {doubled} may be");
}

#[tokio::test]
async fn a_replay_is_killed_with_its_broker_again_and_again_and_loses_nothing() {
    on_brokers(|broker| async move {
        if !broker.is_controllable() {
            return;
        }
        let count = std::env::var("RETRYRMQ_REPLAYS");
        let count = count.map_or(2_000, |count| count.parse().unwrap());
        let seed = std::env::var("RETRYRMQ_SEED");
        let seed = seed.map_or(15, |seed| seed.parse().unwrap());
        println!("RETRYRMQ_SEED={seed} RETRYRMQ_REPLAYS={count}");
        let mut random = fastrand::Rng::with_seed(seed);
        let node = broker.own_node(&[]).await;
        let mut fixture = set_up(&node, count).await;
        let mut faults = 0;
        for round in 0.. {
            let mut child = fixture
                .command(&["--json", "parked", "replay", QUEUE, "--all"])
                .spawn()
                .unwrap();
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
            let most = random.u32(0..=count / 6);
            let mut ended = false;
            for _ in 0..most {
                let line = timeout(DEADLINE, lines.next_line()).await.unwrap();
                ended = line.unwrap().is_none();
                if ended {
                    break;
                }
            }
            if ended {
                assert!(round > 0, "nothing was harmed");
                break;
            }
            faults += 1;
            if round % 4 == 1 {
                drop(lines); // nobody reads on, and a full pipe would hold it up
                node.kill().await;
                node.start().await;
                timeout(DEADLINE * 2, child.wait()).await.unwrap().unwrap();
                fixture.amqp = fixture.vhost.connect().await;
            } else {
                child.kill().await.unwrap();
            }
        }
        accounts(&fixture, count, faults * WAVE).await;
    })
    .await;
}

#[tokio::test]
async fn two_replays_at_once_lose_and_double_none() {
    on_brokers(|broker| async move {
        let fixture = set_up(&broker, 600).await;
        let arguments = ["parked", "replay", QUEUE, "--all"];
        let (one, other) = tokio::join!(fixture.run(&arguments), fixture.run(&arguments));
        for done in [one, other] {
            // Whoever met the other says so.
            assert!(matches!(done.status.code(), Some(0 | 6)), "{done:#?}");
        }
        let last = fixture.run(&arguments).await;
        assert!(matches!(last.status.code(), Some(0)), "{last:#?}");
        accounts(&fixture, 600, 0).await;
    })
    .await;
}

#[tokio::test]
async fn a_replay_that_is_interrupted_settles_what_went_and_says_what_remains() {
    on_brokers(|broker| async move {
        let fixture = set_up(&broker, 500).await;
        let audit = tempfile::tempdir().unwrap();
        let path = audit.path().join("audit").display().to_string();
        let mut child = fixture
            .command(&[
                "parked",
                "replay",
                QUEUE,
                "--all",
                "--rate=20/s",
                "--audit",
                &path,
            ])
            .spawn()
            .unwrap();
        retryrmq_harness::eventually(DEADLINE, "some went", || async {
            fixture
                .amqp
                .depth(QUEUE)
                .await
                .is_some_and(|depth| depth >= 20)
        })
        .await;
        kill_process(pid(&child), Signal::INT).unwrap();
        let err = child.stderr.take().unwrap();
        assert_eq!(code(&mut child).await, Some(130));
        let mut said = String::new();
        let mut lines = BufReader::new(err).lines();
        while let Some(line) = lines.next_line().await.unwrap() {
            said.push_str(&line);
        }
        let went = fixture.amqp.depth(QUEUE).await.unwrap();
        assert!(
            said.contains(&format!("{went} messages replayed to orders"))
                && said.contains(&format!("stopped, {} remain in orders.parked", 500 - went)),
            "{said}"
        );
        fixture.holds(PARKED, 500 - went).await;
        let lines = std::fs::read_to_string(&path).unwrap();
        let replayed = lines
            .lines()
            .filter(|line| line.contains("\"event\":\"replayed\""));
        assert_eq!(replayed.count(), went as usize);
        accounts(&fixture, 500, 0).await;
    })
    .await;
}

#[tokio::test]
async fn the_rest_follows_only_a_canary_that_lives() {
    on_brokers(|broker| async move {
        let fixture = set_up(&broker, 30).await;
        let canary = [
            "parked",
            "replay",
            QUEUE,
            "--all",
            "--canary=3",
            "--canary-wait=8s",
            "--retry=fixed(1h, retries=3)",
        ];
        // Nobody consumes it.
        let done = fixture.run(&canary).await.exits(1);
        assert!(done.err.contains("nobody consumes orders"), "{done:#?}");
        fixture.holds(PARKED, 27).await;
        let mut broken = fixture.start(
            &["--retry=fixed(1h, retries=0)"],
            "echo; echo boom >&2; exit 65",
        );
        for _ in 0..3 {
            broken.line().await;
        }
        fixture.holds(PARKED, 30).await;
        let done = fixture.run(&canary).await.exits(1);
        assert!(
            done.err.contains("parked again (boom")
                && done.err.contains("the rest was not replayed"),
            "{done:#?}"
        );
        fixture.holds(QUEUE, 0).await;
        fixture.holds(PARKED, 30).await;
        broken.signal(Signal::TERM);
        broken.end().await;
        let mended = fixture.start(&[], "exit 0");
        retryrmq_harness::eventually(DEADLINE, "it consumes", || async {
            fixture.amqp.consumers(QUEUE).await == Some(1)
        })
        .await;
        let done = fixture.run(&canary).await.exits(0);
        assert!(done.err.contains("30 messages replayed"), "{done:#?}");
        fixture.holds(PARKED, 0).await;
        mended.signal(Signal::TERM);
        mended.end().await;
    })
    .await;
}

/// Failures wait where only the management API sees them, or where nobody does.
#[tokio::test]
async fn a_canary_does_not_live_where_nobody_can_tell() {
    on_brokers(|broker| async move {
        let fixture = set_up(&broker, 30).await;
        let failing = fixture.start(&["--retry=fixed(37s, retries=3)"], "exit 1");
        retryrmq_harness::eventually(DEADLINE, "it consumes", || async {
            fixture.amqp.consumers(QUEUE).await == Some(1)
        })
        .await;
        let replay = |more: &[&str]| {
            let all = [
                "parked",
                "replay",
                QUEUE,
                "--all",
                "--limit=30",
                "--canary=3",
                "--canary-wait=8s",
            ];
            [&all[..], more]
                .concat()
                .into_iter()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let run = async |more: &[&str], code| {
            let arguments = replay(more);
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            fixture.run(&arguments).await.exits(code).err
        };
        // Nobody answers there.
        let nowhere = "--management=http://127.0.0.1:1";
        let output = run(&[nowhere], 1).await;
        assert!(
            output.contains("cannot tell whether the first 3 succeed"),
            "{output}"
        );
        fixture.holds(PARKED, 27).await;
        for seen in [
            "--retry=fixed(37s)".to_owned(),
            format!("--management={}", broker.management().url()),
        ] {
            let output = run(&[&seen], 1).await;
            assert!(
                output.contains("wait for a retry in the waiting queues"),
                "{seen}: {output}"
            );
        }
        fixture.holds(PARKED, 21).await;
        failing.signal(Signal::TERM);
        failing.end().await;
        let mended = fixture.start(&[], "exit 0");
        retryrmq_harness::eventually(DEADLINE, "it consumes", || async {
            fixture.amqp.consumers(QUEUE).await == Some(1)
        })
        .await;
        let output = run(&[nowhere, "--canary-unknown=continue"], 0).await;
        assert!(
            output.contains("but nobody can tell") && output.contains("21 messages replayed"),
            "{output}"
        );
        fixture.holds(PARKED, 0).await;
        mended.signal(Signal::TERM);
        mended.end().await;
    })
    .await;
}

#[tokio::test]
async fn a_canary_that_is_parked_elsewhere_does_not_live() {
    on_brokers(|broker| async move {
        let fixture = set_up(&broker, 20).await;
        let (other, parked) = ("orders-v2", "orders-v2.parked");
        fixture.amqp.declare(other, QueueType::Classic).await;
        let broken = fixture.start_with(&[
            "consume",
            other,
            "--dlx",
            "--retry=fixed(1h, retries=0)",
            "--",
            "sh",
            "-c",
            "exit 65",
        ]);
        // When it has parked one, it consumes.
        fixture.amqp.publish(other, "first").await;
        fixture.holds(parked, 1).await;
        let replay = [
            "parked",
            "replay",
            QUEUE,
            "--all",
            "--to",
            other,
            "--canary=3",
            "--canary-wait=8s",
            "--retry=fixed(1h, retries=0)",
        ];
        let done = fixture.run(&replay).await.exits(1);
        assert!(
            done.err.contains("are in orders-v2.parked") && done.err.contains("more than before"),
            "{done:#?}"
        );
        fixture.holds(parked, 4).await;
        fixture.holds(PARKED, 17).await;
        broken.signal(Signal::TERM);
        broken.end().await;
    })
    .await;
}

/// Quorum queues of 4.x hand out what has a priority of 5 and more first: what is parked again at once would be replayed for ever, and
/// the others never.
#[tokio::test]
async fn what_is_parked_again_at_once_is_replayed_once() {
    const NORMAL: u32 = 240;
    const ALL: u32 = NORMAL + 20;
    on_brokers(|broker| async move {
        let fixture = set_up(&broker, NORMAL).await;
        let urgent = (NORMAL + 1..=ALL).map(|number| {
            let properties = parked(&number.to_string(), 1_700_000_000, "no answer");
            (
                PARKED,
                format!("body {number}"),
                properties.with_priority(9),
            )
        });
        fixture.amqp.publish_all("", urgent).await;
        fixture.holds(PARKED, ALL).await;
        let client = Client::connect(fixture.vhost.url()).await.unwrap();
        let attempts = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&attempts);
        let consumer = client
            .consumer(QUEUE)
            .dlx(true)
            .retry("fixed(1h, retries=0)".parse().unwrap());
        let running = consumer.start(move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            std::future::ready(Err(std::io::Error::other("again")))
        });
        let running = running.await.unwrap();
        let replay = ["parked", "replay", QUEUE, "--all", "--json"];
        let done = fixture.run(&replay).await.exits(0);
        let output = done.lines();
        let replayed = output.iter().filter(|line| line["outcome"] == "replayed");
        assert_eq!(replayed.count(), ALL as usize);
        fixture.holds(PARKED, ALL).await;
        running.close().await;
        assert_eq!(attempts.load(Ordering::SeqCst), ALL);
        let parked = ids(&fixture, PARKED).await;
        assert!(
            parked.len() == ALL as usize && parked.values().all(|times| *times == 1),
            "{parked:?}"
        );
        client.close().await;
    })
    .await;
}

/// Runs a command with an editor.
pub(crate) async fn edit(
    fixture: &Fixture,
    editor: &str,
    arguments: &[&str],
) -> crate::fixture::CommandOutput {
    let mut command = fixture.command(arguments);
    command.env_remove("VISUAL").env("EDITOR", editor);
    finish(command, None).await
}

#[tokio::test]
async fn an_edited_message_goes_as_it_was_saved_and_any_other_stays() {
    on_brokers(|broker| async move {
        let fixture = set_up(&broker, 1).await;
        let long = "x".repeat(200_000);
        let mut properties = parked("long", 1_700_000_001, "no customer");
        let mut headers = properties.headers().clone().unwrap();
        headers.insert("size".into(), AMQPValue::ShortInt(7));
        properties = properties.with_headers(headers);
        let body = format!("{{\"id\": 17, \"rest\": \"{long}\"}}");
        fixture.amqp.publish_with(PARKED, &body, properties).await;
        fixture
            .amqp
            .publish_with(
                PARKED,
                vec![0, 159, 13],
                parked("binary", 1_700_000_002, "x"),
            )
            .await;
        fixture.holds(PARKED, 3).await;
        let replay = |id| ["--json", "parked", "replay", QUEUE, id, "--edit"];
        // Not changed, an editor that fails, and what is no message.
        let done = edit(&fixture, "true", &replay("long")).await.exits(0);
        assert_eq!(done.json()["outcome"], "unchanged");
        edit(&fixture, "false", &replay("long")).await.exits(1);
        edit(&fixture, "no-such-editor", &replay("long"))
            .await
            .exits(2);
        let done = edit(&fixture, "sed -i s/properties/{/", &replay("long"))
            .await
            .exits(2);
        let fault: Value = serde_json::from_str(&done.err).unwrap();
        let (_, kept) = fault["error"]
            .as_str()
            .unwrap()
            .split_once("is in ")
            .unwrap();
        let kept = kept.split(';').next().unwrap();
        assert!(std::fs::read_to_string(kept).unwrap().contains(&long));
        std::fs::remove_file(kept).unwrap();
        fixture.holds(PARKED, 3).await;
        fixture.holds(QUEUE, 0).await;
        let editor = "sed -i -e 's/\"id\": 17/\"id\": 18/' -e 's/\"$int16\": 7/\"$int16\": 8/'";
        let done = edit(&fixture, editor, &replay("long")).await.exits(0);
        assert_eq!(
            (&done.json()["outcome"], &done.json()["edited"]),
            (&json!("replayed"), &json!(true))
        );
        edit(&fixture, "sed -i s/AJ8N/AJ8O/", &replay("binary"))
            .await
            .exits(0);
        fixture.holds(PARKED, 1).await;
        let there = fixture.amqp.drain(QUEUE).await;
        assert_eq!(there[0].text(), body.replace("17", "18"));
        assert_eq!(there[0].header("size"), Some(AMQPValue::ShortInt(8)));
        assert_eq!(there[0].header_int("x-retry-replays"), Some(1));
        assert_eq!(there[0].header("x-retry-count"), None);
        assert_eq!(there[1].body, [0, 159, 14]);
    })
    .await;
}

#[tokio::test]
async fn what_is_written_down_is_what_happened() {
    on_brokers(|broker| async move {
        let fixture = set_up(&broker, 3).await;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit").display().to_string();
        let nowhere = folder.path().display().to_string();
        for arguments in [
            &["parked", "replay", QUEUE, "--all", "--audit", &nowhere][..],
            &[
                "parked",
                "drop",
                QUEUE,
                "--all",
                "--yes",
                "--audit",
                "/dev/full",
            ],
        ] {
            let done = fixture.run(arguments).await.exits(1);
            assert!(done.err.contains("nothing was done"), "{done:#?}");
        }
        fixture.holds(PARKED, 3).await;
        fixture
            .run(&[
                "parked",
                "replay",
                QUEUE,
                "1",
                "--keep-count",
                "--audit",
                &path,
            ])
            .await
            .exits(0);
        fixture
            .run(&["parked", "drop", QUEUE, "2", "--yes", "--audit", &path])
            .await
            .exits(0);
        fixture
            .run(&[
                "parked",
                "replay",
                QUEUE,
                "3",
                "--dry-run",
                "--audit",
                &path,
            ])
            .await
            .exits(0);
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let output: Vec<_> = lines
            .iter()
            .map(|line| {
                (
                    line["event"].as_str().unwrap(),
                    line["message_id"].as_str(),
                    line["to"].as_str(),
                )
            })
            .collect();
        assert_eq!(
            output,
            [
                ("begun", None, None),
                ("replayed", Some("1"), Some(QUEUE)),
                ("begun", None, None),
                ("dropped", Some("2"), None),
            ]
        );
        let message = fixture.amqp.take(QUEUE).await.unwrap();
        assert_eq!(message.header_int("x-retry-count"), Some(5));
        fixture.holds(PARKED, 1).await;
        tokio::time::timeout(Duration::from_secs(60), fixture.holds(QUEUE, 0))
            .await
            .unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_message_whose_queue_is_refused_stays_and_the_others_go_as_the_rehearsal_said() {
    on_brokers(|broker| async move {
        let fixture = set_up(&broker, 3).await;
        // The broker dead-letters it out of a queue that takes no replays.
        let report = "retryrmq.serve.report";
        let route = json!({
            "message-ttl": 1, "dead-letter-exchange": "", "dead-letter-routing-key": PARKED,
        });
        let policy = Policy::new("^retryrmq[.]serve[.]", route);
        fixture.vhost.put_policy("dead", &policy).await.unwrap();
        fixture.amqp.declare(report, QueueType::Classic).await;
        fixture.amqp.publish(report, "alone").await;
        fixture.holds(PARKED, 4).await;
        let outcomes = |done: &CommandOutput| {
            let mut outcomes: Vec<_> = done
                .lines()
                .iter()
                .map(|line| line["outcome"].as_str().unwrap().to_owned())
                .collect();
            outcomes.sort_unstable();
            outcomes
        };
        let all = ["--json", "parked", "replay", QUEUE, "--all"];
        // A queue that is refused to all of them ends it at the first.
        for to in ["retryrmq.intake", PARKED, "other.parked"] {
            for dry in [&["--dry-run"][..], &[]] {
                let done = fixture.run(&[&all[..], &["--to", to], dry].concat()).await;
                let done = done.exits(2);
                assert!(!done.out.contains("would be replayed"), "{done:#?}");
            }
        }
        let done = fixture
            .run(&[&all[..], &["--dry-run"]].concat())
            .await
            .exits(1);
        let would = ["would be refused"; 1]
            .iter()
            .chain(&["would be replayed"; 3]);
        assert!(outcomes(&done).iter().eq(would), "{done:#?}");
        assert!(
            done.err.contains("belongs to `retryrmq serve`"),
            "{done:#?}"
        );
        assert!(
            done.err.contains("3 messages would be replayed"),
            "{done:#?}"
        );
        fixture.holds(PARKED, 4).await;
        let done = fixture.run(&all).await.exits(1);
        let did = ["refused"; 1].iter().chain(&["replayed"; 3]);
        assert!(outcomes(&done).iter().eq(did), "{done:#?}");
        assert!(done.err.contains("3 messages replayed"), "{done:#?}");
        fixture.holds(PARKED, 1).await;
        fixture.holds(QUEUE, 3).await;
    })
    .await;
}

/// No broker takes the copy of such a message with that property.
#[tokio::test]
async fn what_a_rehearsal_says_of_a_message_that_asks_for_direct_replies_is_done() {
    on_every_broker_where(
        |broker| broker.version() >= Version::V4_0,
        |broker| async move {
            let fixture = Fixture::with_queue(&broker).await;
            fixture.amqp.declare(PARKED, QueueType::Quorum).await;
            let message = Message10::new("x")
                .id("asks")
                .reply_to("amq.rabbitmq.reply-to");
            let mut publisher = Amqp10::connect(&fixture.vhost).await;
            publisher
                .publish(&format!("/queues/{PARKED}"), &message)
                .await;
            fixture.holds(PARKED, 1).await;
            let replay = ["parked", "replay", QUEUE, "--all"];
            let rehearsal = [&replay[..], &["--dry-run"]].concat();
            fixture.run(&rehearsal).await.exits(0);
            fixture.run(&replay).await.exits(0);
            fixture.holds(PARKED, 0).await;
            let sent = fixture.amqp.take(QUEUE).await.unwrap();
            assert_eq!(sent.id(), Some("asks"));
            let kept = sent.header_text("x-retry-reply-to");
            assert_eq!(kept.as_deref(), Some("amq.rabbitmq.reply-to"));
        },
    )
    .await;
}
