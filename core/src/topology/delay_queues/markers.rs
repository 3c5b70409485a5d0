//! The markers that tell that a queue is old: looked for when a queue is found, and set when it has been there long enough.

use std::{
    collections::HashSet,
    sync::{Arc, atomic::Ordering},
};

use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};
use tracing::debug;

use super::{
    super::{
        SAFE_AGE,
        age_marker::{MarkerAge, is_markable},
        declarer::Make,
    },
    DelayQueues, Inner, MarkerLookup, QueueState, lock,
};
use crate::{Error, ErrorKind, Result, connection::Connection};

/// Queues without a marker, whatever their age: the user lacks a permission, or other exchanges have their names.
#[derive(Default)]
pub(super) struct Unmarked {
    all: bool,
    some: HashSet<String>,
}

impl Unmarked {
    fn has(&self, name: &str) -> bool {
        self.all || self.some.contains(name)
    }

    fn refused(&mut self, name: &str, error: &Error) {
        match error.kind() {
            ErrorKind::AccessRefused => self.all = true,
            ErrorKind::Mismatch => {
                self.some.insert(name.to_owned());
            }
            _ => {}
        }
        debug!(queue = name, %error, "the marker that the queue is old cannot be used");
    }
}

impl<M: Make> DelayQueues<M> {
    /// Begins to look for the marker of a queue that may be young, so that the answer is there when a copy is confirmed. Once for each time
    /// that the queue is found.
    pub(crate) fn find_marker(&self, name: &str) {
        if !self.0.declare || !self.0.is_markable(name) || lock(&self.0.unseen).has(name) {
            return;
        }
        let now = self.0.losses();
        let answer_sender = {
            let mut states = self.0.states();
            match states.get_mut(name) {
                Some(QueueState::Known {
                    age,
                    losses,
                    look: look @ MarkerLookup::Open,
                    ..
                }) if *losses == now && age.safe_from() > Instant::now() => {
                    let (answer_sender, answer) = watch::channel(false);
                    *look = MarkerLookup::Asked(answer);
                    answer_sender
                }
                _ => return,
            }
        };
        let (inner, name) = (Arc::clone(&self.0), name.to_owned());
        tokio::spawn(async move {
            let age = inner.maker.age(&inner.queue, &name, SAFE_AGE).await;
            let is_unmarked = matches!(age, Ok(MarkerAge::Unknown));
            inner.note_lookup(&name, &answer_sender, age.map(|age| age == MarkerAge::Old));
            answer_sender.send_replace(true);
            if is_unmarked {
                inner.mark_young(vec![name]).await;
            }
        });
    }

    /// As [`durable_after`](Self::durable_after), for a copy that was sent at this time, after the answer of a look for the queue's marker. `None` if it
    /// was safe when it was sent.
    pub(crate) async fn age_from_marker(&self, name: &str, sent: Instant) -> Option<Instant> {
        let is_young = || self.durable_after(name).filter(|safe| *safe > sent);
        let safe = is_young()?;
        let Some(mut answer) = self.0.asked(name) else {
            return Some(safe);
        };
        let _ = timeout_at(safe, answer.wait_for(|answered| *answered)).await;
        is_young()
    }

    /// Whether a look for the marker of this queue is not answered yet.
    pub(crate) fn is_asked(&self, name: &str) -> bool {
        self.0.asked(name).is_some()
    }

    /// Marks the queues that are known now, as soon as they are old. A connection that lives until then shows that the broker has.
    pub(crate) fn mark_when_old(&self, connection: &Arc<Connection>) {
        let names = self.0.to_be_marked();
        if names.is_empty() {
            return;
        }
        let (inner, connection) = (Arc::downgrade(&self.0), Arc::clone(connection));
        tokio::spawn(async move {
            let old = Instant::now() + SAFE_AGE;
            if connection.lives_until(old).await.is_ok()
                && let Some(inner) = inner.upgrade()
            {
                inner.mark(names).await;
            }
        });
    }
}

impl<M: Make> Inner<M> {
    /// Whether a queue of this name has a marker when it is old.
    pub(super) fn is_markable(&self, name: &str) -> bool {
        is_markable(&self.queue, name)
    }

    /// Whether a queue that is young will be old for each client soon, because it can be marked.
    pub(super) fn is_to_wait_for(&self, name: &str) -> bool {
        self.may_mark(name, &lock(&self.unmarked))
            && !lock(&self.unseen).has(name)
            && !self.no_clock.load(Ordering::Relaxed)
    }

    fn may_mark(&self, name: &str, unmarked: &Unmarked) -> bool {
        self.declare && self.is_markable(name) && !unmarked.has(name)
    }

    /// The answer of a look that is under way.
    fn asked(&self, name: &str) -> Option<watch::Receiver<bool>> {
        match self.states().get(name) {
            Some(QueueState::Known {
                look: MarkerLookup::Asked(answer),
                ..
            }) => Some(answer.clone()),
            _ => None,
        }
    }

    fn note_lookup(&self, name: &str, answer_sender: &watch::Sender<bool>, marked: Result<bool>) {
        let now = self.losses();
        let is_marked = marked.unwrap_or_else(|error| {
            lock(&self.unseen).refused(name, &error);
            false
        });
        // Since then the queue may have been found once more, which may be another one.
        if let Some(QueueState::Known {
            age, losses, look, ..
        }) = self.states().get_mut(name)
            && matches!(look, MarkerLookup::Asked(answer) if answer.same_channel(&answer_sender.subscribe()))
        {
            *look = MarkerLookup::Answered;
            if *losses == now {
                age.note_marker(is_marked, Instant::now());
            }
        }
    }

    /// The queues that nobody marks yet. From now on somebody does.
    fn to_be_marked(&self) -> Vec<String> {
        let (now, unmarked) = (self.losses(), lock(&self.unmarked));
        let mut names = Vec::new();
        for (name, place) in self.states().iter_mut() {
            if let QueueState::Known {
                losses,
                is_to_be_marked,
                ..
            } = place
                && *losses == now
                && self.may_mark(name, &unmarked)
                && !std::mem::replace(is_to_be_marked, true)
            {
                names.push(name.clone());
            }
        }
        names
    }

    /// Marks queues that are young.
    pub(super) async fn mark_young(&self, mut names: Vec<String>) {
        names.retain(|name| self.is_to_wait_for(name));
        if names.is_empty() {
            return;
        }
        // Without it, a marker would tell that they are old.
        match self.maker.start_clock(&self.queue).await {
            Ok(()) => self.refused_to_mark(self.maker.mark(names).await),
            Err(error) => {
                let lasts = matches!(error.kind(), ErrorKind::AccessRefused | ErrorKind::Mismatch);
                self.no_clock.fetch_or(lasts, Ordering::Relaxed);
                debug!(queue = self.queue, %error, "queues cannot be marked before they are old");
            }
        }
    }

    fn refused_to_mark(&self, refused: Vec<(String, Error)>) {
        for (name, error) in refused {
            lock(&self.unmarked).refused(&name, &error);
        }
    }

    /// Marks those of these queues that are old, and not known to be marked.
    pub(super) async fn mark(&self, names: Vec<String>) {
        let old: Vec<String> = {
            let (now, unmarked, states) = (self.losses(), lock(&self.unmarked), self.states());
            let is_old = |name: &String| {
                matches!(
                    states.get(name),
                    Some(QueueState::Known { age, losses, .. })
                        if *losses == now && age.may_be_marked(Instant::now())
                )
            };
            names
                .into_iter()
                .filter(|name| self.may_mark(name, &unmarked) && is_old(name))
                .collect()
        };
        if old.is_empty() {
            return;
        }
        self.refused_to_mark(self.maker.mark(old).await);
    }
}
