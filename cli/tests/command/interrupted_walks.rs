//! Walks through parked messages that are killed, interrupted, kept waiting or not listened to, and several at once:
//! nothing is lost, and nothing is dropped that was not named.

use std::{
    io::{Read, Write},
    process::Stdio,
    sync::{Arc, Mutex},
};

use retryrmq::types::{AMQPValue, FieldTable};
use retryrmq_harness::{Broker, Policy, QueueType, eventually, lapin::BasicProperties, on_brokers};
use rustix::{
    fs::OFlags,
    process::{Pid, Signal, kill_process},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    process::Child,
    time::timeout,
};

use crate::fixture::{DEADLINE, Fixture, PARKED, QUEUE};

/// A parked message, as a consumer of ours leaves it behind.
pub(crate) fn parked(id: &str, at: u64, error: &str) -> BasicProperties {
    let text = |text: &str| AMQPValue::LongString(text.into());
    let mut headers = FieldTable::default();
    headers.insert("x-retry-count".into(), AMQPValue::LongLongInt(5));
    headers.insert("x-retry-protocol".into(), AMQPValue::LongLongInt(1));
    headers.insert("x-retry-error".into(), text(error));
    headers.insert("x-retry-parked-reason".into(), text("exhausted"));
    headers.insert("x-retry-parked-at".into(), AMQPValue::Timestamp(at));
    BasicProperties::default()
        .with_message_id(id.into())
        .with_headers(headers)
}

/// So many parked messages, `1` the oldest, in a queue of others with an ordinary policy over it.
async fn set_up(broker: &Broker, count: u64) -> Fixture {
    let fixture = Fixture::of(broker).await;
    let policy = Policy::new(".*", json!({"delivery-limit": 3}));
    fixture.vhost.put_policy("limits", &policy).await.unwrap();
    fixture.amqp.declare(PARKED, QueueType::Quorum).await;
    let error = "no answer ".repeat(if count == MANY { 100 } else { 1 });
    let messages = (1..=count).map(|number| {
        let properties = parked(&number.to_string(), 1_700_000_000 + number, error.trim());
        (PARKED, format!("body {number}"), properties)
    });
    fixture.amqp.publish_all("", messages).await;
    fixture.holds(PARKED, u32::try_from(count).unwrap()).await;
    fixture
}

pub(crate) fn pid(child: &Child) -> Pid {
    child
        .id()
        .and_then(|id| Pid::from_raw(i32::try_from(id).unwrap()))
        .expect("it runs")
}

pub(crate) async fn code(child: &mut Child) -> Option<i32> {
    let status = timeout(DEADLINE, child.wait()).await.expect("it ends");
    status.unwrap().code()
}

/// So many, with long errors, say more than a pipe takes in: who does not read keeps the walk from its end.
const MANY: u64 = 90;

#[tokio::test]
async fn a_listing_that_is_killed_again_and_again_loses_nothing() {
    on_brokers(|broker| async move {
        let fixture = set_up(&broker, MANY).await;
        for _ in 0..25 {
            let mut child = fixture
                .command(&["--json", "parked", "ls", QUEUE])
                .spawn()
                .unwrap();
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
            let first = timeout(DEADLINE, lines.next_line()).await.unwrap().unwrap();
            let first: Value = serde_json::from_str(&first.unwrap()).unwrap();
            assert_eq!(first["message_id"], "1");
            child.kill().await.unwrap();
            fixture.holds(PARKED, u32::try_from(MANY).unwrap()).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_listing_that_is_signalled_ends_in_good_order() {
    on_brokers(|broker| async move {
        let fixture = set_up(&broker, MANY).await;
        for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
            for _ in 0..3 {
                let mut child = fixture
                    .command(&["--json", "parked", "ls", QUEUE])
                    .spawn()
                    .unwrap();
                let mut out = BufReader::new(child.stdout.take().unwrap());
                let mut first = String::new();
                timeout(DEADLINE, out.read_line(&mut first))
                    .await
                    .unwrap()
                    .unwrap();
                kill_process(pid(&child), signal).unwrap();
                // The signal is noted while the output is stuck.
                at_rest(pid(&child)).await;
                let mut rest = String::new();
                out.read_to_string(&mut rest).await.unwrap();
                assert_eq!(code(&mut child).await, Some(130), "{signal:?}");
                assert!((rest.lines().count() as u64) < MANY - 1, "it went on");
                fixture.holds(PARKED, u32::try_from(MANY).unwrap()).await;
            }
        }
    })
    .await;
}

/// Waits until a process has been told of its signals, and then has had nothing to do for a while, or has ended.
async fn at_rest(process: Pid) {
    let tasks = format!("/proc/{}/task", process.as_raw_nonzero());
    let rests = || {
        std::fs::read_dir(&tasks).unwrap().all(|task| {
            let status = std::fs::read_to_string(task.unwrap().path().join("status"));
            let status = status.unwrap_or_default();
            let holds = |name: &str, is: &dyn Fn(&str) -> bool| {
                let value = status.lines().find_map(|line| line.strip_prefix(name));
                value.is_none_or(|value| is(value.trim()))
            };
            let none = |signals: &str| signals.bytes().all(|digit| digit == b'0');
            holds("State:", &|state| state.starts_with(['S', 'Z']))
                && holds("SigPnd:", &none)
                && holds("ShdPnd:", &none)
        })
    };
    let mut looks = 0;
    eventually(DEADLINE, "it rests", || {
        looks = if rests() { looks + 1 } else { 0 };
        std::future::ready(looks >= 10)
    })
    .await;
}

/// A command at a terminal.
pub(crate) struct AtTerminal {
    pub(crate) child: Child,
    screen: Arc<Mutex<String>>,
    keyboard: std::fs::File,
}

impl AtTerminal {
    pub(crate) fn start(fixture: &Fixture, arguments: &[&str]) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let slave = rustix::fs::open(&name, flags, rustix::fs::Mode::empty()).unwrap();
        let copy = || Stdio::from(slave.try_clone().unwrap());
        let mut command = fixture.command(arguments);
        command.stdin(copy()).stderr(copy()).stdout(copy());
        let child = command.spawn().unwrap();
        let keyboard = std::fs::File::from(master);
        let screen = Arc::new(Mutex::new(String::new()));
        let (mut glass, shown) = (keyboard.try_clone().unwrap(), Arc::clone(&screen));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = glass.read(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
                shown.lock().unwrap().push_str(&text);
            }
        });
        Self {
            child,
            screen,
            keyboard,
        }
    }

    pub(crate) async fn shows(&self, words: &str) {
        eventually(DEADLINE, &format!("`{words}` on the screen"), || async {
            let screen = self.screen.lock().unwrap().clone();
            if screen.contains(words) {
                Ok(())
            } else {
                Err(screen)
            }
        })
        .await;
    }

    pub(crate) fn types(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).unwrap();
    }

    pub(crate) async fn at_its_prompt(fixture: &Fixture, arguments: &[&str]) -> Self {
        let terminal = Self::start(fixture, arguments);
        terminal.shows("[y/N]").await;
        terminal
    }
}

#[tokio::test]
async fn a_prompt_that_is_killed_again_and_again_loses_nothing() {
    on_brokers(|broker| async move {
        let fixture = set_up(&broker, 3).await;
        for _ in 0..22 {
            let mut prompt =
                AtTerminal::at_its_prompt(&fixture, &["parked", "drop", QUEUE, "--all"]).await;
            prompt.child.kill().await.unwrap();
            fixture.holds(PARKED, 3).await;
        }
        for signal in [Signal::INT, Signal::TERM, Signal::HUP].repeat(4) {
            let mut prompt =
                AtTerminal::at_its_prompt(&fixture, &["parked", "drop", QUEUE, "--all"]).await;
            kill_process(pid(&prompt.child), signal).unwrap();
            assert_eq!(code(&mut prompt.child).await, Some(130), "{signal:?}");
            fixture.holds(PARKED, 3).await;
        }
    })
    .await;
}

#[tokio::test]
async fn what_another_walk_holds_is_not_taken_for_gone() {
    on_brokers(|broker| async move {
        let fixture = set_up(&broker, 3).await;
        let mut prompt =
            AtTerminal::at_its_prompt(&fixture, &["parked", "drop", QUEUE, "#1"]).await;
        for arguments in [
            &["ls", QUEUE][..],
            &["ls", QUEUE, "--group"],
            &["show", QUEUE, "--all"],
            &["show", QUEUE, "2"],
            &["replay", QUEUE, "--all"],
            &["drop", QUEUE, "--all", "--yes"],
            &["drop", QUEUE, "2", "--yes"],
        ] {
            let mut all = vec!["parked"];
            all.extend(arguments);
            let done = fixture.run(&all).await.exits(6);
            assert!(
                done.err.contains("another consumer") && !done.err.contains("nothing is parked"),
                "{done:#?}"
            );
        }
        // The one that was shown is the one that goes.
        prompt.types("y\n");
        assert_eq!(code(&mut prompt.child).await, Some(0));
        prompt.shows("1 message dropped: 1").await;
        fixture.holds(PARKED, 2).await;
        let left = fixture
            .run(&["--json", "parked", "ls", QUEUE])
            .await
            .exits(0);
        let left: Vec<_> = left
            .lines()
            .iter()
            .map(|line| line["message_id"].clone())
            .collect();
        assert_eq!(left, ["2", "3"]);
    })
    .await;
}

#[tokio::test]
async fn a_place_alone_and_an_id_that_several_have_drop_nothing() {
    on_brokers(|broker| async move {
        let fixture = set_up(&broker, 3).await;
        let twin = parked("2", 1_700_000_009, "no customer");
        fixture.amqp.publish_with(PARKED, "another", twin).await;
        fixture.holds(PARKED, 4).await;
        let done = fixture
            .run(&["parked", "drop", QUEUE, "#1", "--yes"])
            .await
            .exits(2);
        assert!(done.err.contains("#1=MARK"), "{done:#?}");
        let lines = fixture
            .run(&["--json", "parked", "ls", QUEUE])
            .await
            .exits(0)
            .lines();
        let name = |index: usize| {
            let mark = lines[index]["mark"].as_str().unwrap();
            format!("#{}={}", index + 1, &mark[..8])
        };
        let done = fixture
            .run(&["parked", "drop", QUEUE, "2", "--yes"])
            .await
            .exits(2);
        assert!(
            done.err.contains(&name(1)) && done.err.contains(&name(3)),
            "{done:#?}"
        );
        fixture.holds(PARKED, 4).await;
        let table = fixture.run(&["parked", "ls", QUEUE]).await.exits(0);
        assert!(table.out.contains(&name(0)), "{}", table.out);
        fixture.holds(PARKED, 4).await;
        // A mark names its message although the place is another's by now.
        fixture
            .run(&["parked", "replay", QUEUE, "1", "--to=elsewhere"])
            .await
            .exits(3);
        fixture.amqp.declare("elsewhere", QueueType::Classic).await;
        fixture
            .run(&["parked", "replay", QUEUE, "1", "--to=elsewhere"])
            .await
            .exits(0);
        fixture.holds("elsewhere", 1).await;
        let done = fixture
            .run(&["parked", "drop", QUEUE, &name(1), "--yes"])
            .await
            .exits(0);
        assert!(done.err.contains("1 message dropped: 2"), "{done:#?}");
        let left = fixture
            .run(&["--json", "parked", "ls", QUEUE])
            .await
            .exits(0)
            .lines();
        let errors: Vec<_> = left
            .iter()
            .map(|line| (line["message_id"].as_str().unwrap(), &line["error"]))
            .collect();
        assert_eq!(
            errors,
            [("3", &json!("no answer")), ("2", &json!("no customer"))]
        );
        // Gone is gone, and a fingerprint guards the place only.
        fixture
            .run(&["parked", "drop", QUEUE, &name(1), "--yes"])
            .await
            .exits(3);
        let other = format!("#1={}", left[1]["fingerprint"].as_str().unwrap());
        fixture
            .run(&["parked", "drop", QUEUE, &other, "--yes"])
            .await
            .exits(3);
        let own = format!("#1={}", left[0]["fingerprint"].as_str().unwrap());
        fixture
            .run(&["parked", "drop", QUEUE, &own, "--yes"])
            .await
            .exits(0);
        fixture.holds(PARKED, 1).await;
    })
    .await;
}

#[tokio::test]
async fn a_name_that_may_mean_another_message_drops_nothing() {
    on_brokers(|broker| async move {
        let fixture = set_up(&broker, 0).await;
        for (id, tenant) in [("twin", "a"), ("twin", "b")] {
            let mut headers = parked(id, 1_700_000_000, "no customer");
            let mut table = headers.headers().clone().unwrap_or_default();
            table.insert("tenant".into(), AMQPValue::LongString(tenant.into()));
            headers = headers.with_headers(table);
            fixture.amqp.publish_with(PARKED, "the same", headers).await;
        }
        fixture.holds(PARKED, 2).await;
        let lines = fixture
            .run(&["--json", "parked", "ls", QUEUE])
            .await
            .exits(0)
            .lines();
        let word = |index: usize, key: &str| lines[index][key].as_str().unwrap().to_owned();
        assert_ne!(word(0, "mark"), word(1, "mark"), "another tenant");
        assert_eq!(word(0, "fingerprint"), word(1, "fingerprint"));
        // Both failed alike, so that the guard says nothing of which; a limit takes no second meaning away.
        let alike = format!("#2={}", word(1, "fingerprint"));
        for names in [[alike.as_str(), "--yes"], ["twin", "--yes"]] {
            let mut arguments = vec!["parked", "drop", QUEUE, "--limit=1"];
            arguments.extend(names);
            let done = fixture.run(&arguments).await.exits(2);
            assert!(done.err.contains("nothing was dropped"), "{done:#?}");
            fixture.holds(PARKED, 2).await;
        }
        let second = format!("#2={}", word(1, "mark"));
        fixture
            .run(&["parked", "drop", QUEUE, &second, "--yes"])
            .await
            .exits(0);
        let left = fixture
            .run(&["--json", "parked", "ls", QUEUE])
            .await
            .exits(0)
            .lines();
        assert_eq!(left.len(), 1);
        assert_eq!(left[0]["mark"].as_str().unwrap(), word(0, "mark"));
        let done = fixture
            .run(&["parked", "replay", QUEUE, "--fingerprint=ffffffff"])
            .await
            .exits(3);
        assert!(done.err.contains("fingerprint"), "{done:#?}");
    })
    .await;
}

#[tokio::test]
async fn one_that_cannot_go_home_keeps_no_other_from_it() {
    // Whoever made it wants the operator's terminal to do something.
    const GONE: &str = "gone\u{1b}]0;title\u{7}\u{9b}31m";
    on_brokers(|broker| async move {
        let fixture = set_up(&broker, 0).await;
        let mut arguments = FieldTable::default();
        arguments.insert("x-message-ttl".into(), AMQPValue::LongInt(1));
        arguments.insert(
            "x-dead-letter-exchange".into(),
            AMQPValue::LongString("".into()),
        );
        arguments.insert(
            "x-dead-letter-routing-key".into(),
            AMQPValue::LongString(PARKED.into()),
        );
        fixture
            .amqp
            .declare_with(GONE, QueueType::Classic, arguments)
            .await;
        fixture.amqp.publish(GONE, "an orphan").await;
        fixture.holds(PARKED, 1).await;
        fixture.amqp.delete(GONE).await;
        fixture.amqp.declare("elsewhere", QueueType::Classic).await;
        for id in ["1", "2"] {
            // Later than any real clock.
            let headers = parked(id, 4_000_000_000, "no customer");
            fixture.amqp.publish_with(PARKED, id, headers).await;
        }
        fixture.holds(PARKED, 3).await;
        let reserved = fixture
            .run(&["parked", "replay", QUEUE, "--all", "--to", PARKED])
            .await
            .exits(2);
        assert!(reserved.err.contains(QUEUE), "{reserved:#?}");
        fixture.holds(PARKED, 3).await;
        fixture.amqp.declare(QUEUE, QueueType::Classic).await;
        let done = fixture.run(&["parked", "replay", QUEUE, "--all"]).await;
        assert!(
            done.err.contains("2 messages replayed") && done.err.contains("gone"),
            "{done:#?}"
        );
        fixture.holds(PARKED, 1).await;
        fixture.holds(QUEUE, 2).await;
        let all = ["--json", "parked", "replay", QUEUE, "--all"];
        let json = fixture.run(&all).await;
        assert!(json.err.contains("gone"), "{json:#?}");
        let list = fixture
            .run(&["--json", "parked", "ls", QUEUE])
            .await
            .exits(0);
        assert_eq!(list.lines()[0]["home"], GONE, "{list:#?}");
        let obeyed = ['\u{1b}', '\u{7}', '\u{9b}'];
        for text in [&done.err, &json.err, &list.out] {
            assert!(!text.contains(obeyed), "{text:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn the_order_is_that_of_time() {
    on_brokers(|broker| async move {
        let fixture = set_up(&broker, 40).await;
        for number in 41..=45_u64 {
            let name = number.to_string();
            let properties = parked(&name, 1_700_000_000 + number, "urgent").with_priority(9);
            fixture.amqp.publish_with(PARKED, name, properties).await;
        }
        fixture.holds(PARKED, 45).await;
        for limit in ["--limit=44", "--limit=7", "--limit=0"] {
            let lines = fixture
                .run(&["--json", "parked", "ls", QUEUE, limit])
                .await
                .exits(0)
                .lines();
            for (index, line) in lines.iter().enumerate() {
                assert_eq!(
                    (&line["place"], &line["message_id"]),
                    (&json!(index + 1), &json!((index + 1).to_string()))
                );
            }
        }
        let first = fixture
            .run(&["--json", "parked", "show", QUEUE, "#1"])
            .await
            .exits(0);
        assert_eq!(first.json()["message_id"], "1");
        fixture.amqp.declare(QUEUE, QueueType::Classic).await;
        let some = fixture
            .run(&["--json", "parked", "replay", QUEUE, "--all", "--limit=3"])
            .await
            .exits(0);
        let some: Vec<_> = some
            .lines()
            .iter()
            .map(|line| line["message_id"].clone())
            .collect();
        assert_eq!(some, ["1", "2", "3"]);
    })
    .await;
}

#[tokio::test]
async fn nobody_listening_stops_no_replay() {
    on_brokers(|broker| async move {
        let fixture = set_up(&broker, MANY).await;
        fixture.amqp.declare(QUEUE, QueueType::Classic).await;
        let mut child = fixture
            .command(&["--json", "parked", "replay", QUEUE, "--all"])
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        timeout(DEADLINE, lines.next_line()).await.unwrap().unwrap();
        drop(lines);
        let mut err = String::new();
        let mut said = child.stderr.take().unwrap();
        said.read_to_string(&mut err).await.unwrap();
        assert_eq!(code(&mut child).await, Some(0));
        let told: Value = serde_json::from_str(&err).unwrap();
        assert_eq!(told["replayed"], MANY, "{err}");
        fixture.holds(QUEUE, u32::try_from(MANY).unwrap()).await;
        fixture.holds(PARKED, 0).await;
    })
    .await;
}

#[tokio::test]
async fn a_full_disk_stops_no_replay_and_is_told() {
    on_brokers(|broker| async move {
        let fixture = set_up(&broker, 5).await;
        fixture.amqp.declare(QUEUE, QueueType::Classic).await;
        let full = std::fs::OpenOptions::new()
            .write(true)
            .open("/dev/full")
            .unwrap();
        let mut command = fixture.command(&["--json", "parked", "replay", QUEUE, "--all"]);
        let child = command.stdout(full).spawn().unwrap();
        let done = timeout(DEADLINE, child.wait_with_output())
            .await
            .unwrap()
            .unwrap();
        let err = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(1), "{err}");
        assert!(
            err.contains("5 messages replayed") && err.contains("cannot write"),
            "{err}"
        );
        fixture.holds(QUEUE, 5).await;
    })
    .await;
}

#[tokio::test]
async fn a_parking_queue_that_may_lose_is_warned_of() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        let mut arguments = FieldTable::default();
        arguments.insert("x-max-length".into(), AMQPValue::LongLongInt(1));
        arguments.insert("x-message-ttl".into(), AMQPValue::LongLongInt(3_000_000));
        fixture
            .amqp
            .declare_with(PARKED, QueueType::Classic, arguments)
            .await;
        let warned = |done: crate::fixture::CommandOutput| {
            assert!(
                done.err.contains("orders.parked")
                    && done.err.contains("somebody else")
                    && (done.err.contains("x-max-length") || done.err.contains("x-message-ttl")),
                "{done:#?}"
            );
        };
        warned(
            fixture
                .run(&["topology", QUEUE, "--retry=fixed(1h)", "--apply"])
                .await
                .exits(0),
        );
        warned(
            fixture
                .run(&["topology", QUEUE, "--retry=fixed(1h)"])
                .await
                .exits(0),
        );
        warned(fixture.run(&["parked", "ls", QUEUE]).await.exits(0));
        fixture.amqp.publish(QUEUE, "x").await;
        warned(
            fixture
                .consume(1, &["--retry=fixed(1h)"], "true")
                .await
                .exits(0),
        );
        // Ours is fine, of either type.
        for kind in ["quorum", "classic"] {
            let other = Fixture::with_queue(&broker).await;
            let kind = format!("--queue-type={kind}");
            for _ in 0..2 {
                let done = other
                    .run(&["topology", QUEUE, "--retry=fixed(1h)", &kind, "--apply"])
                    .await
                    .exits(0);
                assert!(!done.err.contains("somebody else"), "{done:#?}");
            }
            let done = other.run(&["parked", "ls", QUEUE]).await.exits(0);
            assert!(!done.err.contains("somebody else"), "{done:#?}");
        }
    })
    .await;
}
