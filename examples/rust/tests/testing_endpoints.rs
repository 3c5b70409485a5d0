//! Endpoints of a service, and its handler, tested without a broker.

use axum::{
    Router,
    body::Body,
    extract::State,
    http::{Request, StatusCode},
    routing::post,
};
use retryrmq::{Client, ErrorKind, FakeClient, MINUTE, Message, Publish, RunningConsumer, Step};
use tower::ServiceExt;

async fn order(State(rmq): State<Client>, body: String) -> StatusCode {
    match rmq.publish(Publish::to_queue("orders", body)).await {
        Ok(()) => StatusCode::ACCEPTED,
        Err(why) => {
            eprintln!("{why}"); // not for the client: it names the broker
            StatusCode::SERVICE_UNAVAILABLE
        }
    }
}

/// The service: it gets its client from whoever starts it.
async fn service(rmq: Client) -> retryrmq::Result<(Router, RunningConsumer)> {
    let (routes, shipping) = (Router::new().route("/orders", post(order)), rmq.clone());
    let ship = move |message: Message| {
        let rmq = shipping.clone();
        async move {
            if message.attempt() == 1 {
                return Err("the warehouse does not answer".to_owned());
            }
            let shipped = Publish::to_queue("shipped", message.body());
            rmq.publish(shipped).await.map_err(|why| why.to_string())
        }
    };
    let policy = "fixed(1m, retries=2)".parse()?;
    let running = rmq.consumer("orders").dlx(true).retry(policy).start(ship);
    Ok((routes.with_state(rmq.clone()), running.await?))
}

async fn post_order(routes: Router) -> StatusCode {
    let request = Request::post("/orders").body(Body::from(r#"{"id": 7}"#));
    let answer = routes.oneshot(request.expect("a request")).await;
    answer.expect("an answer").status()
}

#[tokio::test]
async fn an_accepted_order_is_published() {
    let fake = FakeClient::new();
    let (routes, _) = service(fake.client()).await.expect("it starts");
    assert_eq!(post_order(routes).await, StatusCode::ACCEPTED);
    let published = fake.published();
    assert_eq!(published.len(), 1);
    let message = &published[0].message;
    assert_eq!(message.routing_key(), "orders");
    assert_eq!(message.body(), br#"{"id": 7}"#);
}

#[tokio::test]
async fn without_a_broker_the_client_shall_try_again() {
    let fake = FakeClient::new();
    let (routes, _) = service(fake.client()).await.expect("it starts");
    fake.set_publish_error(Some(ErrorKind::Unreachable));
    assert_eq!(post_order(routes).await, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn an_order_is_shipped_at_the_second_attempt() {
    let fake = FakeClient::new();
    let (_, running) = service(fake.client()).await.expect("it starts");
    let order = Publish::to_queue("orders", r#"{"id": 7}"#);
    let trials = fake.deliver("orders", order).await.expect("it is handled");
    assert!(matches!(trials[0].step, Step::Retried { delay, .. } if delay == MINUTE));
    assert!(matches!(trials[1].step, Step::Acked));
    assert_eq!(fake.published()[0].message.routing_key(), "shipped");
    running.close().await;
}
