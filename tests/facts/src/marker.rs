//! The marker of a queue: an exchange of its name that is bound to it. The binding goes with the queue.

use crate::closed;
use lapin::ExchangeKind;
use lapin::options::{ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions};
use lapin::types::FieldTable;
use retryrmq_harness::Amqp;

/// Declares the exchange, and does not bind it.
///
/// # Errors
/// The refusal of the broker.
pub async fn declare_marker(amqp: &Amqp, queue: &str) -> lapin::Result<()> {
    let options = ExchangeDeclareOptions {
        durable: true,
        internal: true,
        ..Default::default()
    };
    let channel = amqp.new_channel().await;
    let declared = channel
        .exchange_declare(
            queue.into(),
            ExchangeKind::Fanout,
            options,
            FieldTable::default(),
        )
        .await;
    if declared.is_err() {
        closed(&channel).await;
    }
    declared
}

/// Declares the exchange and binds the queue to it.
///
/// # Panics
/// When the broker refuses.
pub async fn mark(amqp: &Amqp, queue: &str) {
    declare_marker(amqp, queue).await.unwrap();
    let options = QueueBindOptions::default();
    amqp.channel()
        .queue_bind(
            queue.into(),
            queue.into(),
            "".into(),
            options,
            FieldTable::default(),
        )
        .await
        .unwrap();
}

/// Deletes the exchange if nothing is bound to it.
///
/// # Errors
/// The refusal of the broker.
pub async fn delete_unbound_marker(amqp: &Amqp, queue: &str) -> lapin::Result<()> {
    let options = ExchangeDeleteOptions {
        if_unused: true,
        ..Default::default()
    };
    let channel = amqp.new_channel().await;
    let deleted = channel.exchange_delete(queue.into(), options).await;
    if deleted.is_err() {
        closed(&channel).await;
    }
    deleted
}

/// Looks for the exchange.
///
/// # Errors
/// The refusal of the broker, 404 if there is none.
pub async fn look_for_marker(amqp: &Amqp, queue: &str) -> lapin::Result<()> {
    let options = ExchangeDeclareOptions {
        passive: true,
        ..Default::default()
    };
    let channel = amqp.new_channel().await;
    let looked = channel
        .exchange_declare(
            queue.into(),
            ExchangeKind::Fanout,
            options,
            FieldTable::default(),
        )
        .await;
    if looked.is_err() {
        closed(&channel).await;
    }
    looked
}
