//! Who logs in? A question to a function of the language, by its number until it is answered.

use std::collections::HashMap;

use retryrmq::Login;
use tokio::sync::oneshot;

/// What a function answered, or why it did not, as the rest of a sentence.
pub type Said = Result<Login, String>;

/// The questions that have no answer yet.
#[derive(Debug, Default)]
pub struct Questions {
    count: u64,
    open: HashMap<u64, oneshot::Sender<Said>>,
    /// Nobody is there any more to be asked.
    ended: bool,
}

impl Questions {
    /// The number of a new question, and where its answer comes; `None` when nobody is there.
    pub fn ask(&mut self) -> Option<(u64, oneshot::Receiver<Said>)> {
        if self.ended {
            return None;
        }
        self.count += 1;
        let (answer, answered) = oneshot::channel();
        self.open.insert(self.count, answer);
        Some((self.count, answered))
    }

    /// Who waits for the answer to a question, once.
    pub fn take(&mut self, question: u64) -> Option<oneshot::Sender<Said>> {
        self.open.remove(&question)
    }

    /// Everybody who waits for an answer, to be let go without a lock; from now on nobody can be asked.
    pub fn end(&mut self) -> impl Sized + use<> {
        self.ended = true;
        std::mem::take(&mut self.open)
    }
}
