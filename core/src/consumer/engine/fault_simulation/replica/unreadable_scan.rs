//! How a replica looks for messages that the broker cannot deliver, and moves them. A real one speaks AMQP 1.0 then, which is not simulated:
//! what it would see, publish and accept is done on the model. When to look, how far, and what follows is decided by the same functions.

use std::time::Duration;

use retryrmq_model::{
    ConnectionId, Consume, Declare, Delivery, Frame, Method, Publish, QueueType, Version,
};

use super::{
    super::{QUEUE, Simulation, UNREADABLE, Unreadable, ledger::number},
    plan::declared,
};
use crate::{
    Error, ErrorKind, Item, Result,
    consumer::engine::Input,
    topology::{SAFE_AGE, unreadable},
    unreadable::{Evidence, LEFT_TO_OTHERS, Moved, ScanRange, Step, SuspectQueue},
};

/// Messages on their way out of the queue.
pub(super) struct UnreadableScan {
    /// `None`: it has found nothing, and leaves others some time.
    connection: Option<ConnectionId>,
    session: u64,
    /// The tags of what is moved, with their numbers.
    meant: Vec<(u64, u32)>,
    ended_early: Option<Error>,
    /// When the originals are removed.
    until: Duration,
}

impl UnreadableScan {
    pub(super) fn until(&self) -> Duration {
        self.until
    }
}

fn moved(count: usize) -> Moved {
    Moved {
        causes: vec!["it has a type that AMQP 0-9-1 lacks".to_owned(); count],
        ..Moved::default()
    }
}

fn may_not() -> Error {
    Error::new(ErrorKind::AccessRefused, "access refused")
}

fn is_full() -> Error {
    Error::new(ErrorKind::Broker, "the broker did not store a copy")
}

fn hidden() -> Error {
    Error::new(ErrorKind::Broker, "AMQP 1.0 cannot carry it")
}

impl Simulation {
    fn suspect_queue(&self) -> SuspectQueue<'static> {
        SuspectQueue {
            queue: QUEUE,
            is_classic: self.setting.work == QueueType::Classic,
            is_free: self.setting.work == QueueType::Classic
                || self.setting.version >= Version::V4_3,
            prefetch: self.setting.prefetch,
        }
    }

    /// Looks before a channel is opened. Returns `Ok` if that can be opened now.
    pub(super) fn begin_scan(&mut self, at: usize, session: u64) -> Result<bool> {
        let internal_errors = self.replicas[at].internal_errors.clone();
        self.take_one_by_one(at, internal_errors.one_by_one(self.setting.prefetch));
        if !internal_errors.should_scan() {
            return Ok(true);
        }
        let suspect = self.suspect_queue();
        let harm = self.setting.unreadable.filter(|_| !self.harm_has_stopped);
        let is_stuck = harm == Some(Unreadable::Stuck);
        let ready = |queue| {
            let count = self.broker.queue_view(queue).map_or(0, |view| view.ready);
            u32::try_from(count).ok()
        };
        let mut seen = Evidence {
            ready: ready(QUEUE),
            ..Evidence::default()
        };
        if internal_errors.is_refused() && seen.ready != Some(0) {
            seen.refusal = is_stuck.then(may_not);
            // What fills it is taken out when faults stop.
            let filling = u32::from(harm == Some(Unreadable::Full));
            seen.aside = ready(UNREADABLE).map(|count| count + filling);
        }
        let Step::Look(reach) = internal_errors.step(suspect, seen)? else {
            return Ok(true);
        };
        let Some(connection) = self.broker.connect_amqp10() else {
            return Err(super::lost());
        };
        let found = self.read(connection, reach);
        let mut ended_early = None;
        let (connection, found) = match (found, reach) {
            (Some(found), _) => (connection, found),
            (None, ScanRange::Near(_)) => {
                ended_early = Some(hidden());
                let Some(connection) = self.broker.connect_amqp10() else {
                    return Err(super::lost());
                };
                let found = self.read_one_by_one(connection, 1);
                (connection, found.unwrap_or_default())
            }
            (None, ScanRange::Singly { .. }) => {
                ended_early = Some(hidden());
                (connection, Vec::new())
            }
        };
        let refused = match harm {
            Some(Unreadable::Stuck) => Some(may_not()),
            Some(Unreadable::Full) => Some(is_full()),
            _ => None,
        };
        if refused.is_some() && !found.is_empty() {
            // A forbidden link ends the session before anything is released.
            if !is_stuck {
                self.release(connection);
            }
            self.broker.cut(connection);
            let moved = Moved {
                refused,
                ..Moved::default()
            };
            return internal_errors.scanned(suspect, Ok(moved)).map(|_| true);
        }
        if !found.is_empty() {
            let queue_type = match self.setting.waiting {
                QueueType::Classic => crate::QueueType::Classic,
                QueueType::Quorum => crate::QueueType::Quorum,
            };
            if let Item::Queue {
                name, arguments, ..
            } = unreadable(QUEUE, queue_type)
            {
                let declare = Method::Declare(Box::new(declared(&name, arguments)));
                self.broker.send(connection, 1, declare);
            }
        }
        let mut meant = Vec::new();
        for delivery in found {
            let properties = (*delivery.properties).clone();
            let copy = Publish::to_queue(UNREADABLE, delivery.body).with(properties);
            let copy = Method::Publish(Box::new(copy.unreadable()));
            self.broker.send(connection, 1, copy);
            meant.push((delivery.tag, number(&delivery.properties)));
        }
        let time = match (meant.is_empty(), &ended_early, reach) {
            (false, ..) => SAFE_AGE,
            (true, None, ScanRange::Near(_)) => LEFT_TO_OTHERS,
            (true, ..) => Duration::ZERO,
        };
        let mut scan = UnreadableScan {
            connection: Some(connection),
            session,
            meant,
            ended_early,
            until: self.now + time,
        };
        if time == LEFT_TO_OTHERS && scan.meant.is_empty() {
            self.release(connection);
            self.broker.cut(connection);
            scan.connection = None;
        }
        self.replicas[at].scan = Some(scan);
        Ok(false)
    }

    /// What is found within reach. `None`: the broker ended the connection at a message that AMQP 1.0 cannot carry.
    fn read(&mut self, connection: ConnectionId, reach: ScanRange) -> Option<Vec<Delivery>> {
        let most = match reach {
            ScanRange::Near(most) => u16::try_from(most).unwrap_or(u16::MAX),
            ScanRange::Singly { in_order, .. } => {
                return self.read_one_by_one(connection, in_order);
            }
        };
        for method in [
            Method::OpenChannel,
            Method::SelectConfirms,
            Method::Qos { prefetch: most },
            Method::Consume(Consume::new(QUEUE, "look")),
        ] {
            self.broker.send(connection, 1, method);
        }
        let mut found = Vec::new();
        while let Some((_, frame)) = self.broker.receive(connection) {
            if let Frame::Deliver(delivery) = frame {
                // It comes again after the look, as after a crash.
                self.ledger.hit(number(&delivery.properties));
                if delivery.unreadable {
                    found.push(*delivery);
                }
            }
        }
        if !self.broker.is_open(connection) {
            // What was still to be sent comes again as well.
            self.ledger.hit_all();
            return None;
        }
        // Nothing comes that was not asked for.
        let tag = "look".into();
        self.broker.send(connection, 1, Method::Cancel { tag });
        Some(found)
    }

    /// The same of one message after the other. A look that has found something ends with it: what is behind may end the connection.
    fn read_one_by_one(
        &mut self,
        connection: ConnectionId,
        in_order: u32,
    ) -> Option<Vec<Delivery>> {
        for method in [Method::OpenChannel, Method::SelectConfirms] {
            self.broker.send(connection, 1, method);
        }
        let mut found = Vec::new();
        for _ in 0..in_order {
            let get = Method::Get {
                queue: QUEUE.into(),
                no_ack: false,
            };
            self.broker.send(connection, 1, get);
            let frames = std::iter::from_fn(|| self.broker.receive(connection));
            let got: Vec<_> = frames
                .filter_map(|(_, frame)| match frame {
                    Frame::Got(delivery) => Some(delivery),
                    _ => None,
                })
                .collect();
            if !self.broker.is_open(connection) {
                self.ledger.hit_all();
                return None;
            }
            let Some(delivery) = got.into_iter().next() else {
                break;
            };
            self.ledger.hit(number(&delivery.properties));
            if delivery.unreadable {
                found.push(*delivery);
                break;
            }
        }
        Some(found)
    }

    fn take_one_by_one(&mut self, at: usize, count: u32) {
        if let Some(engine) = &mut self.replicas[at].engine {
            engine.take_one_by_one(count);
        }
    }

    /// The copies are safe, or the connection was lost.
    pub(super) fn end_scan(
        &mut self,
        at: usize,
        scan: UnreadableScan,
    ) -> std::result::Result<(), String> {
        let scanned = self.remove_originals(at, &scan).map(|moved| Moved {
            ended_early: scan.ended_early,
            ..moved
        });
        let internal_errors = self.replicas[at].internal_errors.clone();
        let session = scan.session;
        match internal_errors.scanned(self.suspect_queue(), scanned) {
            Ok(one_by_one) => {
                self.take_one_by_one(at, one_by_one);
                self.consume(at, session)
            }
            Err(error) => self.feed(at, Input::OpenFailed { session, error }),
        }
    }

    fn remove_originals(&mut self, at: usize, scan: &UnreadableScan) -> Result<Moved> {
        let Some(connection) = scan.connection else {
            return Ok(moved(0));
        };
        let frames = std::iter::from_fn(|| self.broker.receive(connection));
        let stored =
            frames.filter(|(_, frame)| matches!(frame, Frame::Confirm { stored: true, .. }));
        if stored.count() < scan.meant.len() || !self.broker.is_open(connection) {
            self.cancel_scan(scan);
            return Err(super::lost());
        }
        for (tag, number) in &scan.meant {
            let (tag, multiple) = (*tag, false);
            self.broker
                .send(connection, 1, Method::Ack { tag, multiple });
            self.note(|| format!("replica {at} has moved {number} out of the way"));
        }
        // During an alarm the broker may not have read that, because this connection has published.
        let sync = Method::Declare(Box::new(Declare::passive(QUEUE)));
        self.broker.send(connection, 1, sync);
        let mut frames = std::iter::from_fn(|| self.broker.receive(connection));
        if !frames.any(|(_, frame)| matches!(frame, Frame::Declared { .. })) {
            self.cancel_scan(scan);
            return Err(super::lost());
        }
        for (_, number) in &scan.meant {
            self.ledger.set_aside(*number);
        }
        self.release(connection);
        self.broker.cut(connection);
        self.replicas[at].moves += u64::from(!scan.meant.is_empty());
        Ok(moved(scan.meant.len()))
    }

    /// Gives back what was looked at, which is no delivery where it costs nothing.
    fn release(&mut self, connection: ConnectionId) {
        if self.setting.version >= Version::V4_3 {
            let (tag, multiple, requeue) = (0, true, true);
            let back = Method::Nack {
                tag,
                multiple,
                requeue,
            };
            self.broker.send(connection, 1, back);
        }
    }

    /// Originals and copies may both be there.
    pub(super) fn cancel_scan(&mut self, scan: &UnreadableScan) {
        if let Some(connection) = scan.connection {
            self.broker.cut(connection);
        }
        for (_, number) in &scan.meant {
            self.ledger.may_be_doubled(*number);
        }
    }
}
