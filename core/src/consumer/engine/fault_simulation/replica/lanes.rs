//! The lanes of a publishing connection: one for each target, which share the channels that the broker allows. Who gets which is decided by
//! the same function as in a real one.

use std::collections::BTreeMap;

use retryrmq_model::Method;

use super::{
    super::{QUEUE, Simulation, ledger::number},
    HeldUp, Unconfirmed,
    commands::publishing,
    lost,
};
use crate::{
    consumer::engine::Copy,
    publish::{ChannelGrant, ChannelQueue, most_channels},
};

/// How many channels a client uses where the broker allows more.
const ENOUGH: u16 = 64;

#[derive(Default)]
pub(super) struct Lanes {
    queue: ChannelQueue,
    /// By the target.
    assigned: BTreeMap<String, usize>,
    /// The places of those that wait for a channel.
    tickets: BTreeMap<usize, u64>,
    /// The channels that wait for more copies, by the lane that used each last.
    idle: BTreeMap<usize, u16>,
    /// The lanes that wait for confirms, by their channels, with how many.
    busy: BTreeMap<u16, (usize, usize)>,
    /// How many were published on each channel.
    publishes: BTreeMap<u16, u64>,
}

impl Lanes {
    fn lane(&mut self, copy: &Copy) -> usize {
        let target = match copy.exchange.is_empty() {
            true => copy.routing_key.clone(),
            false => format!("to {}", copy.exchange),
        };
        let next = self.assigned.len();
        *self.assigned.entry(target).or_insert(next)
    }

    fn is_busy(&self, lane: usize) -> bool {
        self.busy.values().any(|(other, _)| *other == lane)
    }

    /// The way of a lane to a channel, when there are so many for all of them.
    fn way(&self, lane: usize, most: usize) -> ChannelGrant {
        let idle: Vec<_> = self.idle.keys().copied().collect();
        let room = most.saturating_sub(self.idle.len() + self.busy.len());
        let ticket = self.tickets.get(&lane).copied();
        self.queue.way(lane, ticket, &idle, room)
    }

    fn leave(&mut self, lane: usize) {
        if let Some(ticket) = self.tickets.remove(&lane) {
            self.queue.leave(ticket);
        }
    }

    /// A confirm came on this channel. Returns whether its lane has all of them.
    pub(super) fn confirmed(&mut self, channel: u16) -> bool {
        let Some((lane, outstanding)) = self.busy.get_mut(&channel) else {
            return false;
        };
        let lane = *lane;
        *outstanding -= 1;
        let is_done = *outstanding == 0;
        if is_done {
            self.busy.remove(&channel);
            self.idle.insert(lane, channel);
        }
        is_done
    }

    /// The connection is gone, with all channels.
    pub(super) fn lost(&mut self) {
        (self.idle, self.busy, self.publishes) = Default::default();
    }
}

impl Simulation {
    /// Publishes the copies whose lanes get a channel.
    pub(super) fn serve_lanes(&mut self, at: usize) {
        let is_due = self.replicas[at].held_up.iter().any(HeldUp::is_due);
        if self.replicas[at].is_blocked || !is_due {
            return;
        }
        if self.replicas[at].publishing.connection.is_none() {
            let connection = self.broker.connect();
            let replica = &mut self.replicas[at];
            replica.publishing.connection = connection;
            if connection.is_none() {
                let held_up = std::mem::take(&mut replica.held_up);
                let (due, others) = held_up.into_iter().partition(HeldUp::is_due);
                replica.held_up = others;
                for HeldUp { token, .. } in due {
                    self.answer_copy(at, token, Err(lost()));
                }
                return;
            }
            replica.losses += u32::from(std::mem::replace(&mut replica.has_published, true));
        }
        let most = most_channels(self.setting.channels.unwrap_or(ENOUGH).into());
        let replica = &mut self.replicas[at];
        let mut lanes: Vec<usize> = Vec::new();
        for held in replica.held_up.iter().filter(|held| held.is_due()) {
            let lane = replica.lanes.lane(&held.copy);
            if !lanes.contains(&lane) {
                lanes.push(lane);
            }
        }
        for lane in lanes {
            self.serve_lane(at, lane, most);
        }
    }

    fn serve_lane(&mut self, at: usize, lane: usize, most: usize) {
        let replica = &mut self.replicas[at];
        let lanes = &mut replica.lanes;
        if lanes.is_busy(lane) {
            return;
        }
        let channel = match lanes.way(lane, most) {
            ChannelGrant::Take(whose) => lanes.idle.remove(&whose),
            ChannelGrant::Open => {
                let taken = lanes.publishes.len();
                let channel = u16::try_from(taken + 1).expect("few channels");
                lanes.publishes.insert(channel, 0);
                let written = &mut replica.publishing.written;
                written.push_back((channel, Method::OpenChannel));
                written.push_back((channel, Method::SelectConfirms));
                Some(channel)
            }
            ChannelGrant::Wait => None,
        };
        let Some(channel) = channel else {
            if !lanes.tickets.contains_key(&lane) {
                lanes.tickets.insert(lane, lanes.queue.join());
            }
            return;
        };
        lanes.leave(lane);
        let held_up = std::mem::take(&mut replica.held_up);
        let (mine, others): (Vec<_>, _) = held_up
            .into_iter()
            .partition(|held| held.is_due() && lanes.lane(&held.copy) == lane);
        replica.held_up = others;
        lanes.busy.insert(channel, (lane, mine.len()));
        for held_up in mine {
            let HeldUp {
                token,
                copy,
                at_once,
                ..
            } = held_up;
            let publishes = lanes.publishes.entry(channel).or_default();
            *publishes += 1;
            // An original would be lost with the queue that it has in common with its copy.
            let is_apart = copy.routing_key != QUEUE;
            let age = replica.ages.get(&copy.routing_key).filter(|_| is_apart);
            let unconfirmed = Unconfirmed {
                token,
                queue: copy.routing_key.clone(),
                number: number(&copy.properties),
                safe_from: age
                    .map(|age| age.safe_from())
                    .filter(|safe| *safe > self.now),
                at_once,
            };
            replica
                .unconfirmed
                .insert((channel, *publishes), unconfirmed);
            let written = &mut replica.publishing.written;
            written.push_back((channel, publishing(copy)));
        }
    }
}
