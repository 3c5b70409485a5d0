//! What the native half has to tell one environment (the main thread, or a worker): finished operations, messages that
//! wait, events, log lines. It is woken once for all that is there, and fetches it in one call.
//!
//! The TypeScript half numbers operations and subscriptions, and the numbers are JavaScript's own: a narrower type would
//! begin anew in a process that lives long, and an answer would find nobody.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use napi::{
    Status,
    bindgen_prelude::Either4,
    threadsafe_function::{ThreadsafeFunction, ThreadsafeFunctionCallMode},
};
use napi_derive::napi;
use retryrmq::Login;
use retryrmq_bindings::{Events, Questions, Refusal, Said};
use tokio::sync::oneshot;

use crate::{
    client::Client,
    errors::Result,
    live::{Alive, Kind},
    logging,
    outcome::duration,
    parked::{Record, Walk},
    subscription::Subscription,
};

/// Wakes the environment's thread; keeps nobody alive.
pub(crate) type Wake = ThreadsafeFunction<(), (), (), Status, false, true>;

/// What an operation brought.
pub(crate) enum Answer {
    Nothing,
    Client(retryrmq::Client),
    Subscription(retryrmq::Subscription),
    Walk(Box<retryrmq::Browse>),
    Record(Box<retryrmq::Record>),
    Failed(Refusal),
}

#[derive(Default)]
struct Waiting {
    finished: Vec<(f64, Answer)>,
    /// Subscriptions to look at.
    ready: Vec<f64>,
    events: Events<f64>,
    /// Functions that are to say who logs in, and the numbers of the questions.
    asked: Vec<(f64, u64)>,
    questions: Questions,
    /// Functions that nobody will ask any more.
    forgotten: Vec<f64>,
    /// The environment was woken and has not come yet.
    woken: bool,
}

/// The side of a bridge that other threads have.
pub(crate) struct Shared {
    waiting: Mutex<Waiting>,
    wake: Wake,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, add: impl FnOnce(&mut Waiting)) {
        let mut waiting = self.lock();
        add(&mut waiting);
        let wake = !std::mem::replace(&mut waiting.woken, true);
        drop(waiting);
        if wake {
            // Fails only when the environment is coming to its end, where nobody waits any more.
            self.wake.call((), ThreadsafeFunctionCallMode::NonBlocking);
        }
    }

    pub(crate) fn finished(&self, ticket: f64, answer: Answer) {
        self.tell(|waiting| waiting.finished.push((ticket, answer)));
    }

    pub(crate) fn ready(&self, subscription: f64) {
        self.tell(|waiting| waiting.ready.push(subscription));
    }

    pub(crate) fn event(&self, subscription: f64, event: &retryrmq::Event) {
        self.tell(|waiting| waiting.events.put(subscription, event));
    }

    /// Has a function asked who logs in; `None` when the environment has come to its end.
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
        let mut waiting = self.lock();
        waiting.asked.retain(|(_, asked)| *asked != question);
        waiting.questions.take(question);
    }

    pub(crate) fn forgotten(&self, function: f64) {
        self.tell(|waiting| waiting.forgotten.push(function));
    }

    /// Hands an answer to whoever still waits for it.
    fn answered(&self, question: f64, said: Said) {
        let waits = self.lock().questions.take(question as u64);
        if let Some(waits) = waits {
            let _ = waits.send(said);
        }
    }

    /// Has the log fetched.
    pub(crate) fn nudge(&self) {
        self.tell(|_| {});
    }
}

/// The bridge of one environment.
#[napi]
pub struct Bridge {
    pub(crate) shared: Arc<Shared>,
    _alive: Alive,
}

/// An operation that brought something.
#[napi(object, object_from_js = false)]
pub struct Brought {
    /// Which operation.
    pub ticket: f64,
    /// What it brought.
    pub value: Either4<Client, Subscription, Walk, Record>,
}

/// An operation that failed.
#[napi(object, object_from_js = false)]
pub struct Refused {
    /// Which operation.
    pub ticket: f64,
    /// The stable code of the error.
    pub code: &'static str,
    /// One sentence.
    pub message: String,
    /// The causes, as one line; often empty.
    pub detail: String,
}

/// Something that happened.
#[napi(object, object_from_js = false)]
pub struct Told {
    /// Which subscription it is about.
    pub subscription: f64,
    /// The event's name.
    pub name: &'static str,
    /// The work queue.
    pub queue: String,
    /// The message's id.
    pub message_id: Option<String>,
    /// The attempt that failed.
    pub attempt: Option<u32>,
    /// How long the message waits, or the consumer pauses; milliseconds.
    pub delay: Option<f64>,
    /// Why it was parked.
    pub reason: Option<&'static str>,
    /// What went wrong.
    pub error: Option<String>,
    /// Crashes so far.
    pub crashes: Option<u32>,
}

/// A question to a function: who logs in?
#[napi(object, object_from_js = false)]
pub struct Question {
    /// Which function.
    pub function: f64,
    /// What its answer is to name.
    pub question: f64,
}

/// A line for the log.
#[napi(object, object_from_js = false)]
pub struct Line {
    /// `error`, `warn`, `info` or `debug`.
    pub level: &'static str,
    /// The line.
    pub text: String,
}

/// Everything since the last call. What there is none of is left out: mostly there is one kind alone, many times a second.
#[napi(object, object_from_js = false)]
#[derive(Default)]
pub struct News {
    /// Operations that are done and brought nothing.
    pub done: Option<Vec<f64>>,
    /// Operations that brought something.
    pub brought: Option<Vec<Brought>>,
    /// Operations that failed.
    pub refused: Option<Vec<Refused>>,
    /// Subscriptions to look at.
    pub ready: Option<Vec<f64>>,
    /// What happened.
    pub events: Option<Vec<Told>>,
    /// Events that were dropped because nobody fetched them.
    pub missed: Option<u32>,
    /// Who logs in?
    pub questions: Option<Vec<Question>>,
    /// Functions that nobody will ask any more.
    pub forgotten: Option<Vec<f64>>,
    /// Lines for the log.
    pub lines: Option<Vec<Line>>,
}

fn some<T>(found: Vec<T>) -> Option<Vec<T>> {
    Some(found).filter(|found| !found.is_empty())
}

#[napi]
impl Bridge {
    /// A bridge that wakes its environment by calling `wake`.
    #[napi(constructor, catch_unwind)]
    pub fn new(wake: Wake) -> Self {
        let shared = Arc::new(Shared {
            waiting: Mutex::default(),
            wake,
        });
        logging::told_to(&shared);
        Self {
            shared,
            _alive: Alive::new(Kind::Bridge),
        }
    }

    /// Fetches everything since the last call.
    #[napi(catch_unwind)]
    pub fn news(&self) -> News {
        let (finished, ready, (events, missed), asked, forgotten) = {
            let mut waiting = self.shared.lock();
            waiting.woken = false;
            (
                std::mem::take(&mut waiting.finished),
                std::mem::take(&mut waiting.ready),
                waiting.events.take(),
                std::mem::take(&mut waiting.asked),
                std::mem::take(&mut waiting.forgotten),
            )
        };
        let mut news = News {
            ready: some(ready),
            events: some(
                events
                    .iter()
                    .map(|(subscription, event)| told(*subscription, event))
                    .collect(),
            ),
            missed: Some(missed).filter(|missed| *missed > 0),
            questions: some(
                asked
                    .into_iter()
                    .map(|(function, question)| Question {
                        function,
                        question: question as f64,
                    })
                    .collect(),
            ),
            forgotten: some(forgotten),
            lines: some(logging::take(&self.shared)),
            ..News::default()
        };
        for (ticket, answer) in finished {
            let value = match answer {
                Answer::Nothing => {
                    news.done.get_or_insert_default().push(ticket);
                    continue;
                }
                Answer::Failed(why) => {
                    news.refused.get_or_insert_default().push(Refused {
                        ticket,
                        code: why.code,
                        message: why.message,
                        detail: why.detail,
                    });
                    continue;
                }
                Answer::Client(client) => Either4::A(Client::new(client)),
                Answer::Subscription(inner) => Either4::B(Subscription::new(inner)),
                Answer::Walk(browse) => Either4::C(Walk::new(*browse)),
                Answer::Record(record) => Either4::D(Record::new(*record)),
            };
            let brought = news.brought.get_or_insert_default();
            brought.push(Brought { ticket, value });
        }
        news
    }

    /// The answer to a question: who logs in, and for how many milliseconds from now the broker takes that.
    #[napi(catch_unwind)]
    pub fn answer(
        &self,
        question: f64,
        user: String,
        password: String,
        expires_in: Option<f64>,
    ) -> Result<()> {
        let mut login = Login::new(user, password);
        if let Some(ms) = expires_in {
            login = login.expires_in(duration("expiresIn", ms)?);
        }
        self.shared.answered(question, Ok(login));
        Ok(())
    }

    /// Why there is no answer to a question.
    #[napi(catch_unwind)]
    pub fn refuse(&self, question: f64, why: String) {
        self.shared.answered(question, Err(why));
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        // The environment is at its end: whoever waits for an answer of it has one now, that there will be none.
        let unanswered = self.shared.lock().questions.end();
        drop(unanswered);
    }
}

fn told(subscription: f64, event: &retryrmq::Event) -> Told {
    let facts = event.facts();
    Told {
        subscription,
        name: event.name(),
        queue: facts.queue.to_owned(),
        message_id: facts.message_id.map(str::to_owned),
        attempt: facts.attempt,
        delay: facts.delay.map(|delay| delay.as_secs_f64() * 1000.0),
        reason: facts.reason.map(retryrmq::ParkReason::as_str),
        error: facts.error.map(str::to_owned),
        crashes: facts.crashes,
    }
}
