//! Three ways to choose how long a failed message waits: the policy, a rule, or the handler itself.

use std::{collections::BTreeSet, io, sync::Arc, time::Duration};

use retryrmq::{
    Backoff, Client, ClientOptions, Event, MINUTE, Message, Publish, Signal, defer,
    format_duration, retry_after,
};
use tokio::sync::mpsc;

const QUEUE: &str = "example.delays";

fn handle(message: &Message) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let again = |delay, why: &str| -> Signal { retry_after(Duration::from_millis(delay), why) };
    match (message.message_id().unwrap_or_default(), message.attempt()) {
        // The policy: 0.25, 0.5 and 1 s.
        ("flaky", 1..=3) => Err(io::Error::other("the database is restarting"))?,
        // The rule: 1 s.
        ("timeout", 1) => Err(io::Error::new(io::ErrorKind::TimedOut, "no answer"))?,
        ("busy", 1) => Err(again(1_500, "the partner asks for 1.5 s"))?,
        // Not an error: uses up no retry.
        ("early", _) if message.deferrals() == 0 => Err(defer(Duration::from_millis(500)))?,
        _ => Ok(()),
    }
}

fn tell(event: &Event) {
    let fields = event.fields();
    let (id, delay) = (
        fields.message_id.unwrap_or_default(),
        fields.delay.unwrap_or_default(),
    );
    match event {
        Event::Retried { error, .. } => println!("{id} waits {}: {error}", format_duration(delay)),
        Event::Deferred { .. } => println!("{id} is deferred for {}", format_duration(delay)),
        _ => {}
    }
}

#[tokio::main]
async fn main() -> retryrmq::Result<()> {
    let rmq = Client::from_env(ClientOptions::new()).await?;
    let policy = Backoff::exponential(Duration::from_millis(250));
    let (done, mut ends) = mpsc::unbounded_channel();
    let done = Arc::new(done);
    let running = rmq
        .consumer(QUEUE)
        .dlx(true)
        .retry(policy.factor(2.0).max(MINUTE).retries(6))
        .rules(["error=TimedOut => fixed(1s, retries=3)".parse()?])
        .on_event(tell)
        .start(move |message: Message| {
            let done = Arc::clone(&done);
            async move {
                handle(&message)?;
                let id = message.message_id().unwrap_or_default().to_owned();
                println!("{id} is done at attempt {}", message.attempt());
                let _ = done.send(id); // main may have ended
                Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
            }
        })
        .await?;
    let mut left = BTreeSet::from(["busy", "early", "flaky", "timeout"]);
    for id in &left {
        rmq.publish(Publish::to_queue(QUEUE, "").message_id(id))
            .await?;
    }
    while !left.is_empty() {
        let id = ends.recv().await.unwrap_or_default();
        left.remove(id.as_str());
    }
    running.close().await;
    rmq.close().await;
    Ok(())
}
