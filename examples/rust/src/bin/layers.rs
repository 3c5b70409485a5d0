//! A typed body, and tower's layers around a handler: a timeout, and one of its own that measures.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use retryrmq::{
    Client, ClientOptions, Event, FromMessage as _, Json, Message, Publish, extract, service,
};
use serde::Deserialize;
use tokio::sync::mpsc;
use tower::{BoxError, Service, ServiceBuilder, layer::layer_fn, service_fn};

#[derive(Deserialize)]
struct Order {
    id: u64,
}

/// With layers, the body is read where it is needed. What it cannot be is parked as `undecodable`.
async fn handle(message: Message) -> Result<(), BoxError> {
    let Json(order) = Json::<Order>::from_message(&message)?;
    if order.id == 2 && message.attempt() == 1 {
        std::future::pending::<()>().await; // the partner does not answer
    }
    println!("shipped order {}", order.id);
    Ok(())
}

/// Prints how long each attempt took.
#[derive(Clone)]
struct Measured<S>(S);

impl<S> Service<Message> for Measured<S>
where
    S: Service<Message, Response = ()>,
    S::Future: Send + 'static,
{
    type Response = ();
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<(), S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, message: Message) -> Self::Future {
        let (attempt, began) = (message.attempt(), Instant::now());
        let handled = self.0.call(message);
        Box::pin(async move {
            let answer = handled.await;
            let end = if answer.is_ok() {
                "succeeded"
            } else {
                "failed"
            };
            println!(
                "attempt {attempt} {end} in {} ms",
                began.elapsed().as_millis()
            );
            answer
        })
    }
}

#[tokio::main]
async fn main() -> retryrmq::Result<()> {
    let rmq = Client::from_env(ClientOptions::new()).await?;
    let (tell, mut told) = mpsc::unbounded_channel();
    let notes = tell.clone();
    let layered = ServiceBuilder::new()
        .layer(layer_fn(Measured))
        .timeout(Duration::from_secs(2))
        .service(service_fn(handle));
    let shipping = rmq
        .consumer("example.layers")
        .dlx(true)
        .rules(["error=TimeoutError => fixed(300ms, retries=3)".parse()?])
        .on_event(move |event| match event {
            Event::Parked {
                message_id,
                reason,
                error,
                ..
            } => {
                let id = message_id.as_deref().unwrap_or_default();
                println!("{id} is parked as {reason}: {error}");
                let _ = tell.send(()); // main may have ended
            }
            Event::Retried { error, .. } => println!("once more: {error}"),
            _ => {}
        })
        .start(service(layered))
        .await?;
    // Without layers, the body is an argument.
    let noting = rmq
        .consumer("example.notes")
        .dlx(true)
        .start(extract(
            move |Json(order): Json<Order>, message: Message| {
                println!("noted order {} at attempt {}", order.id, message.attempt());
                let _ = notes.send(());
                async { Ok::<(), BoxError>(()) }
            },
        ))
        .await?;
    for (id, body) in [
        ("one", r#"{"id": 1}"#),
        ("two", r#"{"id": 2}"#),
        ("three", r#"{"id": "3"}"#),
    ] {
        for queue in ["example.layers", "example.notes"] {
            rmq.publish(Publish::to_queue(queue, body).message_id(id))
                .await?;
        }
    }
    // Two are noted, and one is parked.
    for _ in 0..3 {
        told.recv().await;
    }
    while shipping.stats().acked < 2 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    shipping.close().await;
    noting.close().await;
    rmq.close().await;
    Ok(())
}
