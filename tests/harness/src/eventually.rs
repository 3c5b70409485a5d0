//! Waiting for a condition instead of sleeping and hoping.

use std::fmt::Display;
use std::future::Future;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

/// What a probe saw: the thing itself, or what there was instead.
pub trait ProbeResult {
    /// What [`eventually`] returns.
    type Thing;

    /// The thing, or a description of what was seen in its place.
    fn result(self) -> Result<Self::Thing, String>;
}

impl ProbeResult for bool {
    type Thing = ();

    fn result(self) -> Result<(), String> {
        self.then_some(()).ok_or_else(|| "false".into())
    }
}

impl<T> ProbeResult for Option<T> {
    type Thing = T;

    fn result(self) -> Result<T, String> {
        self.ok_or_else(|| "nothing".into())
    }
}

impl<T, E: Display> ProbeResult for Result<T, E> {
    type Thing = T;

    fn result(self) -> Result<T, String> {
        self.map_err(|error| error.to_string())
    }
}

/// Probes until the condition holds and returns what was found.
///
/// `what` completes the sentence "within 10 s …": `eventually(TEN_SECONDS, "the queue is empty", …)`. The probe may
/// return a `bool`, an `Option`, or a `Result` whose error says what was seen instead.
///
/// # Panics
/// When the deadline passes, also in the middle of a probe, with what the last finished probe saw.
pub async fn eventually<F, Fut>(
    deadline: Duration,
    what: &str,
    probe: F,
) -> <Fut::Output as ProbeResult>::Thing
where
    F: FnMut() -> Fut,
    Fut: Future<Output: ProbeResult>,
{
    Wait::new(deadline, what).until(probe).await
}

/// The same, as long as what probes see changes: for work of any length.
///
/// # Panics
/// When every probe has seen the same for so long, or one takes longer; after thirty times as long in any case.
pub async fn eventually_with_progress<F, Fut>(
    patience: Duration,
    what: &str,
    probe: F,
) -> <Fut::Output as ProbeResult>::Thing
where
    F: FnMut() -> Fut,
    Fut: Future<Output: ProbeResult>,
{
    let mut wait = Wait::new(patience, what);
    wait.is_renewed = true;
    wait.until(probe).await
}

/// What is the same for every probe, and so is compiled once.
struct Wait<'a> {
    deadline: Duration,
    what: &'a str,
    /// Whether it begins anew when a probe sees something else.
    is_renewed: bool,
    end: Instant,
    /// The end if it is renewed again and again.
    latest: Instant,
    last: String,
    probes: u32,
    pause: Duration,
}

impl<'a> Wait<'a> {
    fn new(deadline: Duration, what: &'a str) -> Self {
        Self {
            deadline,
            what,
            is_renewed: false,
            end: Instant::now() + deadline,
            latest: Instant::now() + deadline * 30,
            last: "no probe has finished".to_owned(),
            probes: 0,
            pause: Duration::from_millis(10),
        }
    }

    async fn until<F, Fut>(mut self, mut probe: F) -> <Fut::Output as ProbeResult>::Thing
    where
        F: FnMut() -> Fut,
        Fut: Future<Output: ProbeResult>,
    {
        loop {
            match timeout_at(self.end, probe()).await.map(ProbeResult::result) {
                Ok(Ok(thing)) => return thing,
                Ok(Err(seen)) => self.pause_after(seen).await,
                Err(_) => self.hangs(),
            }
        }
    }

    async fn pause_after(&mut self, seen: String) {
        self.probes += 1;
        if self.is_renewed && seen != self.last {
            self.end = (Instant::now() + self.deadline).min(self.latest);
        }
        if Instant::now() + self.pause >= self.end {
            let (deadline, what, probes) = (self.deadline, self.what, self.probes);
            panic!(
                "within {deadline:?}: {what}; not seen in {probes} probes, the last saw: {seen}"
            );
        }
        self.last = seen;
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(Duration::from_millis(200));
    }

    fn hangs(&self) -> ! {
        let (deadline, what, probes, last) = (self.deadline, self.what, self.probes, &self.last);
        panic!(
            "within {deadline:?}: {what}; not seen, the probe after {probes} others hangs, the last saw: {last}"
        );
    }
}
