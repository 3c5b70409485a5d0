//! What happens where an exchange, or its type, is missing.

use lapin::ExchangeKind;
use lapin::options::ExchangeDeclareOptions;
use retryrmq_facts::*;
use retryrmq_harness::{Version, on_every_broker};

/// Fact 33. The core asks for it only where nothing else uses the connection.
#[tokio::test]
async fn an_exchange_type_that_is_missing_costs_the_whole_connection_on_3_10() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let delayed = || ExchangeKind::Custom("x-delayed-message".into());
        let declare = |channel: lapin::Channel, passive| async move {
            let options = ExchangeDeclareOptions {
                passive,
                durable: true,
                ..Default::default()
            };
            let arguments = table([("x-delayed-type", string("direct"))]);
            let declared = channel
                .exchange_declare("delayed".into(), delayed(), options, arguments)
                .await;
            closed(&channel).await;
            declared
        };
        let (code, text) = refusal(declare(amqp.new_channel().await, true).await);
        assert_eq!(
            (code, text),
            (
                404,
                format!(
                    "NOT_FOUND - no exchange 'delayed' in vhost '{}'",
                    vhost.name()
                )
            )
        );
        assert!(amqp.connection().status().connected());

        let refused = refusal(declare(amqp.new_channel().await, false).await);
        let old = broker.version() < Version::V4_0;
        let (code, name) = if old {
            (503, "COMMAND_INVALID")
        } else {
            (406, "PRECONDITION_FAILED")
        };
        assert_eq!(
            refused,
            (
                code,
                format!("{name} - unknown exchange type 'x-delayed-message'")
            )
        );
        assert_eq!(amqp.connection().status().connected(), !old);
    })
    .await;
}
