//! How often a client may try a token.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use retryrmq_operator::http_server::network;
use tokio::{sync::Mutex as Turn, time::Instant};

/// What a wrong token costs.
const COST: Duration = Duration::from_secs(1);
/// Wrong tokens that a client may try before it has to wait.
const BURST: u32 = 5;

/// What each client still owes for its wrong tokens. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct SignInLimiter {
    next_attempts: Arc<Mutex<HashMap<IpAddr, Instant>>>,
    /// One token is looked at at a time: until it is known to be right it is charged, and programs send many right ones at once.
    turn: Arc<Turn<()>>,
}

/// The client has tried too many wrong tokens: the one that it sent was not looked at.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooManyTries;

impl SignInLimiter {
    /// Looks at a token of a client: `find` gives what is known by it, and nothing for a wrong one, which costs.
    pub(super) async fn attempt<T>(
        &self,
        client: IpAddr,
        find: impl FnOnce() -> Option<T>,
    ) -> Result<Option<T>, TooManyTries> {
        let _turn = self.turn.lock().await;
        if !self.charge(client) {
            return Err(TooManyTries);
        }
        let found = find();
        if found.is_some() {
            self.refund(client);
        }
        Ok(found)
    }

    /// Charges a client for a try, before it is known whether the token is wrong: many may be tried at the same time. `false` if it has to
    /// wait first.
    fn charge(&self, client: IpAddr) -> bool {
        let now = Instant::now();
        let mut next_attempts = self
            .next_attempts
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        next_attempts.retain(|_, until| *until > now);
        let until = next_attempts.entry(network(client)).or_insert(now);
        let may = *until + COST <= now + COST * BURST;
        if may {
            *until += COST;
        }
        may
    }

    /// The token was right.
    fn refund(&self, client: IpAddr) {
        let mut next_attempts = self
            .next_attempts
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(until) = next_attempts.get_mut(&network(client)) {
            *until -= COST;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_client_has_five_tries_and_then_one_a_second() {
        let limiter = SignInLimiter::default();
        let (one, other) = ("2001:db8::1", "2001:db8:0:1::1");
        let tries = |address: &str, count| {
            let address = address.parse().unwrap();
            (0..count).filter(|_| limiter.charge(address)).count()
        };
        assert_eq!(tries(one, 600), 5);
        assert_eq!(tries("2001:db8::2", 10), 0, "the same network");
        assert_eq!(tries(other, 10), 5);
        advance(COST * 2).await;
        assert_eq!(tries(one, 10), 2);
        advance(COST * 60).await;
        assert_eq!(tries(one, 10), 5);
        assert_eq!(
            limiter.next_attempts.lock().unwrap().len(),
            1,
            "others are forgotten"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn right_tokens_cost_nothing_however_many_come_at_once() {
        let limiter = SignInLimiter::default();
        let client = "192.0.2.1".parse().unwrap();
        let all = (0..100).map(|number| limiter.attempt(client, move || Some(number)));
        let all = futures_util::future::join_all(all).await;
        assert!(all.iter().all(|found| matches!(found, Ok(Some(_)))));
        let wrong = async || limiter.attempt(client, || None::<()>).await;
        for _ in 0..5 {
            assert_eq!(wrong().await, Ok(None));
        }
        assert_eq!(wrong().await, Err(TooManyTries));
        let right = limiter.attempt(client, || Some(())).await;
        assert_eq!(right, Err(TooManyTries), "it is not looked at");
    }
}
