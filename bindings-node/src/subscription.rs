//! A running consumer: batches out, ends of attempts in.

use std::sync::Arc;

use napi::{Env, bindgen_prelude::Either};
use napi_derive::napi;
use retryrmq::{Delivery, Outcome};

use crate::{
    bridge::{Answer, Bridge},
    errors::{Result, thrown},
    live::{Alive, Kind},
    message::{Batch, Batches},
    operation::begin,
    outcome,
    wire::Reader,
};

/// A running consumer.
#[napi]
pub struct Subscription {
    inner: Arc<retryrmq::Subscription>,
    _alive: Alive,
}

impl Subscription {
    pub(crate) fn new(inner: retryrmq::Subscription) -> Self {
        Self {
            inner: Arc::new(inner),
            _alive: Alive::new(Kind::Subscription),
        }
    }
}

#[napi]
impl Subscription {
    /// The messages that are there, `most` at most; `null` when there are none. Never waits.
    #[napi]
    pub fn take<'env>(
        &self,
        env: &'env Env,
        most: u32,
    ) -> Result<Either<Batch<'env>, napi::bindgen_prelude::Null>> {
        let messages = self.inner.try_next_batch(most as usize);
        if messages.is_empty() {
            return Ok(Either::B(napi::bindgen_prelude::Null));
        }
        let mut batch = Batches::new(env);
        for Delivery { token, message } in &messages {
            batch.add(*token, message, self.inner.may_park(message))?;
        }
        batch.finish().map(Either::A)
    }

    /// Has the bridge say when there are messages, or none will come any more.
    #[napi]
    pub fn listen(&self, bridge: &Bridge, id: u32) -> Result<()> {
        let (subscription, bridge) = (Arc::clone(&self.inner), Arc::clone(&bridge.shared));
        let runtime = retryrmq::runtime().map_err(|error| thrown(&error))?;
        runtime.spawn(async move { bridge.ready(id, subscription.ready().await) });
        Ok(())
    }

    /// Hands over the ends of attempts: the first `count` of `handled` are acknowledged, the others are as written.
    #[napi]
    pub fn settle(&self, handled: &[f64], count: u32, others: Option<&[u8]>) -> Result<()> {
        let handled = handled.get(..count as usize).unwrap_or(handled);
        let acks = handled
            .iter()
            .map(|token| (outcome::token(*token), Outcome::Ack));
        let mut failed = Vec::new();
        if let Some(others) = others {
            let mut from = Reader::new(others);
            while !from.is_empty() {
                failed.push(outcome::read(&mut from)?);
            }
        }
        self.inner.settle(acks.chain(failed));
        Ok(())
    }

    /// Gives back messages that no handler has begun with.
    #[napi]
    pub fn give_back(&self, tokens: &[f64]) {
        self.inner
            .give_back(tokens.iter().map(|token| outcome::token(*token)));
    }

    /// Asks for the end.
    #[napi]
    pub fn close(&self) {
        self.inner.close();
    }

    /// Asks for the end now, without waiting for handlers.
    #[napi]
    pub fn abandon(&self) {
        self.inner.abandon();
    }

    /// Done when everything is settled.
    #[napi]
    pub fn wait_closed(&self, bridge: &Bridge, ticket: u32) -> Result<()> {
        let subscription = Arc::clone(&self.inner);
        begin(
            &bridge.shared,
            ticket,
            async move {
                subscription.wait_closed().await;
                Ok(())
            },
            |()| Answer::Nothing,
        )
    }

    /// The numbers of this queue since the client was made.
    #[napi]
    pub fn stats(&self) -> Vec<(&'static str, i64)> {
        self.inner
            .stats()
            .numbers()
            .into_iter()
            .map(|(name, number)| (name, i64::try_from(number).unwrap_or(i64::MAX)))
            .collect()
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        // Whoever could run its handlers is gone: the end of a worker thread, above all.
        self.inner.abandon();
    }
}
