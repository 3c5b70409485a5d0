//! The login from a JavaScript function. It is not called from here: a question is a piece of news, and the environment answers it with a
//! call.

use std::sync::{Arc, Weak};

use retryrmq::Credentials;
use retryrmq_bindings::Said;

use crate::{
    live::{Alive, Kind},
    shared::Shared,
};

/// An open question. Dropping it withdraws it: the answer took too long, or is no longer needed.
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

/// A function of an environment, by its number there. When nobody can ask it any more, the environment forgets it.
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

/// The credentials from the function with this number.
pub(crate) fn asking(bridge: &Arc<Shared>, function: f64) -> Credentials {
    let function = Arc::new(Function {
        bridge: Arc::downgrade(bridge),
        number: function,
        _alive: Alive::new(Kind::Credentials),
    });
    Credentials::new(move || Arc::clone(&function).ask())
}
