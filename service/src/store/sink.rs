//! Where due messages go.

use std::{future::Future, time::Duration};

use retryrmq::{Client, ErrorKind, Publish};
use tokio::time::timeout;

use super::DueMessage;

/// Publishes what is due. Calls run at once, as many as the [`DueDispatcher`](super::DueDispatcher) has in hand.
pub trait Sink: Send + Sync + 'static {
    /// Publishes a message, mandatory, and returns once the broker has confirmed it. The message is then deleted.
    ///
    /// # Errors
    /// Why it was not published; the message stays in the store.
    fn publish(&self, due: &DueMessage) -> impl Future<Output = Result<(), PublishRefused>> + Send;

    /// A message that no queue takes, or that the broker will never take: park it. Once this has returned, it is deleted.
    ///
    /// # Errors
    /// Why it could not be parked; the message stays in the store, and comes here again after a pause.
    fn give_up(
        &self,
        due: &DueMessage,
        why: &str,
    ) -> impl Future<Output = Result<(), PublishRefused>> + Send;
}

/// Why a message was not published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublishRefused {
    /// The same message would be refused again until somebody acts: no queue takes it, it is too large, it may not be published.
    Hopeless(String),
    /// Its queue, or its exchange, takes nothing now. What goes elsewhere goes on.
    Line(String),
    /// The broker takes nothing now.
    Broker(String),
}

/// How long a confirm may take. The core's own deadlines end before.
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// Publishes with a client of the core.
#[derive(Clone)]
pub struct BrokerSink(Client);

impl BrokerSink {
    /// Publishes on this client's connection.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self(client)
    }

    /// Publishes a message where it is to go, mandatory and confirmed.
    ///
    /// # Errors
    /// Why the broker did not take it, or may not have.
    pub async fn publish(&self, due: &DueMessage) -> Result<(), PublishRefused> {
        let draft = due.message.draft();
        let message = Publish::to_exchange(
            draft.exchange.as_str(),
            draft.routing_key.as_str(),
            draft.body.clone(),
        )
        .properties(draft.properties.clone());
        match timeout(TIME_LIMIT, self.0.publish(message)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(refusal(
                error.kind(),
                error.is_permanent(),
                error.to_string(),
            )),
            Err(_) => Err(PublishRefused::Line(format!(
                "no confirm came within {} s",
                TIME_LIMIT.as_secs()
            ))),
        }
    }
}

fn refusal(kind: ErrorKind, permanent: bool, sentence: String) -> PublishRefused {
    match kind {
        ErrorKind::Unroutable | ErrorKind::TooLarge | ErrorKind::InvalidOption => {
            PublishRefused::Hopeless(sentence)
        }
        _ if permanent => PublishRefused::Hopeless(sentence),
        ErrorKind::NotConfirmed | ErrorKind::Timeout => PublishRefused::Line(sentence),
        _ => PublishRefused::Broker(sentence),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_somebody_must_mend_is_hopeless() {
        for kind in ErrorKind::ALL {
            let judged = refusal(kind, false, String::new());
            let expected = match kind {
                ErrorKind::Unroutable | ErrorKind::TooLarge | ErrorKind::InvalidOption => {
                    PublishRefused::Hopeless(String::new())
                }
                ErrorKind::NotConfirmed | ErrorKind::Timeout => PublishRefused::Line(String::new()),
                _ => PublishRefused::Broker(String::new()),
            };
            assert_eq!(judged, expected, "{kind:?}");
            let permanent = refusal(kind, true, String::new());
            assert_eq!(
                permanent,
                PublishRefused::Hopeless(String::new()),
                "{kind:?}"
            );
        }
    }
}
