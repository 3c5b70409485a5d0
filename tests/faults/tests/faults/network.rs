//! Connections that are cut, stalled and refused at random moments under load.

use crate::fixture::{Fixture, QUEUE, loaded, seen};
use retryrmq::Client;
use retryrmq_faults::disruption::Disruption;
use retryrmq_faults::ledger::LoadLedger;
use retryrmq_faults::publisher::Publisher;
use retryrmq_faults::recorder::Recorder;
use retryrmq_faults::{DEADLINE, load};
use retryrmq_harness::{CutProxy, Direction, eventually, on_queue_types};
use std::time::Duration;

#[derive(Clone, Copy, Debug)]
enum NetworkFault {
    Cut,
    Close,
    Refuse,
    Delay,
    Stall(Direction),
    /// By the management interface, only the connection with this purpose.
    Forced(&'static str),
}

const HARMS: [NetworkFault; 9] = [
    NetworkFault::Cut,
    NetworkFault::Close,
    NetworkFault::Refuse,
    NetworkFault::Delay,
    NetworkFault::Stall(Direction::ToBroker),
    NetworkFault::Stall(Direction::ToClient),
    NetworkFault::Stall(Direction::Both),
    NetworkFault::Forced("consume"),
    NetworkFault::Forced("publish"),
];

/// Longer than the two heartbeats after which a silent peer counts as dead.
const STALL: Duration = Duration::from_millis(3_500);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_when_connections_are_cut_stalled_refused_and_closed() {
    on_queue_types(|broker, kind| async move {
        let what = format!("{broker}, {kind}, bad network");
        let fixture = Fixture::set(&broker, kind).await;
        let proxy = CutProxy::to(fixture.vhost.url()).await;
        let load_ledger = LoadLedger::new(QUEUE);
        let publisher = Publisher::start(fixture.client().await, QUEUE, load_ledger.clone());
        let url = format!("{}?heartbeat=1&name=shaken", proxy.url());
        // With such heartbeats a busy machine loses connections before anything else does.
        let connect = || Client::connect(&url);
        let client = eventually(DEADLINE, "the client connects", connect).await;
        let recorder = Recorder::new();
        let start = || {
            let ledger = load_ledger.clone();
            client
                .consumer(QUEUE)
                .dlx(true)
                .retry(load::policy())
                .on_event(recorder.listener())
                .start(loaded(&recorder, move |id| ledger.handled(id)))
        };
        let running = eventually(DEADLINE, "the consumer starts", start).await;
        let mut disruption = Disruption::new(&what, HARMS.len());
        let mut faults = Vec::new();
        while disruption.goes_on() {
            if faults.is_empty() {
                faults = HARMS.to_vec();
                disruption.rng().shuffle(&mut faults);
            }
            // Most of the time it is back before the next harm comes.
            if disruption.rng().f32() < 0.8 {
                seen("the consumer is back", || {
                    recorder.count("reconnected") == recorder.count("disconnected")
                })
                .await;
            }
            disruption.pause(50..900).await;
            let fault = faults.pop().expect("there is a harm");
            match fault {
                NetworkFault::Cut => proxy.cut(),
                NetworkFault::Close => proxy.close(),
                NetworkFault::Refuse => {
                    proxy.refuse();
                    proxy.cut();
                    disruption.pause(100..1_500).await;
                }
                NetworkFault::Delay => {
                    proxy.delay(Direction::Both, Duration::from_millis(80));
                    disruption.pause(500..1_000).await;
                }
                NetworkFault::Stall(direction) => {
                    proxy.stall(direction);
                    tokio::time::sleep(STALL).await;
                    if disruption.rng().bool() {
                        proxy.cut();
                    }
                }
                NetworkFault::Forced(purpose) => force(&fixture, purpose).await,
            }
            proxy.resume();
        }
        let published = publisher.stop().await;
        load_ledger.settled(&fixture.amqp).await;
        running.close().await;
        println!(
            "{what}: {published} published over {} harms, {} connections re-made, {:?}",
            disruption.made(),
            client.reconnects(),
            running.stats(),
        );
        assert_eq!(running.stats().outstanding, 0);
        assert!(
            recorder.count("reconnected") > 0,
            "{what}: no harm was done"
        );
        load_ledger
            .balance(&broker, fixture.vhost.name(), &fixture.amqp, &what)
            .await;
        client.close().await;
        seen("the proxy has no connection left", || proxy.open() == 0).await;
        fixture.no_connection_is_left().await;
    })
    .await;
}

/// Closes the consumer's connection with this purpose, if there is one: an earlier harm may not be over.
async fn force(fixture: &Fixture, purpose: &str) {
    let management = fixture.vhost.broker().management();
    let name = format!("shaken ({purpose})");
    let found = eventually(
        retryrmq_faults::DEADLINE,
        "the connection is listed",
        || async {
            let open = management.connections(fixture.vhost.name()).await.unwrap();
            open.into_iter()
                .find(|open| open.client_name.as_deref() == Some(name.as_str()))
        },
    )
    .await;
    // The list is a moment old: what it names may be gone already.
    let _ = management.close_connection(&found.name).await;
}
