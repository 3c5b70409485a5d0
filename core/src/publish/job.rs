//! A message to publish, and the promise that its publisher is answered exactly once.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Weak},
};

use lapin::{BasicProperties, types::ShortString};
use tracing::error;

use crate::{Error, ErrorKind, Result};

/// A message's body, shared with others.
pub(crate) type Body = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// Called once with the result.
pub(crate) type Done = Box<dyn FnOnce(Result<()>) + Send + Sync>;

/// A message to publish, and the callback for its result.
pub(crate) struct Job {
    pub(crate) exchange: ShortString,
    pub(crate) routing_key: ShortString,
    pub(crate) properties: Arc<BasicProperties>,
    pub(crate) body: Body,
    pub(crate) mandatory: bool,
    pub(crate) done: Done,
}

/// A job in its lane. It is always answered, even when it is dropped because the lane panicked, or because there is no lane any more.
pub(super) struct Task {
    pub(super) exchange: ShortString,
    pub(super) routing_key: ShortString,
    pub(super) properties: Arc<BasicProperties>,
    pub(super) body: Body,
    pub(super) mandatory: bool,
    done: Option<Done>,
    /// Alive as long as somebody waits for the answer; `None` if the message must be published in any case.
    asker: Option<Weak<()>>,
}

impl Task {
    pub(super) fn new(job: Job, asker: Option<Weak<()>>) -> Self {
        let Job {
            exchange,
            routing_key,
            properties,
            body,
            mandatory,
            done,
        } = job;
        Self {
            exchange,
            routing_key,
            properties,
            body,
            mandatory,
            done: Some(done),
            asker,
        }
    }

    pub(super) fn body(&self) -> &[u8] {
        (*self.body).as_ref()
    }

    /// Whether anybody still waits for it.
    pub(super) fn is_wanted(&self) -> bool {
        self.asker
            .as_ref()
            .is_none_or(|asker| asker.strong_count() > 0)
    }

    /// Passes on the answer. A panic in the callback must not stop the lane, which other publishers share.
    pub(super) fn answer(mut self, result: Result<()>) {
        self.call_back(result);
    }

    fn call_back(&mut self, result: Result<()>) {
        if let Some(done) = self.done.take()
            && catch_unwind(AssertUnwindSafe(|| done(result))).is_err()
        {
            error!("the callback for a published message panicked, which is a bug in retryrmq");
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.call_back(Err(Error::new(
            ErrorKind::ConnectionLost,
            "publishing was interrupted; the message may or may not have been stored",
        )));
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Mutex;

    use super::*;

    /// A job for `routing_key`, and where its answer will be.
    pub(in crate::publish) fn job(routing_key: &str) -> (Job, Arc<Mutex<Vec<Result<()>>>>) {
        let answers = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&answers);
        let job = Job {
            exchange: ShortString::default(),
            routing_key: routing_key.into(),
            properties: Arc::default(),
            body: Arc::new(b"x".to_vec()),
            mandatory: true,
            done: Box::new(move |result| told.lock().unwrap().push(result)),
        };
        (job, answers)
    }

    #[test]
    fn every_task_is_answered_once() {
        let (asked, answers) = job("a");
        Task::new(asked, None).answer(Ok(()));
        assert!(matches!(answers.lock().unwrap()[..], [Ok(())]));
        let (asked, answers) = job("a");
        drop(Task::new(asked, None));
        let answers = answers.lock().unwrap();
        assert!(
            matches!(&answers[..], [Err(error)] if error.is_transient()),
            "{answers:?}"
        );
    }

    #[test]
    fn who_panics_at_the_answer_stops_nobody() {
        let (mut asked, _) = job("a");
        asked.done = Box::new(|_| panic!("as it is meant"));
        Task::new(asked, None).answer(Ok(()));
    }

    #[test]
    fn what_nobody_waits_for_is_not_wanted() {
        let asker = Arc::new(());
        let (asked, _) = job("a");
        let task = Task::new(asked, Some(Arc::downgrade(&asker)));
        assert!(task.is_wanted());
        drop(asker);
        assert!(!task.is_wanted());
        assert!(Task::new(job("a").0, None).is_wanted());
    }
}
