//! A service that takes over handed-over messages: one at a time, and it may be killed at any moment.

use std::{sync::Arc, time::Duration};

use retryrmq_model::{ConnectionId, Declare, Frame, Method, QueueType};

use super::{
    PARKED, QUEUE, Setting, Simulation,
    ledger::number,
    replica::{consumer, declarations, publishing},
};
use crate::{
    BasicProperties, Strategy,
    connection::USUAL_HEADER_ROOM,
    consumer::{
        FailedMessage, Message, Received,
        engine::{AttemptContext, Copy, NextAction},
    },
    retry::{Counting, DeliveryPast, Origin, RetryState},
    topology::{Detour, HANDOVER_QUEUE, SAFE_AGE},
};

/// How often it looks for something to do.
const LOOK: Duration = Duration::from_millis(200);
/// How long it waits before it tries again.
const PAUSE: Duration = Duration::from_secs(1);

/// A service.
#[derive(Default)]
pub(super) struct ServiceModel {
    connection: Option<ConnectionId>,
    /// From when on confirms on this connection are safe.
    safe_from: Duration,
    /// When it looks again.
    next: Duration,
    publishes: u64,
    came_back: bool,
    /// It has asked for a message.
    asks: bool,
    holds: Option<HeldMessage>,
    /// The last message that it acknowledged; in an alarm the broker may not have read that.
    let_go: Option<u32>,
}

impl ServiceModel {
    pub(super) fn who_comes_at(next: Duration) -> Self {
        Self {
            next,
            ..Self::default()
        }
    }
}

/// The message that it is taking over.
struct HeldMessage {
    tag: u64,
    copy: Copy,
    stage: Stage,
}

#[derive(Clone, Copy)]
enum Stage {
    Published,
    /// It can be acknowledged from then on.
    Stored(Duration),
    Again(Duration),
}

/// Its queue.
pub(super) fn queue() -> Declare {
    Declare::durable(HANDOVER_QUEUE, QueueType::Quorum).with_number("x-delivery-limit", 1_000_000)
}

/// What the service decides about a handed-over message.
fn decided(setting: &Setting, properties: &BasicProperties, now: u64, draw: u64) -> Copy {
    let state = RetryState::read(
        HANDOVER_QUEUE,
        Counting::Header,
        DeliveryPast::None,
        properties,
    );
    let received = Received {
        properties: properties.clone(),
        state,
        ..Received::for_tests(HANDOVER_QUEUE, "body")
    };
    let (failed, handover) = FailedMessage::handed_over(&Message(Arc::new(received)))
        .expect("what a consumer hands over can be read");
    assert_eq!(failed.queue(), QUEUE);
    let options = consumer(&Setting {
        strategy: Strategy::RetryQueues,
        ..*setting
    });
    let case = AttemptContext {
        options: &options,
        origin: &Origin::default(),
        received: &failed.received,
        header_room: USUAL_HEADER_ROOM,
        now,
        copies: false,
    };
    let next_action = match handover.outcome(failed.failure()) {
        Some(outcome) => case.after(&outcome, draw),
        None => case.detour(failed.received.state.own_crashes, Detour::Shortest),
    };
    match next_action {
        NextAction::Copy(pending_copy) => pending_copy.copy,
        other => unreachable!("{other:?} is no copy"),
    }
}

impl Simulation {
    fn has_service(&self) -> bool {
        self.setting.strategy == Strategy::Service
    }

    pub(super) fn service_is_idle(&self) -> bool {
        self.service.holds.is_none() && self.broker.messages(HANDOVER_QUEUE).next().is_none()
    }

    pub(super) fn service_wakes_at(&self) -> Option<Duration> {
        let next = match &self.service.holds {
            None => Some(self.service.next),
            Some(held) => match held.stage {
                Stage::Published => None,
                Stage::Stored(at) | Stage::Again(at) => Some(at),
            },
        };
        next.filter(|_| self.has_service())
    }

    pub(super) fn service_clock(&mut self) {
        if !self.has_service() {
            return;
        }
        if self.now < self.faults_until
            && self.random.u16(..) < 30
            && let Some(connection) = self.service.connection
        {
            self.note(|| "the service is killed".into());
            self.broker.cut(connection);
        }
        self.service_hears();
        let is_open = |id: &ConnectionId| self.broker.is_open(*id);
        if self.service.connection.filter(is_open).is_none() {
            self.service_comes();
        }
        let Some(connection) = self.service.connection else {
            return;
        };
        match self
            .service
            .holds
            .as_ref()
            .map(|held| (held.stage, held.tag))
        {
            Some((Stage::Stored(at), tag)) if at <= self.now => {
                let multiple = false;
                let ack = Method::Ack { tag, multiple };
                self.broker.send(connection, 1, ack);
                if let Some(held) = self.service.holds.take() {
                    let number = number(&held.copy.properties);
                    self.service.let_go = Some(number);
                    if held.copy.routing_key == PARKED {
                        self.ledger.parked(number);
                    }
                }
                self.service.next = self.now;
            }
            Some((Stage::Again(at), _)) if at <= self.now => self.service_publishes(connection),
            Some(_) => {}
            None if self.service.next <= self.now => {
                self.service.next = self.now + LOOK;
                if std::mem::replace(&mut self.service.asks, true) {
                    return;
                }
                let (queue, no_ack) = (HANDOVER_QUEUE.into(), false);
                self.broker
                    .send(connection, 1, Method::Get { queue, no_ack });
                self.service_hears();
            }
            None => {}
        }
    }

    fn service_comes(&mut self) {
        if self.service.connection.is_some() {
            let held = self.service.holds.as_ref();
            let held = held.map(|held| number(&held.copy.properties));
            for number in held.into_iter().chain(self.service.let_go) {
                self.ledger.may_be_doubled(number);
            }
            self.service = ServiceModel {
                next: self.now + PAUSE,
                ..ServiceModel::default()
            };
        }
        if self.service.next > self.now {
            return;
        }
        self.service.next = self.now + PAUSE;
        let Some(connection) = self.broker.connect() else {
            return;
        };
        self.broker.send(connection, 1, Method::OpenChannel);
        for declare in declarations(&self.setting) {
            let name = &*declare.queue;
            if name != QUEUE && (name != PARKED || self.broker.queue_view(PARKED).is_none()) {
                let declare = Method::Declare(Box::new(declare));
                self.broker.send(connection, 1, declare);
            }
        }
        let _ = self.broker.make_queue(&queue());
        self.broker.send(connection, 1, Method::SelectConfirms);
        self.service.connection = Some(connection);
        self.service.safe_from = self.now + SAFE_AGE;
        self.service.next = self.now;
    }

    /// Deletes the queue of the service, if no message is lost with it.
    pub(super) fn service_loses_its_queue(&mut self) {
        if self.broker.messages(HANDOVER_QUEUE).next().is_none()
            && self.broker.delete_queue(HANDOVER_QUEUE)
        {
            self.note(|| "the service's queue is deleted".into());
            if let Some(connection) = self.service.connection {
                self.broker.cut(connection);
            }
        }
    }

    fn service_publishes(&mut self, connection: ConnectionId) {
        let Some(held) = &mut self.service.holds else {
            return;
        };
        held.stage = Stage::Published;
        let copy = held.copy.clone();
        self.service.publishes += 1;
        self.broker.send(connection, 1, publishing(copy));
    }

    fn service_hears(&mut self) {
        let Some(connection) = self.service.connection else {
            return;
        };
        while let Some((_, frame)) = self.broker.receive(connection) {
            match frame {
                Frame::GetEmpty => self.service.asks = false,
                Frame::Got(delivery) => {
                    self.service.asks = false;
                    let draw = self.random.u64(..);
                    let unix = self.now().unix;
                    let copy = decided(&self.setting, &delivery.properties, unix, draw);
                    self.note(|| {
                        format!(
                            "the service sends {} to {}",
                            number(&copy.properties),
                            copy.routing_key
                        )
                    });
                    let (tag, stage) = (delivery.tag, Stage::Published);
                    self.service.holds = Some(HeldMessage { tag, copy, stage });
                    self.service_publishes(connection);
                }
                Frame::Return(_) => self.service.came_back = true,
                Frame::Confirm { publish, stored } if publish == self.service.publishes => {
                    let stored = stored && !std::mem::take(&mut self.service.came_back);
                    let (again, safe) = (self.now + PAUSE, self.service.safe_from.max(self.now));
                    if let Some(held) = &mut self.service.holds {
                        held.stage = match stored {
                            true => Stage::Stored(safe),
                            false => Stage::Again(again),
                        };
                    }
                }
                Frame::CloseChannel(why) => {
                    self.note(|| format!("the service loses its channel: {}", why.text));
                    self.broker.cut(connection);
                }
                _ => {}
            }
        }
    }
}
