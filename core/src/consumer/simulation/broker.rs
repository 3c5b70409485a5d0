//! Carries out the engine's commands, as a broker that never fails.

use std::sync::Arc;

use super::{Simulation, Step, queue::waiting_time};
use crate::{
    consumer::{
        Message, Received,
        engine::{Command, Copy, Input},
    },
    retry::{Counting, DeliveryPast, RetryState, waited},
    telemetry::Event,
    types::ShortString,
};

impl Simulation {
    pub(super) fn perform(&mut self, command: Command) -> Option<Input> {
        match command {
            Command::Consume {
                session,
                consumer,
                prefetch,
            } => {
                self.queue.serve(consumer, prefetch);
                Some(Input::Consuming { session, consumer })
            }
            Command::Cancel { session, consumer } => {
                self.queue.cancel(consumer);
                Some(Input::Cancelled { session, consumer })
            }
            Command::Ack { tag, multiple, .. } => {
                self.queue.acknowledge(tag, multiple);
                None
            }
            Command::Return { tag, how, .. } => {
                self.queue.give_back(tag, how);
                None
            }
            Command::Sync { session, number } => Some(Input::Synced { session, number }),
            Command::Publish { token, copy, .. } => {
                let original = self.engine.body(token)?;
                self.deliver(*copy, &original);
                Some(Input::Copied {
                    token,
                    stored: Ok(None),
                })
            }
            Command::Recall => {
                let unstarted = self.ready.drain(..).map(|delivery| delivery.token);
                Some(Input::Recalled(unstarted.collect()))
            }
            // Nothing here takes back what is kept for long.
            Command::RecallThese { .. } => None,
            Command::Skip { token } => {
                self.ready.retain(|delivery| delivery.token != token);
                None
            }
            Command::Tell(event) => {
                self.note(event);
                None
            }
            Command::Open { .. }
            | Command::Drop { .. }
            | Command::Withdraw { .. }
            | Command::EndIntake => None,
        }
    }

    /// Records what happened to a message. A parked one was published just before.
    fn note(&mut self, event: Event) {
        self.counters.note(&event);
        match event {
            Event::Retried { delay, .. } => self.steps.push_back(Step::Retried { delay }),
            Event::Deferred { delay, .. } => self.steps.push_back(Step::Deferred { delay }),
            Event::Rejected { .. } => self.steps.push_back(Step::Rejected),
            Event::Parked { reason, .. } => self.steps.push_back(match self.parked.pop_front() {
                Some(message) => Step::Parked { reason, message },
                None => Step::Dropped { reason },
            }),
            _ => {}
        }
    }

    /// Puts a copy into its queue.
    fn deliver(&mut self, copy: Copy, original: &Received) {
        let parking = crate::topology::parking_queue(&self.options.queue);
        let body = original.body.clone();
        if copy.routing_key == parking {
            let state = RetryState::read(
                &self.options.queue,
                Counting::Header,
                DeliveryPast::None,
                &copy.properties,
            );
            self.parked.push_back(Message(Arc::new(Received {
                queue: self.engine.name().into(),
                body,
                properties: Arc::unwrap_or_clone(copy.properties),
                exchange: ShortString::default(),
                routing_key: ShortString::from(parking),
                redelivered: false,
                state,
                mended: None,
            })));
            return;
        }
        let delay = waiting_time(&self.options.queue, &copy);
        let properties = waited(&copy.properties);
        let queue = ShortString::from(self.options.queue.as_str());
        self.send(delay, body, properties, ShortString::default(), queue);
    }
}
