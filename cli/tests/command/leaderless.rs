//! Queues that are there and do not answer: what is in them is neither nothing nor gone.

use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldTable},
};
use retryrmq_harness::{Amqp, Broker, Node, QueueType, eventually, on_brokers_where};

use crate::fixture::{CommandOutput, DEADLINE, PARKED, QUEUE, finish, retryrmq};

const WAITING: &str = "orders.retry.16000000";
const NOTES: &str = "orders.notes.parked";

/// Two nodes of a cluster: one that the command is told of, and one that goes away with what is declared there.
struct Pair {
    near: Node,
    far: Node,
}

impl Pair {
    async fn of(broker: &Broker) -> Self {
        let (near, far) = tokio::join!(broker.own_node(&[]), broker.own_node(&[]));
        far.join(&near).await;
        Self { near, far }
    }

    async fn run(&self, arguments: &[&str]) -> CommandOutput {
        let mut command = retryrmq();
        command.env("RETRYRMQ_URL", self.near.url()).args(arguments);
        finish(command, None).await
    }
}

/// A quorum queue with one member, on the node that this connection leads to.
async fn alone(amqp: &Amqp, queue: &str) {
    let mut arguments = FieldTable::default();
    arguments.insert("x-quorum-initial-group-size".into(), AMQPValue::LongInt(1));
    amqp.declare_with(queue, QueueType::Quorum, arguments).await;
}

/// Puts messages into a queue, each with its id.
async fn fill(amqp: &Amqp, queue: &str, ids: &[&str]) {
    for id in ids {
        let properties = BasicProperties::default()
            .with_delivery_mode(2)
            .with_message_id((*id).into());
        amqp.publish_with(queue, *id, properties).await;
    }
}

async fn until_it_holds(amqp: &Amqp, queue: &str, count: u32) {
    eventually(
        DEADLINE,
        &format!("{count} messages are in {queue}"),
        || async {
            match amqp.depth(queue).await {
                Some(depth) if depth == count => Ok(()),
                other => Err(format!("{other:?}")),
            }
        },
    )
    .await;
}

#[tokio::test]
async fn a_quorum_queue_without_a_leader_is_neither_empty_nor_deleted() {
    on_brokers_where(Broker::is_controllable, |broker| async move {
        let pair = Pair::of(&broker).await;
        let there = pair.far.connect().await;
        pair.near
            .connect()
            .await
            .declare(QUEUE, QueueType::Quorum)
            .await;
        alone(&there, PARKED).await;
        alone(&there, WAITING).await;
        fill(&there, PARKED, &["a", "b", "c"]).await;
        fill(&there, WAITING, &["a"]).await;
        let export = std::env::temp_dir().join(format!("leaderless-{}", fastrand::u64(..)));
        let file = export.display().to_string();
        until_it_holds(&there, PARKED, 3).await;
        // In good order: what is younger than two seconds does not outlive a kill.
        pair.far.stop().await;

        let commands: [&[&str]; 9] = [
            &["parked", "ls", QUEUE],
            &["parked", "replay", QUEUE, "--all"],
            &["parked", "drop", QUEUE, "--all", "--yes"],
            &["parked", "export", QUEUE, &file],
            &["parked", "compact", QUEUE],
            &[
                "parked",
                "forget",
                QUEUE,
                "--id=a",
                "--yes",
                "--delay=16000s",
            ],
            &["waiting", "ls", QUEUE, "--retry", "fixed(16000s)"],
            &[
                "waiting",
                "flush",
                QUEUE,
                "--all",
                "--yes",
                "--retry=fixed(16000s)",
            ],
            &["gc", QUEUE, "--was=fixed(16000s)", "--seen-empty", "--yes"],
        ];
        let runs = commands.map(|arguments| pair.run(arguments));
        let done = futures_util::future::join_all(runs).await;
        for (arguments, done) in commands.iter().zip(done) {
            let done = done.exits(1);
            assert!(
                done.err.contains("nothing is lost"),
                "{arguments:?} {done:?}"
            );
        }
        let _ = std::fs::remove_file(export);

        pair.far.start().await;
        let there = pair.far.connect().await;
        until_it_holds(&there, PARKED, 3).await;
        until_it_holds(&there, WAITING, 1).await;
        let done = pair.run(&["parked", "ls", QUEUE, "--json"]).await.exits(0);
        assert_eq!(done.lines().len(), 3, "{done:?}");
    })
    .await;
}

#[tokio::test]
async fn an_empty_quorum_queue_that_has_a_leader_is_empty_and_nothing_is_left_of_the_question() {
    on_brokers_where(Broker::is_controllable, |broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare(QUEUE, QueueType::Quorum).await;
        amqp.declare(PARKED, QueueType::Quorum).await;
        for _ in 0..3 {
            let mut command = retryrmq();
            command
                .env("RETRYRMQ_URL", vhost.url())
                .args(["parked", "ls", QUEUE]);
            let done = finish(command, None).await.exits(0);
            assert!(done.err.contains("nothing is parked"), "{done:?}");
            eventually(DEADLINE, "its consumer is gone", || async {
                amqp.consumers(PARKED).await == Some(0)
            })
            .await;
        }
        // What came after the question was never delivered.
        amqp.publish(PARKED, "new").await;
        let message = eventually(DEADLINE, "it comes", || async { amqp.take(PARKED).await }).await;
        assert!(!message.redelivered);
    })
    .await;
}

#[tokio::test]
async fn what_is_on_hold_stays_while_its_note_cannot_be_read() {
    on_brokers_where(Broker::is_controllable, |broker| async move {
        for kind in [QueueType::Quorum, QueueType::Classic] {
            let pair = Pair::of(&broker).await;
            let (here, there) = tokio::join!(pair.near.connect(), pair.far.connect());
            here.declare(QUEUE, QueueType::Quorum).await;
            alone(&here, PARKED).await;
            fill(&here, PARKED, &["a", "b"]).await;
            match kind {
                QueueType::Quorum => alone(&there, NOTES).await,
                QueueType::Classic => there.declare(NOTES, QueueType::Classic).await,
            }
            let shown = pair
                .run(&["parked", "ls", QUEUE, "--group", "--json"])
                .await;
            let group = shown.exits(0).lines()[0]["fingerprint"]
                .as_str()
                .unwrap()
                .to_owned();
            pair.run(&["parked", "hold", QUEUE, "--group", &group])
                .await
                .exits(0);
            until_it_holds(&there, NOTES, 1).await;

            pair.far.stop().await;
            let drop_all = ["parked", "drop", QUEUE, "--all", "--yes"];
            let done = pair.run(&drop_all).await.exits(1);
            assert!(done.err.contains(NOTES), "{done:?}");
            until_it_holds(&here, PARKED, 2).await;

            pair.far.start().await;
            until_it_holds(&here, NOTES, 1).await;
            let done = pair.run(&drop_all).await;
            until_it_holds(&here, PARKED, 2).await;
            assert!(done.err.contains("hold"), "{done:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_classic_queue_whose_node_is_stopped_is_not_missing() {
    on_brokers_where(Broker::is_controllable, |broker| async move {
        let pair = Pair::of(&broker).await;
        let (here, there) = tokio::join!(pair.near.connect(), pair.far.connect());
        here.declare(PARKED, QueueType::Classic).await;
        fill(&here, PARKED, &["a"]).await;
        here.declare(QUEUE, QueueType::Classic).await;
        for queue in ["bills", WAITING, "bills.parked"] {
            there.declare(queue, QueueType::Classic).await;
        }
        fill(&there, WAITING, &["a"]).await;
        fill(&there, "bills.parked", &["b"]).await;
        pair.far.stop().await;

        let commands: [(&[&str], &str); 4] = [
            (&["parked", "ls", "bills"], "bills.parked"),
            (
                &[
                    "parked",
                    "forget",
                    QUEUE,
                    "--id=a",
                    "--yes",
                    "--delay=16000s",
                ],
                WAITING,
            ),
            (
                &["waiting", "ls", QUEUE, "--retry", "fixed(16000s)"],
                WAITING,
            ),
            (&["topology", "bills", "--queue-type=classic"], "bills"),
        ];
        let runs = commands.map(|(arguments, _)| pair.run(arguments));
        let done = futures_util::future::join_all(runs).await;
        for ((arguments, queue), done) in commands.iter().zip(done) {
            let done = done.exits(1);
            assert!(done.err.contains(queue), "{arguments:?} {done:?}");
            assert!(!done.err.contains("ever parked"), "{arguments:?} {done:?}");
            assert!(!done.out.contains("missing"), "{arguments:?} {done:?}");
        }

        pair.far.start().await;
        for (queue, count) in [(PARKED, 1), (WAITING, 1), ("bills.parked", 1)] {
            until_it_holds(&here, queue, count).await;
        }
    })
    .await;
}
