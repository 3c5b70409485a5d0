//! Requests for credentials, to a function of the language, by number until they are answered.

use std::collections::HashMap;

use retryrmq::Login;
use tokio::sync::oneshot;

/// The answer of a function, or why there is none, as the rest of a sentence.
pub type CredentialReply = Result<Login, String>;

/// The open requests.
#[derive(Debug, Default)]
pub struct CredentialRequests {
    count: u64,
    open: HashMap<u64, oneshot::Sender<CredentialReply>>,
    /// Nobody can be asked any more.
    ended: bool,
}

impl CredentialRequests {
    /// A new request: its number, and the receiver of its answer. `None` if nobody can be asked.
    pub fn ask(&mut self) -> Option<(u64, oneshot::Receiver<CredentialReply>)> {
        if self.ended {
            return None;
        }
        self.count += 1;
        let (answer, answered) = oneshot::channel();
        self.open.insert(self.count, answer);
        Some((self.count, answered))
    }

    /// The sender for the answer to a request; returned once.
    pub fn take(&mut self, request: u64) -> Option<oneshot::Sender<CredentialReply>> {
        self.open.remove(&request)
    }

    /// Ends all requests. The result is to be dropped without a lock: it wakes everyone who waits. From now on nobody can be asked.
    pub fn end(&mut self) -> impl Sized + use<> {
        self.ended = true;
        std::mem::take(&mut self.open)
    }
}
