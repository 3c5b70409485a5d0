//! A running consumer: batches out, ends of attempts in.

use std::{sync::Arc, time::Duration};

use retryrmq::{Outcome, Token};

use crate::{
    errors::Refusal,
    live::{Alive, Kind},
    message,
    operation::{Answer, Operation, other},
    options::Ending,
    wire::Wire,
};

/// A running consumer.
#[derive(Debug, uniffi::Object)]
pub struct Subscription {
    inner: Arc<retryrmq::Subscription>,
    _alive: Alive,
}

#[uniffi::export]
impl Operation {
    /// The subscription that was made.
    pub fn subscription(&self) -> Result<Arc<Subscription>, Refusal> {
        match self.take()? {
            Answer::Subscription(inner) => Ok(Arc::new(Subscription {
                inner: Arc::new(*inner),
                _alive: Alive::new(Kind::Subscription),
            })),
            _ => Err(other()),
        }
    }
}

/// A number and its name.
#[derive(Debug, uniffi::Record)]
pub struct Number {
    /// The name, the same in every language.
    pub name: String,
    /// The number.
    pub value: u64,
}

fn tokens(wire: &Wire) -> impl Iterator<Item = Token> {
    wire.chunks_exact(8).map(|bytes| {
        Token::from_u64(
            bytes
                .iter()
                .rev()
                .fold(0, |token, byte| token << 8 | u64::from(*byte)),
        )
    })
}

#[uniffi::export]
impl Subscription {
    /// Acknowledges the messages `acks`, and takes `most` others. Waits for them when there are none, `wait_ms` at most.
    pub fn exchange(&self, acks: Wire, most: u32, wait_ms: u32) -> Wire {
        if !acks.is_empty() {
            self.inner
                .settle(tokens(&acks).map(|token| (token, Outcome::Ack)));
        }
        if most == 0 {
            return Wire::default();
        }
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let mut batch = self.inner.try_next_batch(most);
        if batch.is_empty() && wait_ms > 0 {
            let wait = Duration::from_millis(u64::from(wait_ms));
            batch = self.inner.next_batch_blocking(most, wait);
        }
        message::batch(&batch, |message| self.inner.may_park(message))
    }

    /// Ends an attempt that was not simply handled.
    pub fn settle(&self, token: u64, ending: Ending) {
        self.inner
            .settle([(Token::from_u64(token), ending.outcome())]);
    }

    /// Gives back messages that no handler has started on.
    pub fn give_back(&self, unstarted: Wire) {
        self.inner.give_back(tokens(&unstarted));
    }

    /// Asks for the end.
    pub fn close(&self) {
        self.inner.close();
    }

    /// Done when everything is settled.
    pub fn wait_closed(&self, ticket: u64) -> Result<Arc<Operation>, Refusal> {
        let inner = Arc::clone(&self.inner);
        Operation::begin(ticket, async move {
            inner.wait_closed().await?;
            Ok(Answer::Nothing)
        })
    }

    /// The numbers of this queue since the client was made.
    pub fn stats(&self) -> Vec<Number> {
        self.inner
            .stats()
            .numbers()
            .into_iter()
            .map(|(name, value)| Number {
                name: name.to_owned(),
                value,
            })
            .collect()
    }
}
