//! The IP addresses of the hosts, each as soon as it is known: a name that does not resolve must not keep us from the others.

use std::{future::Future, net::SocketAddr, pin::Pin};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::time::{Instant, timeout_at};

use super::timeouts::IMPATIENT;
use crate::Result;

type Lookup<'a, A> = Pin<Box<dyn Future<Output = (A, Result<Vec<SocketAddr>>)> + Send + 'a>>;

/// The IP addresses of all hosts, each returned once, in random order. If names lead nowhere, one that got little time is returned once
/// more.
pub(super) struct Resolver<'a, A> {
    /// Resolved at the same time: each may take as long as a connection.
    resolving: FuturesUnordered<Lookup<'a, A>>,
    found: Vec<(A, SocketAddr)>,
    /// One that got little time, for the sake of others.
    short_timeout: Option<(A, SocketAddr)>,
    /// Until then, slower names also have a chance to be first.
    soon: Instant,
}

impl<'a, A: Clone + Send + 'a> Resolver<'a, A> {
    pub(super) fn of<R>(
        addresses: impl IntoIterator<Item = A>,
        resolve: impl Fn(A) -> R + Clone + Send + 'a,
    ) -> Self
    where
        R: Future<Output = Result<Vec<SocketAddr>>> + Send + 'a,
    {
        let resolving = addresses.into_iter().map(|address| {
            let found = resolve(address.clone());
            Box::pin(async move { (address, found.await) }) as Lookup<'a, A>
        });
        Self {
            resolving: resolving.collect(),
            found: Vec::new(),
            short_timeout: None,
            soon: Instant::now() + IMPATIENT,
        }
    }

    /// The next IP address to try, or why a name leads nowhere; `None` after the last one.
    pub(super) async fn next(&mut self) -> Option<Result<(A, SocketAddr)>> {
        loop {
            let answer = if self.found.is_empty() {
                self.resolving.next().await
            } else {
                let more = timeout_at(self.soon, self.resolving.next());
                more.await.ok().flatten()
            };
            match answer {
                Some((address, Ok(resolver))) => {
                    let resolver = resolver.into_iter().map(|place| (address.clone(), place));
                    self.found.extend(resolver);
                }
                Some((_, Err(error))) => return Some(Err(error)),
                None if self.found.is_empty() => return self.short_timeout.take().map(Ok),
                None => {
                    let any = fastrand::usize(..self.found.len());
                    let place = self.found.swap_remove(any);
                    if self.is_empty() {
                        self.short_timeout = None; // this one gets all the time
                    }
                    return Some(Ok(place));
                }
            }
        }
    }

    /// This one might have answered later. If the others lead nowhere, it is tried again.
    pub(super) fn had_short_timeout(&mut self, address: A, place: SocketAddr) {
        self.short_timeout = Some((address, place));
    }

    /// Whether there is nothing more to try.
    pub(super) fn is_empty(&self) -> bool {
        self.found.is_empty() && self.resolving.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Error, ErrorKind};

    fn place(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_that_nobody_answers_for_is_waited_for_last() {
        let resolve = async |seconds: u64| {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            match seconds {
                10 => Err(Error::new(ErrorKind::Timeout, "no answer")),
                seconds => Ok(vec![place(seconds as u16 + 1)]),
            }
        };
        let start = Instant::now();
        let mut resolver = Resolver::of([10, 1, 5, 0], resolve);
        let mut first = Vec::new();
        for _ in 0..2 {
            first.push(resolver.next().await.unwrap().unwrap().1.port());
        }
        first.sort_unstable();
        assert_eq!((first, start.elapsed()), (vec![1, 2], IMPATIENT));
        assert_eq!(resolver.next().await.unwrap().unwrap(), (5, place(6)));
        assert!(!resolver.is_empty());
        let why = resolver.next().await.unwrap().unwrap_err();
        assert_eq!(why.kind(), ErrorKind::Timeout);
        assert!(resolver.is_empty() && resolver.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_was_hurried_for_a_name_that_leads_nowhere_is_tried_again() {
        let resolve = async |seconds: u64| {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            match seconds {
                10 => Err(Error::new(ErrorKind::Timeout, "no answer")),
                seconds => Ok(vec![place(seconds as u16 + 1)]),
            }
        };
        let mut resolver = Resolver::of([10, 0], resolve);
        let (address, slow) = resolver.next().await.unwrap().unwrap();
        assert!(!resolver.is_empty(), "there may be another");
        resolver.had_short_timeout(address, slow);
        assert!(resolver.next().await.unwrap().is_err());
        assert_eq!(resolver.next().await.unwrap().unwrap(), (0, slow));
        assert!(resolver.is_empty() && resolver.next().await.is_none());
        // The last one always gets all the time.
        let mut resolver = Resolver::of([0, 1], resolve);
        let (address, slow) = resolver.next().await.unwrap().unwrap();
        resolver.had_short_timeout(address, slow);
        assert!(resolver.next().await.unwrap().is_ok() && resolver.is_empty());
        assert!(resolver.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_is_known_at_once_is_not_waited_for() {
        let start = Instant::now();
        let mut resolver = Resolver::of([1], async |port| Ok(vec![place(port)]));
        assert_eq!(resolver.next().await.unwrap().unwrap(), (1, place(1)));
        assert!(resolver.is_empty() && start.elapsed().is_zero());
    }
}
