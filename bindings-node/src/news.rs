//! The news that the environment fetches, as JavaScript values: finished operations, events, questions, log lines.

use napi::bindgen_prelude::Either4;
use napi_derive::napi;

use crate::{
    bridge::Bridge,
    client::Client,
    logging::{self, Line},
    parked::{Record, Walk},
    shared::Answer,
    subscription::Subscription,
};

/// An operation with an answer.
#[napi(object, object_from_js = false)]
pub struct Brought {
    /// Which operation.
    pub ticket: f64,
    /// Its answer.
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

/// A question to a function: who logs in?
#[napi(object, object_from_js = false)]
pub struct Question {
    /// Which function.
    pub function: f64,
    /// The number that its answer must name.
    pub question: f64,
}

/// All news since the last call. Empty kinds are left out: mostly there is only one kind, many times a second.
#[napi(object, object_from_js = false)]
#[derive(Default)]
pub struct News {
    /// Operations that are done and have no answer.
    pub done: Option<Vec<f64>>,
    /// Operations with an answer.
    pub brought: Option<Vec<Brought>>,
    /// Operations that failed.
    pub refused: Option<Vec<Refused>>,
    /// Subscriptions with messages.
    pub ready: Option<Vec<f64>>,
    /// What happened: the number of a subscription, and its event as a row.
    pub events: Option<Vec<(f64, String)>>,
    /// Events that were dropped because nobody fetched them.
    pub missed: Option<u32>,
    /// Questions for a login.
    pub questions: Option<Vec<Question>>,
    /// Questions to which nobody awaits the answer any more.
    pub withdrawn: Option<Vec<f64>>,
    /// Functions that nobody can ask any more.
    pub forgotten: Option<Vec<f64>>,
    /// Lines for the log.
    pub lines: Option<Vec<Line>>,
}

fn some<T>(found: Vec<T>) -> Option<Vec<T>> {
    Some(found).filter(|found| !found.is_empty())
}

#[napi]
impl Bridge {
    /// Fetches everything since the last call.
    #[napi(catch_unwind)]
    pub fn news(&self) -> News {
        let (finished, ready, (events, missed), asked, withdrawn, forgotten) = {
            let mut waiting = self.shared.lock();
            waiting.woken = false;
            (
                std::mem::take(&mut waiting.finished),
                std::mem::take(&mut waiting.ready),
                waiting.events.take(),
                std::mem::take(&mut waiting.asked),
                std::mem::take(&mut waiting.withdrawn),
                std::mem::take(&mut waiting.forgotten),
            )
        };
        let mut news = News {
            ready: some(ready),
            events: some(
                events
                    .into_iter()
                    .map(|(subscription, row)| (f64::from_bits(subscription), row))
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
            withdrawn: some(withdrawn),
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
}
