//! What the delayed-message plugin keeps when its broker is killed.

use lapin::BasicProperties;
use lapin::ExchangeKind;
use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions, QueueBindOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use retryrmq_harness::{Amqp, Broker, QueueType, eventually, on_brokers_where};
use std::time::Duration;

const MESSAGES: u32 = 20;
/// Longer than a restart takes.
const DELAY: Duration = Duration::from_secs(20);
const DEADLINE: Duration = Duration::from_secs(120);

async fn delay(amqp: &Amqp) {
    let (exchange, queue) = (ShortString::from("later"), ShortString::from("orders"));
    let channel = amqp.channel();
    let mut arguments = FieldTable::default();
    arguments.insert(
        "x-delayed-type".into(),
        AMQPValue::LongString("direct".into()),
    );
    let durable = ExchangeDeclareOptions {
        durable: true,
        ..ExchangeDeclareOptions::default()
    };
    let kind = ExchangeKind::Custom("x-delayed-message".into());
    channel
        .exchange_declare(exchange.clone(), kind, durable, arguments)
        .await
        .expect("the plugin is there");
    channel
        .queue_bind(
            queue.clone(),
            exchange.clone(),
            queue.clone(),
            QueueBindOptions::default(),
            FieldTable::default(),
        )
        .await
        .expect("it is bound");
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await
        .expect("it confirms");
    let mut headers = FieldTable::default();
    let ms = i64::try_from(DELAY.as_millis()).expect("it is short");
    headers.insert("x-delay".into(), AMQPValue::LongLongInt(ms));
    let properties = BasicProperties::default()
        .with_delivery_mode(2)
        .with_headers(headers);
    for number in 0..MESSAGES {
        let body = number.to_string();
        channel
            .basic_publish(
                exchange.clone(),
                queue.clone(),
                BasicPublishOptions::default(),
                body.as_bytes(),
                properties.clone(),
            )
            .await
            .expect("it is sent")
            .await
            .expect("it is confirmed");
    }
}

/// Fact 59. That nothing is left of what was confirmed a moment before is seen on a quiet machine only; on a busy one the log is
/// written later, too. So it is written here.
#[tokio::test]
async fn what_the_plugin_was_sent_survives_a_kill_when_the_log_of_mnesia_is_written() {
    on_brokers_where(Broker::may_have_delayed_messages, |broker| async move {
        let node = broker
            .own_node(&["plugins = rabbitmq_delayed_message_exchange"])
            .await;
        let vhost = node.vhost().await;
        let amqp = vhost.connect().await;
        // A quorum queue so young may come back without a leader (fact 57), and would take nothing.
        amqp.declare("orders", QueueType::Classic).await;
        delay(&amqp).await;
        let written = node.ctl(&["eval", "disk_log:sync(latest_log)."]).await;
        assert_eq!(written.trim(), "ok");
        node.kill().await;
        node.start().await;
        let amqp = vhost.connect().await;
        eventually(DEADLINE, "all have come", || async {
            let depth = amqp.depth("orders").await;
            if depth == Some(MESSAGES) {
                Ok(())
            } else {
                Err(format!("{depth:?}"))
            }
        })
        .await;
    })
    .await;
}
