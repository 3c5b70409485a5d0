//! Who logs in, as a function of JavaScript says it. It is not called from here: a question is a piece of news, and its answer a
//! call of the environment's own.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use retryrmq::{Credentials, Login};
use tokio::sync::oneshot;

use crate::{
    bridge::Shared,
    live::{Alive, Kind},
};

/// What a function answered, or why it did not, as one sentence.
pub(crate) type Said = Result<Login, String>;

/// The questions of one environment that have no answer yet.
#[derive(Default)]
pub(crate) struct Questions {
    count: u64,
    open: HashMap<u64, oneshot::Sender<Said>>,
    /// Nobody is there any more to be asked.
    ended: bool,
}

impl Questions {
    /// The number of a new question, and where its answer comes; `None` when nobody is there.
    pub(crate) fn ask(&mut self) -> Option<(u64, oneshot::Receiver<Said>)> {
        if self.ended {
            return None;
        }
        self.count += 1;
        let (answer, answered) = oneshot::channel();
        self.open.insert(self.count, answer);
        Some((self.count, answered))
    }

    /// Who waits for the answer to a question, once.
    pub(crate) fn take(&mut self, question: u64) -> Option<oneshot::Sender<Said>> {
        self.open.remove(&question)
    }

    /// Everybody who waits for an answer; from now on nobody can be asked.
    pub(crate) fn end(&mut self) -> impl Sized + use<> {
        self.ended = true;
        std::mem::take(&mut self.open)
    }
}

/// A question on its way. Whoever lets go of it, because the answer took too long or is of no use any more, withdraws it.
struct Question {
    bridge: Weak<Shared>,
    number: u64,
    _alive: Alive,
}

impl Drop for Question {
    fn drop(&mut self) {
        if let Some(bridge) = self.bridge.upgrade() {
            bridge.withdraw(self.number);
        }
    }
}

/// A function of an environment, by its number there. Without anybody who might ask it, the environment forgets it.
struct Function {
    bridge: Weak<Shared>,
    number: f64,
    _alive: Alive,
}

impl Function {
    async fn ask(self: Arc<Self>) -> Said {
        let ended =
            || "the thread that it runs in has ended; connect again in one that lives".to_owned();
        let (question, answered) = {
            let bridge = self.bridge.upgrade().ok_or_else(ended)?;
            let (number, answered) = bridge.question(self.number).ok_or_else(ended)?;
            let question = Question {
                bridge: Weak::clone(&self.bridge),
                number,
                _alive: Alive::new(Kind::Question),
            };
            (question, answered)
        };
        let said = answered.await;
        drop(question);
        said.unwrap_or_else(|_| Err(ended()))
    }
}

impl Drop for Function {
    fn drop(&mut self) {
        if let Some(bridge) = self.bridge.upgrade() {
            bridge.forgotten(self.number);
        }
    }
}

/// The credentials that the function with this number gives.
pub(crate) fn asking(bridge: &Arc<Shared>, function: f64) -> Credentials {
    let function = Arc::new(Function {
        bridge: Arc::downgrade(bridge),
        number: function,
        _alive: Alive::new(Kind::Credentials),
    });
    Credentials::new(move || Arc::clone(&function).ask())
}
