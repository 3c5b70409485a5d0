//! How often a client may try a token.

use std::{
    collections::{HashMap, VecDeque},
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use retryrmq_operator::http_server::network;
use ring::{hmac, rand::SystemRandom};
use tokio::{sync::Mutex as Turn, time::Instant};

use super::{
    auth::Unreadable,
    refusal::{Refusal, RefusalKind},
};

/// What a wrong token costs.
const COST: Duration = Duration::from_secs(1);
/// Wrong tokens that a client may try before it has to wait.
const BURST: u32 = 5;
/// Wrong tokens of a client that are remembered, and for how long: a program that sends an old one again and again keeps no other one out.
const REMEMBERED: usize = 5;
const REMEMBERED_FOR: Duration = Duration::from_secs(10);

/// What each client still owes for its wrong tokens. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct SignInLimiter {
    next_attempts: Arc<Mutex<HashMap<IpAddr, Instant>>>,
    wrong_tokens: Arc<Mutex<HashMap<IpAddr, VecDeque<WrongToken>>>>,
    /// Of the tags of wrong tokens, which are not kept themselves: some are nearly right.
    key: hmac::Key,
    /// One token is looked at at a time: until it is known to be right it is charged, and programs send many right ones at once.
    turn: Arc<Turn<()>>,
}

#[derive(Debug)]
struct WrongToken {
    tag: hmac::Tag,
    until: Instant,
}

/// Why a token lets nobody in.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// It is nobody's.
    Wrong,
    /// It was nobody's a moment ago: it was not looked at again, and cost nothing.
    WrongAgain,
    /// The client has tried too many wrong tokens: this one was not looked at.
    TooManyTries,
    /// Nobody knows whose it is: it cost nothing.
    Unreadable,
}

impl Fault {
    /// What whoever sent the token is told.
    pub(super) fn refusal(&self) -> Refusal {
        match self {
            Self::Wrong | Self::WrongAgain => Refusal::new(
                RefusalKind::Unauthorized,
                "Unknown token: send one of [[page.tokens]].",
            ),
            Self::TooManyTries => Refusal::new(
                RefusalKind::TooManyTries,
                "Too many wrong tokens came from your address. Try again in a few seconds.",
            ),
            Self::Unreadable => Refusal::unavailable(
                "A token file cannot be read, so this token cannot be checked. Try again in a moment.",
            ),
        }
    }
}

impl Default for SignInLimiter {
    fn default() -> Self {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new());
        Self {
            next_attempts: Arc::default(),
            wrong_tokens: Arc::default(),
            key: key.expect("the system has random numbers"),
            turn: Arc::default(),
        }
    }
}

impl SignInLimiter {
    /// Looks at a token of a client: `find` gives what is known by it, and nothing for a wrong one, which costs.
    pub(super) async fn attempt<T>(
        &self,
        client: IpAddr,
        token: &str,
        find: impl FnOnce() -> Result<Option<T>, Unreadable>,
    ) -> Result<T, Fault> {
        let tag = hmac::sign(&self.key, token.trim().as_bytes());
        let _turn = self.turn.lock().await;
        if self.was_wrong(client, &tag) {
            return Err(Fault::WrongAgain);
        }
        if !self.charge(client) {
            return Err(Fault::TooManyTries);
        }
        match find() {
            Ok(Some(found)) => {
                self.refund(client);
                Ok(found)
            }
            Ok(None) => {
                self.remember(client, tag);
                Err(Fault::Wrong)
            }
            Err(Unreadable) => {
                self.refund(client);
                Err(Fault::Unreadable)
            }
        }
    }

    fn was_wrong(&self, client: IpAddr, tag: &hmac::Tag) -> bool {
        let now = Instant::now();
        let mut wrong_tokens = self
            .wrong_tokens
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        wrong_tokens.retain(|_, tokens| {
            tokens.retain(|token| token.until > now);
            !tokens.is_empty()
        });
        wrong_tokens.get(&network(client)).is_some_and(|tokens| {
            let mut tokens = tokens.iter();
            tokens.any(|token| token.tag.as_ref() == tag.as_ref())
        })
    }

    fn remember(&self, client: IpAddr, tag: hmac::Tag) {
        let until = Instant::now() + REMEMBERED_FOR;
        let mut wrong_tokens = self
            .wrong_tokens
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let tokens = wrong_tokens.entry(network(client)).or_default();
        if tokens.len() >= REMEMBERED {
            tokens.pop_front();
        }
        tokens.push_back(WrongToken { tag, until });
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

    /// The token was not wrong.
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
        let all = (0..100).map(|number| limiter.attempt(client, "right", move || Ok(Some(number))));
        let all = futures_util::future::join_all(all).await;
        assert!(all.iter().all(Result::is_ok));
        for _ in 0..20 {
            let unreadable = limiter.attempt(client, "t", || Err::<Option<()>, _>(Unreadable));
            assert_eq!(unreadable.await, Err(Fault::Unreadable));
        }
        let wrong = async |token: &str| limiter.attempt(client, token, || Ok(None::<()>)).await;
        for number in 0..5 {
            assert_eq!(wrong(&number.to_string()).await, Err(Fault::Wrong));
        }
        assert_eq!(wrong("5").await, Err(Fault::TooManyTries));
        let right = limiter.attempt(client, "right", || Ok(Some(()))).await;
        assert_eq!(right, Err(Fault::TooManyTries), "it is not looked at");
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_wrong_token_costs_once_in_ten_seconds() {
        let limiter = SignInLimiter::default();
        let client = "192.0.2.1".parse().unwrap();
        let wrong = async |token: &str| limiter.attempt(client, token, || Ok(None::<()>)).await;
        assert_eq!(wrong("old").await, Err(Fault::Wrong));
        for _ in 0..100 {
            assert_eq!(wrong(" old").await, Err(Fault::WrongAgain));
        }
        let right = limiter.attempt(client, "right", || Ok(Some(()))).await;
        assert_eq!(right, Ok(()), "it keeps no other one out");
        let other = "192.0.2.2".parse().unwrap();
        let of_other = limiter.attempt(other, "old", || Ok(Some(()))).await;
        assert_eq!(of_other, Ok(()));
        advance(REMEMBERED_FOR).await;
        assert_eq!(
            wrong("old").await,
            Err(Fault::Wrong),
            "it may be right by now"
        );
        for number in 0..REMEMBERED {
            advance(COST).await;
            assert_eq!(wrong(&number.to_string()).await, Err(Fault::Wrong));
        }
        assert_eq!(
            wrong("old").await,
            Err(Fault::Wrong),
            "the last five are remembered"
        );
        advance(REMEMBERED_FOR * 2).await;
        assert_eq!(wrong("other").await, Err(Fault::Wrong));
        assert_eq!(limiter.wrong_tokens.lock().unwrap().len(), 1);
    }
}
