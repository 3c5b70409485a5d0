//! What the options of a consumer must be.

use std::time::Duration;

use super::{Consumer, Pause};
use crate::{
    Error, ErrorKind, MAX_DELAY, Result,
    connection::NameLimit,
    retry::format_duration,
    topology::{self, WorkQueue},
};

/// Each of them is a task, or a thread where a language runs handlers on threads.
const MOST_AT_A_TIME: usize = 100_000;
/// A larger batch helps no handler, and a crash would count against all of it.
const LARGEST_BATCH: usize = 10_000;
/// Messages that wait for others are unacknowledged, and no broker's `consumer_timeout` may be near.
const LONGEST_BATCH_WAIT: Duration = Duration::from_secs(60);
/// Of crashes and deferrals: what is counted further has no limit worth the name.
const MOST_COUNTED: u32 = 1_000_000;

impl Consumer {
    /// Checks each option without a broker. [`subscribe`](Self::subscribe) does this first.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`] or [`ErrorKind::InvalidPolicy`] for an option that cannot work. [`ErrorKind::TooLarge`] if the name of
    /// the queue, or of a waiting queue made from it, would be longer than 255 bytes.
    pub fn validate(&self) -> Result<()> {
        let bad = |why: &str| Err(Error::new(ErrorKind::InvalidOption, why));
        if self.queue.is_empty() {
            return bad("`queue` is empty; name the queue to consume");
        }
        if self.queue.contains(['\r', '\n']) {
            return bad("the name of `queue` contains a line break; remove it");
        }
        topology::name(&self.queue)?;
        if let Some(work) = topology::work_queue_of(&self.queue).filter(|_| !self.reserved_name) {
            return bad(&format!(
                "`{}` is one of the queues of `{work}`; consume `{work}`, or replay the parked messages; if it is your own \
                 queue, set `reserved_name`",
                self.queue
            ));
        }
        if self.has_dlx() {
            topology::check_family(&self.queue, NameLimit::NONE)?;
        }
        if !self.has_dlx() && !matches!(self.work_queue, None | Some(WorkQueue::Existing)) {
            return bad(
                "`work_queue` needs `dlx`, because without it no queue is created; declare the queue yourself, or use `existing`",
            );
        }
        let given_up = (!self.park).then_some("park");
        if let Some(option) = self.retries_by.or(given_up).filter(|_| !self.has_dlx()) {
            return bad(&format!(
                "`{option}` needs `dlx`: without it a failed message is rejected, and dropped if its queue has no dead-letter route"
            ));
        }
        if self.prefetch == Some(0) {
            return bad(
                "`prefetch` must be at least 1: without it the broker would send the whole queue at once",
            );
        }
        if self.prefetch_bytes == Some(0) {
            return bad("`prefetch_bytes` must be at least 1; leave it out for no limit");
        }
        if !(1..=MOST_AT_A_TIME).contains(&self.concurrency) {
            return bad(&format!(
                "`concurrency` must be at least 1 and at most {MOST_AT_A_TIME}"
            ));
        }
        self.validate_batch()?;
        if self
            .handler_timeout
            .is_some_and(|timeout| timeout.is_zero())
        {
            return bad("`handler_timeout` must be longer than 0");
        }
        for (option, time) in [
            ("handler_timeout", self.handler_timeout),
            ("drain_timeout", Some(self.drain_timeout)),
        ] {
            if time.is_some_and(|time| time > MAX_DELAY) {
                return bad(&format!("`{option}` must be at most 365d"));
            }
        }
        if self.limits.crashes == 0 || self.limits.suspect == 0 {
            return bad("`limits.crashes` and `limits.suspect` must be at least 1");
        }
        if self.limits.crashes.max(self.limits.deferrals) > MOST_COUNTED {
            return bad(&format!(
                "`limits.crashes` and `limits.deferrals` must be at most {MOST_COUNTED}"
            ));
        }
        self.pause.as_ref().map_or(Ok(()), Pause::validate)?;
        self.rules.validate()
    }

    fn validate_batch(&self) -> Result<()> {
        let bad = |why: String| Err(Error::new(ErrorKind::InvalidOption, why));
        let Some(batch) = self.batch else {
            return match self.batch_wait {
                Some(_) => bad(
                    "`batch_wait` needs `batch`: a single message waits for no others".to_owned(),
                ),
                None => Ok(()),
            };
        };
        if !(1..=LARGEST_BATCH).contains(&batch) {
            return bad(format!(
                "`batch` must be at least 1 and at most {LARGEST_BATCH}"
            ));
        }
        if self.configured_batch_wait() > LONGEST_BATCH_WAIT {
            return bad(format!(
                "`batch_wait` must be at most {}: messages that wait for others are not acknowledged",
                format_duration(LONGEST_BATCH_WAIT)
            ));
        }
        match self.prefetch {
            Some(prefetch) if usize::from(prefetch) < batch => bad(format!(
                "`prefetch` ({prefetch}) must be at least `batch` ({batch}), or no batch could be complete; raise it, or leave it out"
            )),
            Some(_) => Ok(()),
            None if batch.saturating_mul(self.concurrency) > usize::from(u16::MAX) => bad(format!(
                "`batch` ({batch}) × `concurrency` ({}) must be at most {}, which is the largest prefetch; lower one of them, or set `prefetch`",
                self.concurrency,
                u16::MAX
            )),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::retry::{Policy, Rule};

    #[test]
    fn our_own_queues_are_consumed_only_by_whoever_says_so() {
        for (queue, work) in [
            ("orders.parked", "`orders`"),
            ("orders.retry.1000", "`orders`"),
            ("orders.parked.retry.1000", "`orders.parked`"),
        ] {
            let error = Consumer::new(queue).validate().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidOption);
            assert!(error.to_string().contains(work), "{error}");
            assert!(error.to_string().contains("`reserved_name`"), "{error}");
            Consumer::new(queue).dlx(true).validate().unwrap_err();
            Consumer::new(queue).reserved_name(true).validate().unwrap();
        }
        for queue in [
            "parked",
            ".parked",
            "orders.retry.",
            "orders.retry.1s",
            "orders.parked.x",
        ] {
            Consumer::new(queue).validate().unwrap();
        }
    }

    #[test]
    fn a_batch_must_fit_into_the_prefetch() {
        let orders = || Consumer::new("orders");
        for (consumer, named) in [
            (orders().batch(0), "`batch` must be at least 1"),
            (orders().batch(10_001), "at most 10000"),
            (
                orders().batch_wait(Duration::ZERO),
                "`batch_wait` needs `batch`",
            ),
            (
                orders().batch(2).batch_wait(Duration::from_secs(61)),
                "`batch_wait` must be at most 1m",
            ),
            (
                orders().batch(100).prefetch(99),
                "`prefetch` (99) must be at least `batch` (100)",
            ),
            (
                orders().batch(10_000),
                "`batch` (10000) × `concurrency` (16) must be at most 65535",
            ),
        ] {
            let error = consumer.validate().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidOption);
            assert!(error.to_string().contains(named), "{error}");
        }
        for (consumer, prefetch) in [
            (orders(), 64),
            (orders().concurrency(100), 64),
            (orders().batch(1).batch_wait(Duration::ZERO), 64),
            (orders().batch(100), 1_600),
            (orders().batch(10_000).concurrency(6), 60_000),
            (orders().batch(10_000).prefetch(10_000), 10_000),
            (orders().batch(100).prefetch(100), 100),
        ] {
            consumer.validate().unwrap();
            assert_eq!(consumer.configured_prefetch(), prefetch);
        }
    }

    #[test]
    fn some_bytes_must_be_allowed() {
        let orders = |bytes| Consumer::new("orders").prefetch_bytes(bytes);
        let error = orders(0).validate().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOption);
        assert!(error.to_string().contains("`prefetch_bytes`"), "{error}");
        orders(1).validate().unwrap();
    }

    #[test]
    fn how_to_retry_means_nothing_without_dlx() {
        let policy = || "fixed(1s)".parse::<Policy>().unwrap();
        let rule = || "error=x => fixed(1s)".parse::<Rule>().unwrap();
        for (consumer, named) in [
            (
                Consumer::new("orders").retry(policy()),
                "`retry` needs `dlx`",
            ),
            (
                Consumer::new("orders").rules([rule()]),
                "`rules` needs `dlx`",
            ),
            (
                Consumer::new("orders").dlx(true).retry(policy()).dlx(false),
                "`retry` needs `dlx`",
            ),
            (
                Consumer::new("orders").fatal(|_| false),
                "`fatal` needs `dlx`",
            ),
            (Consumer::new("orders").park(false), "`park` needs `dlx`"),
        ] {
            let error = consumer.validate().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidOption);
            assert!(error.to_string().contains(named), "{error}");
        }
        for consumer in [
            Consumer::new("orders"),
            Consumer::new("orders").rules([]),
            Consumer::new("orders")
                .retry(policy())
                .rules([rule()])
                .fatal(|_| false)
                .park(false)
                .dlx(true),
            Consumer::new("orders").park(true),
        ] {
            consumer.validate().unwrap();
        }
    }
}
