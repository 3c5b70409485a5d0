//! How a broker ends a connection that somebody wants to end.

use futures_util::StreamExt;
use retryrmq_facts::*;
use retryrmq_harness::{QueueType, eventually, on_every_broker};
use tokio::time::timeout;

/// Fact 36.
#[tokio::test]
async fn an_operator_who_closes_a_connection_is_quoted() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare("work", QueueType::Classic).await;
        let mut consumer = amqp.consume("work", 1).await;
        let management = broker.management();
        let name = eventually(DEADLINE, "the connection is listed", || async {
            management
                .connections(vhost.name())
                .await
                .unwrap()
                .pop()
                .map(|connection| connection.name)
        })
        .await;
        management.close_connection(&name).await.unwrap();
        let end = timeout(DEADLINE, consumer.next())
            .await
            .unwrap()
            .expect("an error comes before the end");
        assert_eq!(
            refusal(end),
            (
                320,
                "CONNECTION_FORCED - Closed via management plugin".to_owned()
            )
        );
    })
    .await;
}
