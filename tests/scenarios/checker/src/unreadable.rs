//! Messages that RabbitMQ stores, and cannot deliver over AMQP 0-9-1.

use retryrmq_harness::{
    Amqp10, Message10, Vhost,
    amqp10::{string, uuid},
};

use crate::scenario::{ID_HEADER, Message};

/// Publishes a message over AMQP 1.0 to a queue, with a property that AMQP 0-9-1 has no type for.
pub async fn publish(vhost: &Vhost, queue: &str, message: &Message) {
    let unreadable = Message10::new(message.bytes())
        .id(&message.id)
        .property(ID_HEADER, string(&message.id))
        .property("tenant", uuid([7; 16]));
    let mut publisher = Amqp10::connect(vhost).await;
    publisher
        .publish(&format!("/queues/{queue}"), &unreadable)
        .await;
}
