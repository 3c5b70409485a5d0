//! Settlements that meet a connection which is not the one that their message came over.

use crate::fixture::{Fixture, Gate, QUEUE, seen};
use retryrmq::{Client, Event, Message, Outcome, Publish, RunningConsumer, Token};
use retryrmq_faults::recorder::{Recorder, text};
use retryrmq_faults::{DEADLINE, load};
use retryrmq_harness::{CutProxy, Direction, eventually, on_queue_types};
use std::collections::BTreeSet;

/// A consumer behind a proxy whose handlers wait at a gate.
async fn gated(
    fixture: &Fixture,
    proxy: &CutProxy,
    recorder: &Recorder,
    gate: &Gate,
) -> (Client, RunningConsumer) {
    let client = Client::connect(&format!("{}?name=shaken", proxy.url()))
        .await
        .unwrap();
    let (taped, gate) = (recorder.clone(), gate.clone());
    let running = client
        .consumer(QUEUE)
        .dlx(true)
        .retry(load::policy())
        .on_event(recorder.listener())
        .start(move |message: Message| {
            let (recorder, gate) = (taped.clone(), gate.clone());
            async move {
                let id = recorder.attempt(&message);
                gate.pass().await;
                recorder.success(&id);
                Ok::<_, String>(())
            }
        })
        .await
        .unwrap();
    fixture.amqp.depth(QUEUE).await;
    (client, running)
}

fn with_id(id: &str) -> Publish {
    Publish::to_queue(QUEUE, id).message_id(id)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_handled_but_not_acknowledged_does_not_run_again_if_it_has_an_id() {
    on_queue_types(|broker, kind| async move {
        let fixture = Fixture::set(&broker, kind).await;
        let publisher = fixture.client().await;
        publisher.publish(with_id("with")).await.unwrap();
        publisher
            .publish(Publish::to_queue(QUEUE, "without"))
            .await
            .unwrap();
        let proxy = CutProxy::to(fixture.vhost.url()).await;
        let (recorder, gate) = (Recorder::new(), Gate::closed());
        let (client, running) = gated(&fixture, &proxy, &recorder, &gate).await;
        seen("both run", || recorder.attempts().len() == 2).await;
        proxy.stall(Direction::ToBroker);
        gate.open();
        seen("both are acknowledged as far as we know", || {
            running.stats().acked == 2
        })
        .await;
        // The next connections would be stalled as well, and count as open for ever.
        proxy.refuse();
        proxy.cut();
        // Let go before the rest of the wire is, what is held back would still arrive.
        seen("the old connections are gone", || proxy.open() == 0).await;
        proxy.resume();
        eventually(DEADLINE, "the one without an id ran again", || async {
            (recorder.handled("without") == 2)
                .then_some(())
                .ok_or_else(|| {
                    format!(
                        "{:?} {:?} {:?}",
                        recorder.attempts(),
                        recorder.events(),
                        running.stats()
                    )
                })
        })
        .await;
        seen("the other was recognised", || {
            recorder.count("already_handled") == 1
        })
        .await;
        let is_known = |event: &Event| {
            let fields = event.fields();
            let known = matches!(event, Event::AlreadyHandled { .. });
            known && (fields.queue, fields.message_id) == (QUEUE, Some("with"))
        };
        assert!(
            recorder.events().iter().any(is_known),
            "{:?}",
            recorder.events()
        );
        assert_eq!((recorder.runs("with"), recorder.runs("without")), (1, 2));
        fixture.is_empty(QUEUE).await;
        running.close().await;
        client.close().await;
    })
    .await;
}

/// Handlers do not stop when the connection does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_handled_while_there_is_no_connection_does_not_run_again_if_it_has_an_id() {
    on_queue_types(|broker, kind| async move {
        let fixture = Fixture::set(&broker, kind).await;
        let publisher = fixture.client().await;
        publisher.publish(with_id("with")).await.unwrap();
        let proxy = CutProxy::to(fixture.vhost.url()).await;
        let (recorder, gate) = (Recorder::new(), Gate::closed());
        let (client, running) = gated(&fixture, &proxy, &recorder, &gate).await;
        seen("it runs", || recorder.attempts().len() == 1).await;
        proxy.refuse();
        proxy.cut();
        seen("the connection is lost", || {
            recorder.count("disconnected") == 1
        })
        .await;
        gate.open();
        seen("its success was heard of", || running.stats().stale == 1).await;
        proxy.resume();
        seen("it was recognised", || {
            recorder.count("already_handled") == 1
        })
        .await;
        assert_eq!((recorder.runs("with"), recorder.handled("with")), (1, 1));
        fixture.is_empty(QUEUE).await;
        running.close().await;
        client.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_waits_for_handlers_whose_connection_was_lost() {
    on_queue_types(|broker, kind| async move {
        let fixture = Fixture::set(&broker, kind).await;
        let publisher = fixture.client().await;
        publisher.publish(with_id("long")).await.unwrap();
        let proxy = CutProxy::to(fixture.vhost.url()).await;
        let (recorder, gate) = (Recorder::new(), Gate::closed());
        let (client, running) = gated(&fixture, &proxy, &recorder, &gate).await;
        seen("it runs", || recorder.attempts().len() == 1).await;
        proxy.refuse();
        proxy.cut();
        seen("the connection is lost", || {
            recorder.count("disconnected") == 1
        })
        .await;
        let closing = tokio::spawn({
            let running = running.clone();
            async move { running.close().await }
        });
        let publisher = fixture.client().await; // as long as that takes, the end could have come
        assert!(
            !closing.is_finished(),
            "the end did not wait for the handler"
        );
        gate.open();
        closing.await.unwrap();
        assert_eq!(recorder.handled("long"), 1);
        publisher.close().await;
        client.close().await;
    })
    .await;
}

/// A message whose connection drops while it runs comes back, by a detour on a classic queue. That the detour's copy
/// was stored must not be taken for the message having been handled when the connection drops again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_never_succeeded_runs_again_however_often_the_connection_drops() {
    on_queue_types(|broker, kind| async move {
        let what = format!("{broker}, {kind}");
        let fixture = Fixture::set(&broker, kind).await;
        fixture
            .client()
            .await
            .publish(with_id("never"))
            .await
            .unwrap();
        let proxy = CutProxy::to(fixture.vhost.url()).await;
        let (recorder, gate) = (Recorder::new(), Gate::closed());
        let (client, running) = gated(&fixture, &proxy, &recorder, &gate).await;
        for cut in 1..=4 {
            eventually(DEADLINE, "it runs", || async {
                let worker_output = (
                    recorder.count("detoured"),
                    recorder.count("already_handled"),
                );
                (recorder.runs("never") >= cut)
                    .then_some(())
                    .ok_or_else(|| {
                        format!(
                            "{what}: {cut} cuts, (detours, acknowledged unseen): {worker_output:?}"
                        )
                    })
            })
            .await;
            proxy.cut();
            seen("the consumer came back", || {
                running.stats().reconnects == cut as u64
            })
            .await;
        }
        seen("it runs once more", || recorder.runs("never") >= 5).await;
        assert_eq!(recorder.count("already_handled"), 0, "{what}");
        gate.open();
        seen("it is handled", || recorder.handled("never") > 0).await;
        fixture.is_empty(QUEUE).await;
        running.close().await;
        client.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_that_end_after_a_reconnection_settle_nothing_and_close_nothing() {
    on_queue_types(|broker, kind| async move {
        let what = format!("{broker}, {kind}");
        let fixture = Fixture::set(&broker, kind).await;
        let publisher = fixture.client().await;
        for number in 0..8 {
            publisher
                .publish(Publish::to_queue(QUEUE, number.to_string()))
                .await
                .unwrap();
        }
        let proxy = CutProxy::to(fixture.vhost.url()).await;
        let (recorder, gate) = (Recorder::new(), Gate::closed());
        let (client, running) = gated(&fixture, &proxy, &recorder, &gate).await;
        seen("all run", || recorder.attempts().len() == 8).await;
        proxy.cut();
        // On the same channel as the stale settlements are meant for: the eight come again while the first eight run.
        seen("all run again", || recorder.attempts().len() == 16).await;
        gate.open();
        seen("all have ended twice", || {
            (0..8).all(|number: u32| recorder.handled(&number.to_string()) == 2)
        })
        .await;
        for number in 8..100 {
            publisher
                .publish(Publish::to_queue(QUEUE, number.to_string()))
                .await
                .unwrap();
        }
        seen("the consumer goes on", || recorder.handled_count() == 100).await;
        fixture.is_empty(QUEUE).await;
        assert_eq!(
            recorder.count("disconnected"),
            1,
            "{what}: a stale settlement closed the channel"
        );
        assert_eq!(running.stats().stale, 8, "{what}");
        running.close().await;
        client.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_that_name_nothing_settle_nothing() {
    on_queue_types(|broker, kind| async move {
        let fixture = Fixture::set(&broker, kind).await;
        let publisher = fixture.client().await;
        let proxy = CutProxy::to(fixture.vhost.url()).await;
        let client = Client::connect(proxy.url()).await.unwrap();
        let subscription = client
            .consumer(QUEUE)
            .dlx(true)
            .retry(load::policy())
            .subscribe()
            .await
            .unwrap();
        let mut used: Vec<Token> = Vec::new();
        let mut handled = BTreeSet::new();
        for round in 1..=4u64 {
            for number in 0..10 {
                let id = format!("{round}-{number}");
                publisher
                    .publish(Publish::to_queue(QUEUE, id))
                    .await
                    .unwrap();
            }
            // A round ends with the connection, so that some come again in the next.
            while handled.len() < 10 * round as usize {
                assert!(subscription.ready().await);
                let batch = subscription.try_next_batch(3);
                let tokens: Vec<Token> = batch.iter().map(|next| next.token).collect();
                handled.extend(batch.iter().map(|next| text(&next.message)));
                // Old ones, invented ones, and the new ones twice.
                let invented = (0..50).map(|value| Token::from_u64(value << 13));
                let stale = used.iter().copied().chain(invented);
                subscription.settle(stale.map(|token| (token, Outcome::Ack)).collect::<Vec<_>>());
                subscription.settle(tokens.iter().map(|token| (*token, Outcome::Ack)));
                subscription.settle(tokens.iter().map(|token| (*token, Outcome::Ack)));
                used.extend(tokens);
            }
            if round < 4 {
                proxy.cut();
                seen("the consumer came back", || {
                    subscription.stats().reconnects == round
                })
                .await;
            }
        }
        let empty = async {
            while subscription.ready().await {
                let again = subscription.try_next_batch(10);
                subscription.settle(again.into_iter().map(|next| (next.token, Outcome::Ack)));
            }
        };
        tokio::select! {
            () = empty => panic!("the subscription ended by itself"),
            () = fixture.is_empty(QUEUE) => {}
        }
        let stats = subscription.stats();
        assert_eq!(
            stats.reconnects, 3,
            "a stale settlement closed the channel: {stats:?}"
        );
        assert!(stats.stale >= used.len() as u64, "{stats:?}");
        subscription.close();
        subscription.wait_closed().await.unwrap();
        client.close().await;
        subscription.settle(used.into_iter().map(|token| (token, Outcome::Ack)));
    })
    .await;
}
