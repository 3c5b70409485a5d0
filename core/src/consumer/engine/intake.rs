//! Which messages the broker may send, and what becomes of each before a handler sees it.

use std::sync::Arc;

use lapin::message::Delivery as Arrival;
use tracing::{info, warn};

use super::{
    super::{
        Delivery, Message, Received, Token,
        session::{Next, Session},
    },
    Engine, Entry, Intake, Phase,
};
use crate::{
    retry::{Admission, Failure, RetryState, admit},
    telemetry::Event,
};

/// As many deliveries are taken in a row.
const BURST: usize = 32;

impl Engine {
    /// Takes deliveries that are there already; not all of them at once, so that acknowledgements go out evenly: a quorum
    /// queue that hears of everything at the same time has nothing to send meanwhile.
    pub(super) async fn arrive(&mut self) {
        for _ in 0..BURST {
            let Some(next) = self.session.as_mut().and_then(Session::next_now) else {
                break;
            };
            self.take(next).await;
        }
    }

    pub(super) async fn take(&mut self, next: Next) {
        match next {
            Next::Arrived(arrival) => self.admit(*arrival).await,
            Next::Lost => self.lose_session(),
            Next::Cancelled => {
                warn!(queue = %self.name, "the broker cancelled the consumer: the queue was deleted or moved");
                self.lose_session();
            }
        }
    }

    pub(super) async fn admit(&mut self, arrival: Arrival) {
        let Some(session) = &mut self.session else {
            return;
        };
        let tag = arrival.delivery_tag;
        session.delivered(tag);
        let mended = session.mended(tag);
        let state = RetryState::read(
            &self.name,
            self.counting,
            arrival.redelivered,
            &arrival.properties,
        );
        for (header, why) in &state.distrusted {
            warn!(queue = %self.name, header, why, "a header is not believed and counts as absent");
        }
        let received = Arc::new(Received {
            queue: Arc::clone(&self.name),
            body: arrival.data,
            properties: arrival.properties,
            exchange: arrival.exchange,
            routing_key: arrival.routing_key,
            redelivered: arrival.redelivered,
            state,
            mended,
        });
        self.counters.delivered.inc();
        self.counters.outstanding.inc();
        let entry = Entry {
            received: Arc::clone(&received),
            session: session.id,
            tag,
            phase: Phase::Out,
        };
        if received.state.is_fresh_replay() && !received.redelivered {
            let (queue, message_id) = (self.queue(), received.message_id());
            self.options
                .listener
                .tell(|| Event::Replayed { queue, message_id });
        }
        if self.memory.knows(&received) {
            let token = self.entries.insert(entry);
            self.counters.already_handled.inc();
            let (queue, message_id) = (self.queue(), received.message_id());
            self.options
                .listener
                .tell(|| Event::AlreadyHandled { queue, message_id });
            self.release(token);
            return;
        }
        let token = self.entries.insert(entry);
        if self.drain_until.is_some() || self.paused_until.is_some() {
            self.put_back(token).await;
            return;
        }
        let admission = if self.options.dlx {
            admit(&received.state, &self.options.limits)
        } else {
            Admission::Run
        };
        match admission {
            Admission::Run => {
                if !self.probing {
                    self.cautious = false;
                }
                self.arrivals.push(Delivery {
                    token,
                    message: Message(received),
                });
            }
            // Not back to the queue: that would count as a crash, and a suspect that often waits for others would be
            // parked for it.
            Admission::RunAlone if self.suspect.is_some() => {
                self.detour(token, received.state.crashes);
            }
            Admission::RunAlone => {
                self.set_phase(token, Phase::Suspect);
                self.suspect = Some(token);
            }
            Admission::Detour { crashes } => self.detour(token, crashes),
            Admission::Park(reason) => {
                let error = format!(
                    "it came back without an answer {} times",
                    received.state.crashes
                );
                self.park(token, reason, &Failure::new(error)).await;
            }
        }
    }

    /// Opens or closes the tap, so that the broker sends what may be sent now.
    pub(super) async fn adjust_intake(&mut self) {
        let want = if self.drain_until.is_some()
            || self.paused_until.is_some()
            || self.suspect.is_some()
        {
            Intake::Stopped
        } else if self.cautious && self.options.prefetch > 1 {
            Intake::Narrow
        } else {
            Intake::Wide
        };
        let Some(session) = &mut self.session else {
            return;
        };
        if want == self.intake && (want == Intake::Stopped) != session.is_consuming() {
            return;
        }
        let stopped = session.stop().await;
        self.intake = Intake::Stopped;
        let late = match stopped {
            Ok(late) => late,
            Err(error) => return self.survive(Err(error)),
        };
        for arrival in late {
            self.admit(arrival).await;
        }
        let prefetch = match want {
            // A suspect may have been among the late ones; the next turn sees to it.
            _ if self.suspect.is_some() => return,
            Intake::Stopped => return,
            Intake::Narrow => 1,
            Intake::Wide => self.options.prefetch,
        };
        let Some(session) = &mut self.session else {
            return;
        };
        match session.start(prefetch).await {
            Ok(()) => self.intake = want,
            Err(error) => self.survive(Err(error)),
        }
    }

    /// Hands the suspect out, once nothing else is outstanding.
    pub(super) fn release_suspect(&mut self) {
        let Some(token) = self.suspect else { return };
        // What an earlier channel brought is the broker's again, and no crash can count against it.
        let current = self.session.as_ref().map(|session| session.id);
        let others =
            |(other, entry): (Token, &Entry)| other != token && Some(entry.session) == current;
        if self.intake != Intake::Stopped || self.entries.iter().any(others) {
            return;
        }
        match self.entries.get_mut(token) {
            Some(entry) if matches!(entry.phase, Phase::Suspect) => {
                entry.phase = Phase::Out;
                let message = Message(Arc::clone(&entry.received));
                info!(queue = %self.name, crashes = message.state().crashes, "a message that may take consumers down runs alone");
                self.arrivals.push(Delivery { token, message });
            }
            Some(_) => {}
            None => (self.suspect, self.cautious) = (None, true),
        }
    }

    /// Stops the intake for a drain or a pause, and gives back what no handler has begun with: in the order in which it
    /// came, because a quorum queue hands it out in the order of the returns.
    pub(super) async fn return_the_unstarted(&mut self) {
        let unstarted = self.take_back_the_unstarted();
        self.stop_and_return(unstarted).await;
    }

    /// Stops consuming, and then puts back what was taken from handlers before: the other way round it would come again, and
    /// taken only now, handlers would have got more of it while the broker answered.
    pub(super) async fn stop_and_return(&mut self, unstarted: Vec<Token>) {
        let stopped = match &mut self.session {
            Some(session) => session.stop().await,
            None => Ok(Vec::new()),
        };
        self.intake = Intake::Stopped;
        for token in unstarted {
            self.put_back(token).await;
        }
        match stopped {
            Ok(late) => {
                for arrival in late {
                    self.admit(arrival).await;
                }
            }
            Err(error) => self.survive(Err(error)),
        }
    }

    pub(super) fn take_back_the_unstarted(&mut self) -> Vec<Token> {
        let mut unstarted: Vec<Token> = self
            .inbox
            .take_back()
            .into_iter()
            .chain(self.arrivals.drain(..))
            .map(|delivery| delivery.token)
            .collect();
        let suspects = self
            .entries
            .iter()
            .filter(|(_, entry)| matches!(entry.phase, Phase::Suspect | Phase::Held));
        unstarted.extend(suspects.map(|(token, _)| token));
        unstarted
    }
}
