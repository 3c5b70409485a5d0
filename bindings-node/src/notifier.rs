//! The side of a queue of notifications that other threads use: what waits for the environment to fetch it.

use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use napi::{
    Status,
    threadsafe_function::{ThreadsafeFunction, ThreadsafeFunctionCallMode},
};
use retryrmq_bindings::{BindingError, CredentialReply, CredentialRequests, Events, json_rows};
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
    Failed(BindingError),
}

#[derive(Default)]
pub(crate) struct Pending {
    pub(crate) finished: Vec<(f64, Answer)>,
    /// Subscriptions with messages.
    pub(crate) ready: Vec<f64>,
    /// By the bits of the number of the subscription.
    pub(crate) events: Events<u64>,
    /// Functions that are called for credentials, with the numbers of the requests.
    pub(crate) requested: Vec<(f64, u64)>,
    pub(crate) credential_requests: CredentialRequests,
    /// Requests whose functions were called, and to which nobody awaits the answer any more.
    pub(crate) withdrawn: Vec<f64>,
    /// Functions that nobody can ask any more.
    pub(crate) forgotten: Vec<f64>,
    /// The environment was woken and has not fetched its notifications yet.
    pub(crate) woken: bool,
}

/// The side of a queue of notifications that other threads use.
pub(crate) struct Notifier {
    pending: Mutex<Pending>,
    /// `None` after the end.
    wake: RwLock<Option<Wake>>,
}

impl Notifier {
    pub(crate) fn new(wake: Wake) -> Self {
        Self {
            pending: Mutex::default(),
            wake: RwLock::new(Some(wake)),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, add: impl FnOnce(&mut Pending)) {
        let mut pending = self.lock();
        add(&mut pending);
        let wake = !std::mem::replace(&mut pending.woken, true);
        drop(pending);
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
        self.add(|pending| pending.finished.push((ticket, answer)));
    }

    pub(crate) fn ready(&self, subscription: f64) {
        self.add(|pending| pending.ready.push(subscription));
    }

    pub(crate) fn event(&self, subscription: f64, event: &retryrmq::Event) {
        let listener = subscription.to_bits();
        let has_room = self.lock().events.has_room(listener);
        let row = has_room.then(|| json_rows::event(event));
        self.add(|pending| pending.events.put(listener, row));
    }

    /// Calls a function for credentials; `None` if the environment has ended.
    pub(crate) fn request_credentials(
        &self,
        function: f64,
    ) -> Option<(u64, oneshot::Receiver<CredentialReply>)> {
        let mut request = None;
        self.add(|pending| {
            request = pending.credential_requests.ask();
            if let Some((number, _)) = &request {
                pending.requested.push((function, *number));
            }
        });
        request
    }

    /// Nobody waits for the answer to this request any more.
    pub(crate) fn withdraw(&self, request: u64) {
        let is_called = {
            let mut pending = self.lock();
            let before = pending.requested.len();
            pending
                .requested
                .retain(|(_, requested)| *requested != request);
            pending.credential_requests.take(request).is_some() && pending.requested.len() == before
        };
        if is_called {
            self.add(|pending| pending.withdrawn.push(request as f64));
        }
    }

    pub(crate) fn forgotten(&self, function: f64) {
        self.add(|pending| pending.forgotten.push(function));
    }

    /// Passes an answer on, if somebody still waits for it.
    pub(crate) fn reply(&self, request: f64, said: CredentialReply) {
        let waits = self.lock().credential_requests.take(request as u64);
        if let Some(waits) = waits {
            let _ = waits.send(said);
        }
    }

    /// Announces that there are log lines.
    pub(crate) fn log_lines_arrived(&self) {
        self.add(|_| {});
    }
}
