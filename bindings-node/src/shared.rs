//! The side of a bridge that other threads use: news that waits for the environment to fetch it.

use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use napi::{
    Status,
    threadsafe_function::{ThreadsafeFunction, ThreadsafeFunctionCallMode},
};
use retryrmq_bindings::{Events, Questions, Refusal, Said, json_rows};
use tokio::sync::oneshot;

/// Wakes the environment's thread; does not keep it alive.
pub(crate) type Wake = ThreadsafeFunction<(), (), (), Status, false, true>;

/// The answer of an operation.
pub(crate) enum Answer {
    Nothing,
    Client(retryrmq::Client),
    Subscription(retryrmq::Subscription),
    Walk(Box<retryrmq::Browse>),
    Record(Box<retryrmq::Record>),
    Failed(Refusal),
}

#[derive(Default)]
pub(crate) struct Waiting {
    pub(crate) finished: Vec<(f64, Answer)>,
    /// Subscriptions with messages.
    pub(crate) ready: Vec<f64>,
    /// By the bits of the number of the subscription.
    pub(crate) events: Events<u64>,
    /// Functions that are asked for the login, with the numbers of the questions.
    pub(crate) asked: Vec<(f64, u64)>,
    pub(crate) questions: Questions,
    /// Questions whose functions were called, and to which nobody awaits the answer any more.
    pub(crate) withdrawn: Vec<f64>,
    /// Functions that nobody can ask any more.
    pub(crate) forgotten: Vec<f64>,
    /// The environment was woken and has not fetched its news yet.
    pub(crate) woken: bool,
}

/// The side of a bridge that other threads use.
pub(crate) struct Shared {
    waiting: Mutex<Waiting>,
    /// `None` after the end.
    wake: RwLock<Option<Wake>>,
}

impl Shared {
    pub(crate) fn new(wake: Wake) -> Self {
        Self {
            waiting: Mutex::default(),
            wake: RwLock::new(Some(wake)),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, add: impl FnOnce(&mut Waiting)) {
        let mut waiting = self.lock();
        add(&mut waiting);
        let wake = !std::mem::replace(&mut waiting.woken, true);
        drop(waiting);
        let way = self.wake.read().unwrap_or_else(PoisonError::into_inner);
        if wake && let Some(way) = &*way {
            // Fails only when the environment is ending, and nobody waits any more.
            way.call((), ThreadsafeFunctionCallMode::NonBlocking);
        }
    }

    /// Wakes nobody any more.
    pub(crate) fn end(&self) {
        *self.wake.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub(crate) fn has_ended(&self) -> bool {
        let way = self.wake.read().unwrap_or_else(PoisonError::into_inner);
        way.is_none()
    }

    pub(crate) fn finished(&self, ticket: f64, answer: Answer) {
        self.tell(|waiting| waiting.finished.push((ticket, answer)));
    }

    pub(crate) fn ready(&self, subscription: f64) {
        self.tell(|waiting| waiting.ready.push(subscription));
    }

    pub(crate) fn event(&self, subscription: f64, event: &retryrmq::Event) {
        let listener = subscription.to_bits();
        let has_room = self.lock().events.has_room(listener);
        let row = has_room.then(|| json_rows::event(event));
        self.tell(|waiting| waiting.events.put(listener, row));
    }

    /// Asks a function for the login; `None` if the environment has ended.
    pub(crate) fn question(&self, function: f64) -> Option<(u64, oneshot::Receiver<Said>)> {
        let mut question = None;
        self.tell(|waiting| {
            question = waiting.questions.ask();
            if let Some((number, _)) = &question {
                waiting.asked.push((function, *number));
            }
        });
        question
    }

    /// Nobody waits for the answer to this question any more.
    pub(crate) fn withdraw(&self, question: u64) {
        let is_called = {
            let mut waiting = self.lock();
            let before = waiting.asked.len();
            waiting.asked.retain(|(_, asked)| *asked != question);
            waiting.questions.take(question).is_some() && waiting.asked.len() == before
        };
        if is_called {
            self.tell(|waiting| waiting.withdrawn.push(question as f64));
        }
    }

    pub(crate) fn forgotten(&self, function: f64) {
        self.tell(|waiting| waiting.forgotten.push(function));
    }

    /// Passes an answer on, if somebody still waits for it.
    pub(crate) fn answered(&self, question: f64, said: Said) {
        let waits = self.lock().questions.take(question as u64);
        if let Some(waits) = waits {
            let _ = waits.send(said);
        }
    }

    /// Announces that there are log lines.
    pub(crate) fn nudge(&self) {
        self.tell(|_| {});
    }
}
