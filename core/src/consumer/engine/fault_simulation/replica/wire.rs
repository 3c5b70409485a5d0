//! How a replica reads frames of the broker, and how its connections end.

use lapin::protocol::AMQPError;
use retryrmq_model::{Delivery as Sent, Frame};

use super::{
    super::{PARKED, Simulation, ledger::number},
    Replica, SimulatedConnection, Unconfirmed, lost,
};
use crate::{
    Error, ErrorKind,
    client::Reasons,
    connection::{Operation, refusal},
    consumer::engine::{Engine, IncomingDelivery, Input},
    types::ShortString,
};

/// How often the patience of a broker may run out until a replica knows it. A cancelled consumer learns it when its message comes again, which
/// may be to another replica first.
const TIMEOUTS: u32 = 3;

impl Simulation {
    pub(super) fn consumer_hears(
        &mut self,
        at: usize,
        channel: u16,
        frame: Frame,
    ) -> Result<(), String> {
        if channel != self.replicas[at].channel && channel != 0 {
            return Ok(());
        }
        let session = self.replicas[at].session;
        if let Frame::Deliver(delivery) = &frame {
            let (number, redelivered) = (number(&delivery.properties), delivery.redelivered);
            let again = if redelivered { " again" } else { "" };
            self.note(|| format!("replica {at} is sent {number}{again}"));
            // The broker silently takes back messages that were held for too long and whose consumer is gone.
            let is_with = |replica: &Replica| replica.with_us.values().any(|held| *held == number);
            if redelivered && self.replicas.iter().any(is_with) {
                self.ledger.may_be_doubled(number);
            }
            self.replicas[at].with_us.insert(delivery.tag, number);
            self.replicas[at].safe.remove(&number);
        }
        if matches!(
            frame,
            Frame::Cancel { .. } | Frame::CloseChannel(_) | Frame::CloseConnection(_)
        ) {
            self.comes_again(at);
        }
        if self.has_timed_out(at, &frame) {
            return Err(format!("replica {at} kept a message for too long"));
        }
        let consumer = |tag: &str| tag.parse().unwrap_or(0);
        let input = match frame {
            Frame::ConsumeOk { tag } => Input::Consuming {
                session,
                consumer: consumer(&tag),
            },
            Frame::CancelOk { tag } => Input::Cancelled {
                session,
                consumer: consumer(&tag),
            },
            Frame::Cancel { tag } => Input::CancelledByBroker {
                session,
                consumer: consumer(&tag),
            },
            Frame::Deliver(delivery) => Input::Delivered {
                session,
                consumer: consumer(&delivery.consumer),
                arrival: Box::new(arrival(&delivery)),
            },
            Frame::Declared { .. } => match self.replicas[at].syncs.pop_front() {
                Some(number) => Input::Synced { session, number },
                None => return Ok(()),
            },
            Frame::CloseChannel(why) if why.text.contains("unknown delivery tag") => {
                return Err(format!(
                    "replica {at} settled what it did not hold: {}",
                    why.text
                ));
            }
            Frame::CloseChannel(why) => {
                let said = AMQPError::from_id(why.code, why.text.into());
                let why = said.map(|said| {
                    let said = lapin::ErrorKind::ProtocolError(said);
                    refusal(&Operation::Consuming("orders"), said.into())
                });
                self.suspect(at, false);
                Input::Lost { session, why }
            }
            Frame::CloseConnection(why) => {
                self.replicas[at].consuming = SimulatedConnection::default();
                let by_error = why.code == 541 && why.text == "INTERNAL_ERROR";
                if by_error {
                    self.note(|| format!("replica {at} loses its connection: {}", why.text));
                    self.hit_waiting(at);
                    self.hit_running(at);
                }
                self.suspect(at, by_error);
                Input::Lost { session, why: None }
            }
            _ => return Ok(()),
        };
        self.feed(at, input)
    }

    /// Whether the `consumer_timeout` is over, and no handler can be the cause.
    fn has_timed_out(&mut self, at: usize, frame: &Frame) -> bool {
        let (setting, faults) = (&self.setting, self.setting.faults);
        let ended = match frame {
            Frame::CloseChannel(why) => why.text.contains("timed out"),
            Frame::Cancel { .. } => !(faults.work_queue_changes || faults.broker),
            _ => false,
        };
        if setting.consumer_timeout.is_some() {
            // Nobody knows a broker's patience before it has run out.
            let timeouts = &mut self.replicas[at].timeouts;
            *timeouts += u32::from(ended);
            return *timeouts > TIMEOUTS && !setting.long_alarm;
        }
        ended && !(setting.hangs || setting.long_alarm || faults.poison)
    }

    /// A channel is lost.
    fn suspect(&mut self, at: usize, by_error: bool) {
        let replica = &mut self.replicas[at];
        let lived = self.now.saturating_sub(replica.opened);
        let one_by_one = replica.engine.as_ref().map(Engine::one_by_one);
        let reasons = Reasons {
            moved: replica.moves,
            stopped: 0,
        };
        replica
            .internal_errors
            .lost(by_error, lived, reasons, one_by_one.unwrap_or_default());
    }

    pub(super) fn publisher_of_copies_hears(
        &mut self,
        at: usize,
        channel: u16,
        frame: &Frame,
    ) -> Result<(), String> {
        let replica = &mut self.replicas[at];
        match frame {
            Frame::Return(returned) => {
                let what = (
                    returned.routing_key.to_string(),
                    number(&returned.properties),
                );
                replica.returned.push(what);
                Ok(())
            }
            Frame::Confirm { publish, stored } => {
                let stored = *stored;
                let Some(unconfirmed) = replica.unconfirmed.remove(&(channel, *publish)) else {
                    return Ok(());
                };
                let is_free = replica.lanes.confirmed(channel);
                let Unconfirmed {
                    token,
                    queue,
                    number,
                    safe_from,
                    at_once,
                } = unconfirmed;
                let what = (queue, number);
                let came_back = replica.returned.contains(&what);
                if came_back || !stored {
                    let to = what.0.clone();
                    self.note(|| {
                        format!("replica {at}: the copy of {number} is not stored in {to}")
                    });
                }
                let replica = &mut self.replicas[at];
                let back = replica.returned.iter().position(|seen| *seen == what);
                let stored = if let Some(back) = back {
                    replica.returned.swap_remove(back);
                    replica.ages.remove(&what.0);
                    Err(Error::new(ErrorKind::Unroutable, "there is no such queue"))
                } else if stored {
                    if what.0 == PARKED {
                        self.ledger.parked(number);
                    }
                    // A copy goes to a young queue only if its original has been counted too often to wait.
                    let may_be_young = at_once && !replica.marked_old.contains(&what.0);
                    let safe = safe_from.filter(|_| may_be_young).unwrap_or(self.now);
                    replica.safe.insert(number, safe);
                    Ok(safe_from)
                } else {
                    Err(Error::new(
                        ErrorKind::NotConfirmed,
                        "the broker did not take it",
                    ))
                };
                if is_free {
                    self.serve_lanes(at);
                }
                self.feed(at, Input::Copied { token, stored })
            }
            Frame::CloseConnection(_) | Frame::CloseChannel(_) => {
                self.cut_publishing(at);
                Ok(())
            }
            Frame::Blocked => {
                replica.is_blocked = true;
                Ok(())
            }
            Frame::Unblocked => {
                self.send_what_was_held_up(at);
                self.turn(at)
            }
            _ => Ok(()),
        }
    }

    pub(in super::super) fn cut_consuming(&mut self, at: usize) {
        let line = std::mem::take(&mut self.replicas[at].consuming);
        let Some(id) = line.connection else { return };
        self.replicas[at].marks = None;
        self.note(|| format!("replica {at}: the consuming connection is cut"));
        self.broker.cut(id);
        self.comes_again(at);
        self.hit_waiting(at);
        self.hit_running(at);
        self.suspect(at, false);
        let session = self.replicas[at].session;
        let _ = self.feed(at, Input::Lost { session, why: None });
    }

    /// The messages of a replica whose connection or process is taken away: no message is the cause.
    pub(in super::super) fn hit_waiting(&mut self, at: usize) {
        let replica = &self.replicas[at];
        let Some(engine) = &replica.engine else {
            return;
        };
        for (token, received) in engine.held() {
            if !replica.running.iter().any(|one| one.token == token) {
                self.ledger.hit(number(&received.properties));
            }
        }
    }

    pub(super) fn hit_running(&mut self, at: usize) {
        for running in &self.replicas[at].running {
            self.ledger.hit(running.number);
        }
    }

    pub(in super::super) fn cut_publishing(&mut self, at: usize) {
        let replica = &mut self.replicas[at];
        let line = std::mem::take(&mut replica.publishing);
        let Some(id) = line.connection else { return };
        replica.returned.clear();
        replica.lanes.lost();
        let unconfirmed = std::mem::take(&mut replica.unconfirmed);
        self.note(|| format!("replica {at}: the publishing connection is cut"));
        self.broker.cut(id);
        for copy in unconfirmed.into_values() {
            self.ledger.may_be_doubled(copy.number);
            let (token, stored) = (copy.token, Err(lost()));
            let _ = self.feed(at, Input::Copied { token, stored });
        }
        self.send_what_was_held_up(at);
        let _ = self.turn(at);
    }
}

fn arrival(sent: &Sent) -> IncomingDelivery {
    IncomingDelivery {
        tag: sent.tag,
        redelivered: sent.redelivered,
        exchange: ShortString::from(&*sent.exchange),
        routing_key: ShortString::from(&*sent.routing_key),
        properties: (*sent.properties).clone(),
        body: sent.body.to_vec(),
        mended: None,
    }
}
