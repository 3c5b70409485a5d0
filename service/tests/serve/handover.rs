//! Clients of the library that hand their failures over.

use retryrmq::{Client, ErrorKind, Failure, Message, Outcome, RunningConsumer, Strategy};
use retryrmq_harness::{
    Amqp, Broker, CutProxy, Ledger, Permissions, Policy, QueueType, eventually,
    lapin::{
        BasicProperties,
        options::{BasicPublishOptions, QueueBindOptions},
        types::{AMQPValue, FieldArray, FieldTable},
    },
    on_brokers, on_brokers_where, on_queue_types,
};

use crate::fixture::{
    DEADLINE, INTAKE, INTAKE_PARKED, NativeConsumer, Replica, declare, id, policy, take, text,
};

const HANDOVER: &str = "retryrmq.handover";
const POLICY: &str = "[defaults]\nretry = \"list(100ms, 100ms)\"\n";

/// What the handlers of these tests make of a message, which says it in its body.
fn outcome(message: &Message) -> Outcome {
    let attempt = message.attempt();
    let failure = Failure::new(format!("attempt {attempt}: no answer"))
        .of_type("Timeout")
        .with_stack("in handle\nin main");
    let moment = std::time::Duration::from_millis(130);
    match message.body() {
        b"fails" => Outcome::retry(failure),
        b"fails once" if attempt == 1 => Outcome::retry(failure),
        b"is fatal" => Outcome::fatal(failure),
        b"is for a person" => Outcome::park(failure),
        b"chooses" if attempt == 1 => Outcome::retry_after(moment, failure),
        b"is put off" if message.deferrals() < 2 => Outcome::defer(moment),
        b"fails and is put off" if attempt == 1 => Outcome::retry(failure),
        b"fails and is put off" if message.deferrals() == 0 => Outcome::defer(100 * moment),
        _ => Outcome::Ack,
    }
}

async fn consume(
    client: &Client,
    queue: &str,
    strategy: Strategy,
    ledger: &Ledger,
) -> RunningConsumer {
    let mut consumer = client.consumer(queue).dlx(true).strategy(strategy);
    if strategy != Strategy::Service {
        consumer = consumer.retry("list(100ms, 100ms)".parse().unwrap());
    }
    let ledger = ledger.clone();
    let running = consumer.start(move |message: Message| {
        let outcome = outcome(&message);
        if outcome == Outcome::Ack {
            ledger.handled(message.message_id().unwrap());
        }
        async move { outcome }
    });
    running.await.unwrap()
}

/// The headers of a record that a client writes and a service writes alike: all, with nothing but the time of each.
fn record(message: &retryrmq_harness::Message) -> FieldTable {
    fn timeless(value: &AMQPValue) -> AMQPValue {
        match value {
            AMQPValue::Timestamp(_) => AMQPValue::Timestamp(0),
            AMQPValue::FieldArray(items) => {
                let items = items.as_slice().iter().map(timeless).collect::<Vec<_>>();
                AMQPValue::FieldArray(items.into())
            }
            AMQPValue::FieldTable(table) => {
                let entries = table.inner().iter();
                let entries = entries.map(|(name, value)| (name.clone(), timeless(value)));
                AMQPValue::FieldTable(entries.collect::<std::collections::BTreeMap<_, _>>().into())
            }
            other => other.clone(),
        }
    }
    let AMQPValue::FieldTable(mut table) = timeless(&AMQPValue::FieldTable(message.headers()))
    else {
        unreachable!("a table stays one")
    };
    // The queue's own name.
    table.insert("x-retry-routing-key".into(), text("orders"));
    table
}

async fn publish_all(amqp: &Amqp, queue: &str) {
    for body in [
        "fails",
        "is fatal",
        "is for a person",
        "chooses",
        "is put off",
    ] {
        let mut table = FieldTable::default();
        table.insert("tenant".into(), text("gold"));
        let properties = id(body).with_headers(table).with_correlation_id("7".into());
        amqp.publish_with(queue, body, properties).await;
    }
}

#[tokio::test]
async fn what_is_handed_over_is_parked_as_its_client_would_have_parked_it() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let file = policy(POLICY);
        let replica = Replica::start(&vhost, Some(file.path())).await;
        let client = Client::connect(vhost.url()).await.unwrap();
        let ledgers = [Ledger::new(), Ledger::new()];
        let mut running = Vec::new();
        for (queue, strategy, ledger) in [
            ("orders", Strategy::Service, &ledgers[0]),
            ("own", Strategy::RetryQueues, &ledgers[1]),
        ] {
            amqp.declare(queue, kind).await;
            running.push(consume(&client, queue, strategy, ledger).await);
            publish_all(&amqp, queue).await;
        }
        let by_id = |mut all: Vec<retryrmq_harness::Message>| {
            all.sort_by_key(|one| one.id().unwrap().to_owned());
            all
        };
        let ours = by_id(take(&amqp, "own.parked", 3).await);
        let theirs = by_id(take(&amqp, "orders.parked", 3).await);
        for (theirs, ours) in theirs.iter().zip(&ours) {
            assert_eq!(record(theirs), record(ours));
            assert_eq!(theirs.body, ours.body);
            let bare = |one: &retryrmq_harness::Message| {
                one.properties.clone().with_headers(FieldTable::default())
            };
            assert_eq!(bare(theirs), bare(ours));
        }
        let spent = &theirs[0];
        let said = |name| spent.header_text(name).unwrap();
        assert_eq!(spent.id(), Some("fails"));
        assert_eq!(said("x-retry-parked-reason"), "exhausted");
        assert_eq!(said("x-retry-error"), "attempt 3: no answer");
        assert_eq!(said("x-retry-error-type"), "Timeout");
        assert_eq!(said("x-retry-error-stack"), "in handle\nin main");
        assert_eq!(spent.header_int("x-retry-count"), Some(2));
        assert_eq!(spent.header("x-retry-queue"), None);
        for ledger in &ledgers {
            eventually(DEADLINE, "what succeeds later is handled", || async {
                let report = ledger.report();
                (report.handled == 2)
                    .then_some(())
                    .ok_or(format!("{report:?}"))
            })
            .await;
        }
        // Four failures were left to the policy: three of the first, one that chose its delay.
        assert_eq!(running[0].stats().handed_over, 4);
        assert_eq!(running[1].stats().handed_over, 0);
        replica
            .counts(
                "retryrmq_serve_retried_total{queue=\"orders\",reason=\"failed\"}",
                3,
            )
            .await;
        for one in running {
            one.close().await;
        }
        client.close().await;
        assert_eq!(amqp.depth(INTAKE_PARKED).await, Some(0));
        for queue in ["orders", HANDOVER, INTAKE] {
            assert_eq!(amqp.depth(queue).await, Some(0), "{queue}");
        }
        assert!(replica.end().await.success());
    })
    .await;
}

#[tokio::test]
async fn a_rule_may_ask_for_the_type_of_the_error() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let rules = "[[rules]]\nerror_type = \"*Gone\"\nend = \"drop\"\n[[rules]]\nerror_type = \"Time*\"\nend = \"park\"\n";
        let file = policy(&format!("[defaults]\nretry = \"fixed(1h)\"\n{rules}"));
        let replica = Replica::start(&vhost, Some(file.path())).await;
        let client = Client::connect(vhost.url()).await.unwrap();
        let ledger = Ledger::new();
        amqp.declare("orders", QueueType::Quorum).await;
        let running = consume(&client, "orders", Strategy::Service, &ledger).await;
        amqp.publish_with("orders", "fails", id("fails")).await;
        let parked = take(&amqp, "orders.parked", 1).await;
        let said = |name| parked[0].header_text(name);
        assert_eq!(said("x-retry-parked-reason").as_deref(), Some("exhausted"));
        assert_eq!(said("x-retry-error-type").as_deref(), Some("Timeout"));
        running.close().await;
        // A rejection has no error.
        declare(&amqp, "bills", QueueType::Quorum, true).await;
        let native = NativeConsumer::start(&vhost, "bills", |_| false).await;
        amqp.publish_with("bills", "fails", id("rejected")).await;
        replica
            .counts("retryrmq_serve_retried_total{queue=\"bills\",reason=\"rejected\"}", 1)
            .await;
        drop(native);
        client.close().await;
        assert!(replica.end().await.success());
    })
    .await;
}

/// As with the rules of a consumer: what was put off has no error, and an earlier one says nothing of it.
#[tokio::test]
async fn a_rule_for_an_error_is_not_about_what_is_put_off_later() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let rule = "[[rules]]\nerror_type = \"Time*\"\nretry = \"fixed(100ms, max_age=10s)\"\n";
        let file = policy(&format!("{POLICY}{rule}"));
        let replica = Replica::start(&vhost, Some(file.path())).await;
        let client = Client::connect(vhost.url()).await.unwrap();
        let ledger = Ledger::new();
        amqp.declare("orders", QueueType::Quorum).await;
        let running = consume(&client, "orders", Strategy::Service, &ledger).await;
        ledger.published("one");
        amqp.publish_with("orders", "fails and is put off", id("one"))
            .await;
        eventually(DEADLINE, "it comes back", || async {
            let parked = amqp.depth("orders.parked").await;
            assert_eq!(parked.unwrap_or(0), 0, "it is parked");
            ledger.is_settled()
        })
        .await;
        running.close().await;
        client.close().await;
        assert!(replica.end().await.success());
    })
    .await;
}

#[tokio::test]
async fn nothing_is_lost_while_clients_and_services_come_and_go() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let file = policy(POLICY);
        let first = Replica::start(&vhost, Some(file.path())).await;
        assert!(first.end().await.success());
        amqp.declare("orders", kind).await;
        let proxy = CutProxy::to(vhost.url()).await;
        let client = Client::connect(proxy.url()).await.unwrap();
        let ledger = Ledger::new();
        let running = consume(&client, "orders", Strategy::Service, &ledger).await;
        let publish = async |name: &str| {
            ledger.published(name);
            amqp.publish_with("orders", "fails once", id(name)).await;
        };
        publish("first").await;
        // The service's queue is young to this client, which keeps the original for a while after the confirm: a cut now doubles it.
        eventually(DEADLINE, "the copy is confirmed", || async {
            amqp.depth(HANDOVER).await == Some(1)
        })
        .await;
        proxy.cut();
        for number in 0..40 {
            publish(&format!("{number}")).await;
            if number % 15 == 0 {
                proxy.cut();
            }
        }
        let service = Replica::start(&vhost, Some(file.path())).await;
        service
            .counts(
                "retryrmq_serve_retried_total{queue=\"orders\",reason=\"failed\"}",
                1,
            )
            .await;
        service.kill().await;
        let service = Replica::start(&vhost, Some(file.path())).await;
        eventually(DEADLINE, "all are handled", || async {
            let left = ledger.unsettled();
            left.is_empty().then_some(()).ok_or(format!("{left:?}"))
        })
        .await;
        ledger.assert_nothing_lost(&format!("{broker}, {kind}"));
        running.close().await;
        client.close().await;
        assert_eq!(amqp.depth(INTAKE_PARKED).await, Some(0));
        assert_eq!(amqp.depth("orders.parked").await.unwrap_or(0), 0);
        assert!(service.end().await.success());
    })
    .await;
}

#[tokio::test]
async fn without_the_service_the_consumer_is_refused_and_later_keeps_what_fails() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let (management, user) = (broker.management(), format!("hands-{}", vhost.name()));
        management.create_user(&user, "p", "").await.unwrap();
        // All that a client needs that may make its work queue.
        let narrow = Permissions {
            configure: "^orders$",
            write: r"^(amq\.default|retryrmq\.dead)$",
            read: "^orders$",
        };
        let permitted = management.set_permissions(vhost.name(), &user, narrow);
        permitted.await.unwrap();
        let client = Client::connect(vhost.url()).await.unwrap();
        let refused = client
            .consumer("orders")
            .dlx(true)
            .strategy(Strategy::Service)
            .subscribe()
            .await
            .unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::QueueNotFound);
        assert!(refused.to_string().contains("retryrmq serve"), "{refused}");
        assert_eq!(amqp.depth("orders").await, None, "nothing is made");
        client.close().await;
        let file = policy(POLICY);
        let service = Replica::start(&vhost, Some(file.path())).await;
        assert!(service.end().await.success());
        let client = Client::connect(&vhost.url_as(&user, "p")).await.unwrap();
        let ledger = Ledger::new();
        let running = consume(&client, "orders", Strategy::Service, &ledger).await;
        let made = vhost.queue("orders").await.unwrap().raw.to_string();
        assert!(made.contains("retryrmq.dead"), "{made}");
        amqp.delete(HANDOVER).await;
        ledger.published("one");
        amqp.publish_with("orders", "fails once", id("one")).await;
        eventually(DEADLINE, "the failure cannot be handed over", || async {
            running.stats().publish_failures > 0
        })
        .await;
        assert_eq!(
            amqp.depth("orders").await,
            Some(0),
            "it is kept, unacknowledged"
        );
        let service = Replica::start(&vhost, Some(file.path())).await;
        eventually(DEADLINE, "it is handed over, and comes back", || async {
            ledger.is_settled()
        })
        .await;
        running.close().await;
        client.close().await;
        assert!(service.end().await.success());
        management.delete_user(&user).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn what_is_forged_reaches_no_queue_and_makes_none() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let _replica = Replica::start(&vhost, None).await;
        amqp.declare("victim", QueueType::Quorum).await;
        let handed = |queue: &str| {
            let mut table = FieldTable::default();
            for (name, value) in [
                ("x-retry-handover", text("retry")),
                ("x-retry-queue", text(queue)),
                ("x-retry-count", AMQPValue::LongLongInt(0)),
                ("x-retry-after", AMQPValue::LongLongInt(1)),
            ] {
                table.insert(name.into(), value);
            }
            id(queue).with_headers(table)
        };
        // By an exchange that somebody may publish to who may not publish to every queue.
        let channel = amqp.new_channel().await;
        channel
            .queue_bind(
                HANDOVER.into(),
                "amq.fanout".into(),
                "".into(),
                QueueBindOptions::default(),
                FieldTable::default(),
            )
            .await
            .unwrap();
        channel
            .basic_publish(
                "amq.fanout".into(),
                "".into(),
                BasicPublishOptions::default(),
                b"x",
                handed("victim"),
            )
            .await
            .unwrap();
        let long = "q".repeat(250);
        for queue in [HANDOVER, INTAKE, "victim.parked", "nowhere", "", &long] {
            amqp.publish_with(HANDOVER, "x", handed(queue)).await;
        }
        amqp.publish_with(HANDOVER, "x", BasicProperties::default())
            .await;
        let strays = take(&amqp, INTAKE_PARKED, 8).await;
        let errors: Vec<_> = strays
            .iter()
            .filter_map(|stray| stray.header_text("x-retry-error"))
            .collect();
        for says in [
            "by the exchange amq.fanout",
            "handed over for retryrmq.handover",
            "handed over for retryrmq.intake",
            "handed over for victim.parked",
            "it failed in nowhere, and that queue does not exist",
            "x-retry-queue is missing",
            "cannot wait or be parked",
            "it has no headers",
        ] {
            let said = errors.iter().any(|error| error.contains(says));
            assert!(said, "{says}: {errors:#?}");
        }
        assert_eq!(amqp.depth("victim").await, Some(0));
        let made: Vec<String> = vhost
            .queues()
            .await
            .iter()
            .map(|queue| queue.name().to_owned())
            .collect();
        let foreign = |name: &&String| !name.starts_with("retryrmq.") && *name != "victim";
        assert_eq!(made.iter().find(foreign), None);
    })
    .await;
}

/// A failure for `queue` as a client hands it over, of a message that crashed a consumer twice before.
fn crashed(queue: &str, name: &str) -> BasicProperties {
    let mut table = FieldTable::default();
    for (header, value) in [
        ("x-retry-protocol", AMQPValue::LongLongInt(1)),
        ("x-retry-handover", text("retry")),
        ("x-retry-queue", text(queue)),
        ("x-retry-count", AMQPValue::LongLongInt(0)),
        ("x-retry-crashes", AMQPValue::LongLongInt(2)),
        ("x-retry-error", text("no answer")),
    ] {
        table.insert(header.into(), value);
    }
    id(name).with_headers(table)
}

/// As a broker with a limit for all queues does while a service crashes again and again.
#[tokio::test]
async fn what_a_broker_gives_up_in_a_queue_of_the_service_belongs_to_the_queue_that_it_failed_in() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let replica = Replica::start(&vhost, None).await;
        declare(&amqp, "orders", QueueType::Quorum, true).await;
        assert!(replica.end().await.success());
        let short = Policy::new(
            r"^retryrmq\.(handover|intake)$",
            serde_json::json!({"message-ttl": 200}),
        );
        vhost.put_policy("short", &short).await.unwrap();
        let mut headers = FieldTable::default();
        headers.insert("x-retry-handover".into(), text("retry"));
        headers.insert("x-retry-queue".into(), text("orders"));
        headers.insert("x-retry-count".into(), AMQPValue::LongLongInt(0));
        let failed = id("handed over").with_headers(headers.clone());
        amqp.publish_with(HANDOVER, "x", failed).await;
        amqp.publish_with("orders", "x", id("died")).await;
        let native = NativeConsumer::start(&vhost, "orders", |_| false).await;
        // What anybody may have written names nothing.
        headers.insert("x-death".into(), forged_death("orders"));
        let forged = id("forged").with_headers(headers);
        amqp.publish_with(INTAKE, "x", forged).await;
        eventually(DEADLINE, "the broker gives them up", || async {
            match amqp.depth(INTAKE_PARKED).await {
                Some(3) => Ok(()),
                depth => Err(format!("{depth:?}")),
            }
        })
        .await;
        drop(native);
        let client = Client::connect(vhost.url()).await.unwrap();
        let mut browse = client.parked(INTAKE).browse().await.unwrap();
        while let Some(record) = browse.next().await.unwrap() {
            match record.message().message_id() {
                Some("forged") => assert_eq!(record.home, INTAKE),
                _ => {
                    assert_eq!(record.home, "orders", "{record:?}");
                    browse.replay(&record).await.unwrap();
                }
            }
        }
        browse.close().await.unwrap();
        client.close().await;
        let replayed = take(&amqp, "orders", 2).await;
        assert!(replayed.iter().all(|one| one.id() != Some("forged")));
    })
    .await;
}

fn forged_death(queue: &str) -> AMQPValue {
    let mut death = FieldTable::default();
    for (name, value) in [("queue", queue), ("reason", "rejected"), ("exchange", "")] {
        death.insert(name.into(), text(value));
    }
    AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::FieldTable(death)]))
}

#[tokio::test]
async fn what_the_service_gives_back_at_its_end_is_the_same_message_for_the_next_one() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let file = policy("[defaults]\nretry = \"fixed(1h)\"\n");
        let waiting = "orders.retry.3600000";
        declare(&amqp, "orders", QueueType::Quorum, true).await;
        // Of another kind than the service's: nothing can wait there.
        amqp.declare(waiting, QueueType::Classic).await;
        let replica = Replica::start(&vhost, Some(file.path())).await;
        amqp.publish_with(HANDOVER, "x", crashed("orders", "handed"))
            .await;
        let mut dies = crashed("orders", "died");
        let mut table = FieldTable::default();
        for (name, value) in dies.headers().as_ref().unwrap() {
            if ["x-retry-protocol", "x-retry-crashes"].contains(&name.as_str()) {
                table.insert(name.clone(), value.clone());
            }
        }
        dies = dies.with_headers(table);
        amqp.publish_with("orders", "x", dies).await;
        let native = NativeConsumer::start(&vhost, "orders", |_| false).await;
        replica
            .counts("retryrmq_serve_held{queue=\"orders\"}", 2)
            .await;
        drop(native);
        assert!(replica.end().await.success());
        for queue in [HANDOVER, INTAKE] {
            eventually(DEADLINE, "it is given back", || async {
                amqp.depth(queue).await == Some(1)
            })
            .await;
        }
        amqp.delete(waiting).await;
        let replica = Replica::start(&vhost, Some(file.path())).await;
        let all_went = || async {
            let depths = (amqp.depth(HANDOVER).await, amqp.depth(INTAKE).await);
            let somewhere = amqp.depth(waiting).await.unwrap_or(0)
                + amqp.depth(INTAKE_PARKED).await.unwrap_or(0);
            if somewhere == 2 {
                Ok(())
            } else {
                Err(format!("{depths:?}, {somewhere} somewhere"))
            }
        };
        eventually(DEADLINE, "both are somewhere", all_went).await;
        let strays = amqp.drain(INTAKE_PARKED).await;
        let errors: Vec<_> = strays
            .iter()
            .map(|stray| stray.header_text("x-retry-error"))
            .collect();
        assert_eq!(errors, [], "{broker}");
        let mut names: Vec<_> = take(&amqp, waiting, 2).await;
        names.sort_by_key(|one| one.id().map(str::to_owned));
        assert_eq!(names[0].id(), Some("died"));
        assert_eq!(names[1].id(), Some("handed"));
        assert_eq!(
            names[1].header_text("x-retry-error").as_deref(),
            Some("no answer")
        );
        assert!(replica.end().await.success());
    })
    .await;
}

#[tokio::test]
async fn what_is_handed_over_for_a_queue_that_does_not_answer_is_held_like_a_dead_letter() {
    on_brokers_where(Broker::is_controllable, |broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let file = policy("[defaults]\nretry = \"fixed(1h)\"\n");
        amqp.declare("orders", QueueType::Classic).await;
        let replica = Replica::start(&vhost, Some(file.path())).await;
        let process = |word: &str| {
            let name = vhost.name();
            format!(
                "{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<\"{name}\">>, queue, <<\"orders\">>)), \
                 sys:{word}(amqqueue:get_pid(Q))."
            )
        };
        broker.ctl(&["eval", &process("suspend")]).await;
        amqp.publish_with(HANDOVER, "x", crashed("orders", "handed"))
            .await;
        let said = replica.says("could not be stored").await;
        assert_eq!(said["queue"], "orders", "{said}");
        broker.ctl(&["eval", &process("resume")]).await;
        let waits = take(&amqp, "orders.retry.3600000", 1).await.remove(0);
        assert_eq!(waits.id(), Some("handed"));
        assert_eq!(amqp.depth(INTAKE_PARKED).await, Some(0));
        assert!(replica.end().await.success());
    })
    .await;
}
