//! Questions for the login, to a function of the language, by number until they are answered.

use std::collections::HashMap;

use retryrmq::Login;
use tokio::sync::oneshot;

/// The answer of a function, or why there is none, as the rest of a sentence.
pub type Said = Result<Login, String>;

/// The open questions.
#[derive(Debug, Default)]
pub struct Questions {
    count: u64,
    open: HashMap<u64, oneshot::Sender<Said>>,
    /// Nobody can be asked any more.
    ended: bool,
}

impl Questions {
    /// A new question: its number, and the receiver of its answer. `None` if nobody can be asked.
    pub fn ask(&mut self) -> Option<(u64, oneshot::Receiver<Said>)> {
        if self.ended {
            return None;
        }
        self.count += 1;
        let (answer, answered) = oneshot::channel();
        self.open.insert(self.count, answer);
        Some((self.count, answered))
    }

    /// The sender for the answer to a question; returned once.
    pub fn take(&mut self, question: u64) -> Option<oneshot::Sender<Said>> {
        self.open.remove(&question)
    }

    /// Ends all questions. The result is to be dropped without a lock: it wakes everyone who waits. From now on nobody can be asked.
    pub fn end(&mut self) -> impl Sized + use<> {
        self.ended = true;
        std::mem::take(&mut self.open)
    }
}
