//! A broker that does not take what a consumer settles: the end comes all the same.

use crate::fixture::{Fixture, Gate, QUEUE, UnansweredQuestion, seen};
use retryrmq::{Client, Message, Publish};
use retryrmq_faults::DEADLINE;
use retryrmq_faults::recorder::Recorder;
use retryrmq_harness::{eventually, on_queue_types};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// More than may be on their way to the socket at a time.
const MESSAGES: usize = 200;
/// `connection.blocked` on channel 0, without a reason: from then on lapin writes nothing.
const BLOCKED: [u8; 13] = [1, 0, 0, 0, 0, 0, 5, 0, 10, 0, 60, 0, 0xCE];

/// A way to a broker that can tell its clients to be silent. Returns its URL.
async fn silenceable(url: &str, silence: watch::Sender<usize>) -> String {
    let (host, path) = url.rsplit_once('@').unwrap().1.split_once('/').unwrap();
    let target = host.to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let here = listener.local_addr().unwrap();
    let account = url.split_once('@').unwrap().0;
    let silenceable = format!("{account}@{here}/{path}");
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let broker = TcpStream::connect(target.as_str()).await.unwrap();
            tokio::spawn(forward(client, broker, silence.clone()));
        }
    });
    silenceable
}

/// Once it is wanted (1) the client is told, between two frames of the broker, and nothing of what it sends arrives any more. Each
/// connection that was told counts one more.
async fn forward(client: TcpStream, broker: TcpStream, silence: watch::Sender<usize>) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_broker, mut to_broker) = broker.into_split();
    let mut wanted = silence.subscribe();
    let mut piece = vec![0; 64 * 1024];
    let talk = async {
        let back = async {
            loop {
                let read = from_broker.read(&mut piece).await.unwrap_or(0);
                if read == 0 || to_client.write_all(&piece[..read]).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            _ = copy(&mut from_client, &mut to_broker) => true,
            () = back => true,
            _ = wanted.wait_for(|wanted| *wanted > 0) => false,
        }
    };
    if talk.await {
        return;
    }
    let _ = to_client.write_all(&BLOCKED).await;
    silence.send_modify(|worker_output| *worker_output += 1);
    let _ = copy(&mut from_broker, &mut to_client).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_does_not_wait_for_settlements_that_nobody_takes() {
    on_queue_types(|broker, kind| async move {
        let what = format!("{broker}, {kind}");
        let fixture = Fixture::set(&broker, kind).await;
        let publisher = fixture.client().await;
        fixture.amqp.declare(QUEUE, kind).await;
        for number in 0..MESSAGES {
            let message = Publish::to_queue(QUEUE, number.to_string());
            publisher.publish(message).await.unwrap();
        }
        let silence = watch::Sender::new(0);
        let url = silenceable(fixture.vhost.url(), silence.clone()).await;
        let client = Client::connect(&url).await.unwrap();
        let (recorder, gate) = (Recorder::new(), Gate::closed());
        let (taped, gated, ended) = (recorder.clone(), gate.clone(), Recorder::new());
        let ending = ended.clone();
        let running = client
            .consumer(QUEUE)
            .prefetch(2 * MESSAGES as u16)
            .concurrency(2 * MESSAGES)
            .drain_timeout(Duration::from_secs(1))
            .start(move |message: Message| {
                let (recorder, gate, ended) = (taped.clone(), gated.clone(), ending.clone());
                async move {
                    recorder.attempt(&message);
                    gate.pass().await;
                    ended.attempt(&message);
                    Err::<(), _>("each is rejected, by a method of its own")
                }
            })
            .await
            .unwrap();
        seen("all run", || recorder.attempts().len() == MESSAGES).await;
        silence.send_replace(1);
        seen("both connections are told", || *silence.borrow() == 3).await;
        gate.open();
        seen("handlers have ended", || ended.attempts().len() == MESSAGES).await;
        let question = UnansweredQuestion::prepare(&fixture).await;
        let began = Instant::now();
        tokio::select! {
            () = async {
                running.close().await;
                client.close().await;
            } => {}
            why = question.given_up() => panic!("{what}: the end waits as for an answer: {why}"),
        }
        println!("{what}: the end took {:?}", began.elapsed());
        question.withdraw().await;
        // None of them was heard of: all are there again.
        eventually(DEADLINE, "the queue has everything", || async {
            let there = fixture.amqp.depth(QUEUE).await.unwrap_or(0) as usize;
            (there == MESSAGES).then_some(()).ok_or(there)
        })
        .await;
        publisher.close().await;
    })
    .await;
}
