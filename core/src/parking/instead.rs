//! A message that is replayed as something else than it is parked as: what another library wrapped it in or wrote on it when it
//! failed is taken off first.

use std::sync::Arc;

use lapin::BasicProperties;

use super::{Browse, Record};
use crate::{Result, consumer::Received};

/// What is replayed in place of a parked message.
#[derive(Clone, Debug)]
pub struct Instead {
    /// All properties, headers included. `user_id`, `expiration` and what a broker writes go the way of any replay's.
    pub properties: BasicProperties,
    /// The body.
    pub body: Vec<u8>,
    /// The exchange and the routing key that it was first published with, where they are known better than by the parked message.
    pub origin: Option<(String, String)>,
}

impl Browse {
    /// As [`replay_to`](Self::replay_to), with other content. The parked message leaves after the copy is confirmed.
    ///
    /// # Errors
    /// As [`replay_to`](Self::replay_to).
    pub async fn replay_instead(
        &mut self,
        record: &Record,
        instead: &Instead,
        queue: &str,
    ) -> Result<()> {
        let parked = &record.received;
        let mut state = parked.state.clone();
        if let Some((exchange, routing_key)) = &instead.origin {
            state.exchange = Some(exchange.clone());
            state.routing_key = Some(routing_key.clone());
        }
        let copy = Arc::new(Received {
            queue: Arc::clone(&parked.queue),
            body: instead.body.clone(),
            properties: instead.properties.clone(),
            exchange: parked.exchange.clone(),
            routing_key: parked.routing_key.clone(),
            redelivered: parked.redelivered,
            state,
            mended: parked.mended.clone(),
        });
        self.replay_copy(record, &copy, queue).await
    }
}
