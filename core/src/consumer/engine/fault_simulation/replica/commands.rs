//! Carries out the commands of an engine.

use std::time::Duration;

use retryrmq_model::{Consume, Declare, Method, Publish};

use super::{
    super::{PARKED, QUEUE, Simulation, ledger::number, publisher::body},
    lost,
};
use crate::{
    Error, ErrorKind,
    consumer::{
        Token,
        engine::{Command, Copy, Input, Return},
    },
    telemetry::Event,
};

/// The AMQP method that publishes a copy.
pub(in super::super) fn publishing(copy: Copy) -> Method {
    let body = body(number(&copy.properties)).into();
    Method::Publish(Box::new(Publish {
        exchange: copy.exchange.as_str().into(),
        routing_key: copy.routing_key.as_str().into(),
        mandatory: copy.mandatory,
        properties: copy.properties,
        body,
        unreadable: false,
    }))
}

impl Simulation {
    pub(super) fn perform(&mut self, at: usize, command: Command) {
        let now = self.now();
        let replica = &mut self.replicas[at];
        let channel = replica.channel;
        let mut write = |method| replica.consuming.written.push_back((channel, method));
        match command {
            Command::Open { session, pause } => {
                let pause = replica.internal_errors.pause(pause);
                replica.opens = Some((session, now.at + pause));
            }
            Command::Drop { .. } => write(Method::CloseChannel),
            Command::Consume {
                consumer, prefetch, ..
            } => {
                write(Method::Qos { prefetch });
                write(Method::Consume(Consume::new(QUEUE, &consumer.to_string())));
            }
            Command::Cancel { consumer, .. } => write(Method::Cancel {
                tag: consumer.to_string().into(),
            }),
            Command::Ack { tag, multiple, .. } => write(Method::Ack { tag, multiple }),
            Command::Return { tag, how, .. } => write(match how {
                Return::Requeue => Method::Reject { tag, requeue: true },
                Return::Reject => Method::Reject {
                    tag,
                    requeue: false,
                },
                Return::Unstarted => Method::Nack {
                    tag,
                    multiple: false,
                    requeue: true,
                },
                Return::DeadLetter => Method::Nack {
                    tag,
                    multiple: false,
                    requeue: false,
                },
            }),
            Command::Sync { number, .. } => {
                write(Method::Declare(Box::new(Declare::passive(QUEUE))));
                replica.syncs.push_back(number);
            }
            Command::Publish {
                token,
                copy,
                at_once,
            } => self.publish_copy(at, token, *copy, at_once),
            Command::Recall => {
                let unstarted = replica
                    .delivery_queue
                    .drain(..)
                    .map(|delivery| delivery.token);
                let input = Input::Recalled(unstarted.collect());
                if let Some(engine) = &mut replica.engine {
                    engine.on(input, now, &mut replica.wanted);
                }
            }
            Command::RecallThese { tokens } => {
                let (late, delivery_queue) = std::mem::take(&mut replica.delivery_queue)
                    .into_iter()
                    .partition::<Vec<_>, _>(|delivery| tokens.contains(&delivery.token));
                replica.delivery_queue = delivery_queue.into();
                let late = late.into_iter().map(|delivery| delivery.token);
                if let Some(engine) = &mut replica.engine {
                    let input = Input::Recalled(late.collect());
                    engine.on(input, now, &mut replica.wanted);
                }
            }
            Command::Withdraw { token } => self.withdraw(at, token),
            Command::Skip { token } => replica
                .delivery_queue
                .retain(|delivery| delivery.token != token),
            Command::EndIntake => {}
            Command::Tell(event) => self.record_event(at, &event),
        }
    }

    pub(super) fn record_event(&mut self, at: usize, event: &Event) {
        if matches!(event, Event::Requeued { .. } | Event::Detoured { .. }) {
            self.note(|| format!("replica {at}: {event:?}"));
        }
    }

    pub(super) fn publish_copy(&mut self, at: usize, token: Token, copy: Copy, at_once: bool) {
        if !self.replicas[at].ages.contains_key(&copy.routing_key)
            && copy.routing_key != QUEUE
            && !self.topology(at)
        {
            let stored = Err(lost());
            self.answer_copy(at, token, stored);
            return;
        }
        if self.setting.refused && copy.routing_key == PARKED && !self.harm_has_stopped {
            let too_large = Error::new(ErrorKind::TooLarge, "the broker takes no message so large");
            return self.answer_copy(at, token, Err(too_large));
        }
        self.hold_up(at, token, copy, at_once);
        self.serve_lanes(at);
    }

    pub(super) fn answer_copy(
        &mut self,
        at: usize,
        token: Token,
        stored: crate::Result<Option<Duration>>,
    ) {
        let now = self.now();
        let replica = &mut self.replicas[at];
        if let Some(engine) = &mut replica.engine {
            engine.on(Input::Copied { token, stored }, now, &mut replica.wanted);
        }
    }
}
