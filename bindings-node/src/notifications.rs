//! The notifications that the environment fetches, as JavaScript values: finished operations, events, requests for credentials, log lines.

use napi::bindgen_prelude::Either4;
use napi_derive::napi;

use crate::{
    client::Client,
    logging::{self, Line},
    notification_queue::NotificationQueue,
    notifier::Answer,
    parked::{Record, Walk},
    subscription::Subscription,
};

/// An operation with an answer.
#[napi(object, object_from_js = false)]
pub struct Completed {
    /// Which operation.
    pub ticket: f64,
    /// Its answer.
    pub value: Either4<Client, Subscription, Walk, Record>,
}

/// An operation that failed.
#[napi(object, object_from_js = false)]
pub struct FailedOperation {
    /// Which operation.
    pub ticket: f64,
    /// The stable code of the error.
    pub code: &'static str,
    /// One sentence.
    pub message: String,
    /// The causes, as one line; often empty.
    pub detail: String,
}

/// A request to a function: who logs in?
#[napi(object, object_from_js = false)]
pub struct CredentialRequest {
    /// Which function.
    pub function: f64,
    /// The number that its answer must name.
    pub request: f64,
}

/// All notifications since the last call. Empty kinds are left out: mostly there is only one kind, many times a second.
#[napi(object, object_from_js = false)]
#[derive(Default)]
pub struct Notifications {
    /// Operations that are done and have no answer.
    pub done: Option<Vec<f64>>,
    /// Operations with an answer.
    pub completed: Option<Vec<Completed>>,
    /// Operations that failed.
    pub failed: Option<Vec<FailedOperation>>,
    /// Subscriptions with messages.
    pub ready: Option<Vec<f64>>,
    /// What happened: the number of a subscription, and its event as a row.
    pub events: Option<Vec<(f64, String)>>,
    /// Events that were dropped because nobody fetched them.
    pub missed: Option<u32>,
    /// Requests for credentials.
    pub credential_requests: Option<Vec<CredentialRequest>>,
    /// Requests to which nobody awaits the answer any more.
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
impl NotificationQueue {
    /// Fetches everything since the last call.
    #[napi(catch_unwind)]
    pub fn fetch(&self) -> Notifications {
        let (finished, ready, (events, missed), requested, withdrawn, forgotten) = {
            let mut pending = self.notifier.lock();
            pending.woken = false;
            (
                std::mem::take(&mut pending.finished),
                std::mem::take(&mut pending.ready),
                pending.events.take(),
                std::mem::take(&mut pending.requested),
                std::mem::take(&mut pending.withdrawn),
                std::mem::take(&mut pending.forgotten),
            )
        };
        let mut notifications = Notifications {
            ready: some(ready),
            events: some(
                events
                    .into_iter()
                    .map(|(subscription, row)| (f64::from_bits(subscription), row))
                    .collect(),
            ),
            missed: Some(missed).filter(|missed| *missed > 0),
            credential_requests: some(
                requested
                    .into_iter()
                    .map(|(function, request)| CredentialRequest {
                        function,
                        request: request as f64,
                    })
                    .collect(),
            ),
            withdrawn: some(withdrawn),
            forgotten: some(forgotten),
            lines: some(logging::take(&self.notifier)),
            ..Notifications::default()
        };
        for (ticket, answer) in finished {
            let value = match answer {
                Answer::Nothing => {
                    notifications.done.get_or_insert_default().push(ticket);
                    continue;
                }
                Answer::Failed(why) => {
                    notifications
                        .failed
                        .get_or_insert_default()
                        .push(FailedOperation {
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
            let completed = notifications.completed.get_or_insert_default();
            completed.push(Completed { ticket, value });
        }
        notifications
    }
}
