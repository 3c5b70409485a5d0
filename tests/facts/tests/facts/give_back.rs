//! The ways in which a delivery gets back to its queue.

use lapin::options::{BasicNackOptions, BasicRecoverOptions};
use retryrmq_facts::*;
use retryrmq_harness::Amqp;

/// One of them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Return {
    Reject,
    Nack,
    Recover,
    ChannelClosed,
    ConnectionClosed,
}

/// Takes the next message of a queue and gives it back.
pub(crate) async fn give_back(amqp: &Amqp, queue: &str, way: Return) {
    let channel = amqp.new_channel().await;
    let message = hold(&channel, queue).await;
    match way {
        Return::Reject => requeue(&message).await,
        Return::Nack => {
            message
                .nack(BasicNackOptions {
                    requeue: true,
                    ..Default::default()
                })
                .await
                .unwrap();
        }
        Return::Recover => channel
            .basic_recover(BasicRecoverOptions { requeue: true })
            .await
            .unwrap(),
        Return::ChannelClosed => channel.close(200, "".into()).await.unwrap(),
        Return::ConnectionClosed => amqp.connection().close(200, "".into()).await.unwrap(),
    }
}
