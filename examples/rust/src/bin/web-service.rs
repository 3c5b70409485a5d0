//! A web service that publishes, consumes, serves `/metrics` and stops cleanly: `POST /orders`, `GET /metrics`, `GET /health`.

use std::time::Duration;

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    routing::{get, post},
};
use retryrmq::{Client, ClientOptions, ErrorKind, Message, Publish};
use tokio::signal::{
    ctrl_c,
    unix::{SignalKind, signal},
};

const QUEUE: &str = "example.web";

async fn order(State(rmq): State<Client>, body: String) -> (StatusCode, &'static str) {
    let message = Publish::to_queue(QUEUE, body).timeout(Duration::from_secs(10));
    let Err(why) = rmq.publish(message).await else {
        return (StatusCode::ACCEPTED, "taken\n"); // the broker has it
    };
    eprintln!("{why}"); // not for the client: it names the broker
    match why.kind() {
        // The message may not be stored, so the client should try again.
        ErrorKind::Unreachable
        | ErrorKind::ConnectionLost
        | ErrorKind::Timeout
        | ErrorKind::NotConfirmed
        | ErrorKind::Closed => (StatusCode::SERVICE_UNAVAILABLE, "try again later\n"),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "something went wrong\n"),
    }
}

async fn metrics(State(rmq): State<Client>) -> ([(header::HeaderName, &'static str); 1], String) {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], rmq.metrics_text())
}

async fn health(State(rmq): State<Client>) -> (StatusCode, &'static str) {
    match rmq.health() {
        Ok(()) => (StatusCode::OK, "fine\n"),
        Err(why) => {
            eprintln!("{why}");
            (
                StatusCode::SERVICE_UNAVAILABLE,
                "not connected to the broker\n",
            )
        }
    }
}

async fn handle(message: Message) -> std::io::Result<()> {
    println!("handled {}", String::from_utf8_lossy(message.body()));
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rmq = Client::from_env(ClientOptions::new()).await?;
    let routes = Router::new()
        .route("/orders", post(order))
        .route("/metrics", get(metrics))
        .route("/health", get(health))
        .with_state(rmq.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let mut sigterm = signal(SignalKind::terminate())?;
    // Last: everything that the handler needs is ready.
    let running = rmq.consumer(QUEUE).dlx(true).start(handle).await?;
    println!("at http://{}", listener.local_addr()?);
    let asked_to_stop = async move {
        tokio::select! {
            _ = ctrl_c() => {}
            _ = sigterm.recv() => {}
        }
        running.close().await; // first handlers finish, while requests are still answered
    };
    axum::serve(listener, routes)
        .with_graceful_shutdown(asked_to_stop)
        .await?; // then the last requests
    rmq.close().await;
    println!("ended");
    Ok(())
}
