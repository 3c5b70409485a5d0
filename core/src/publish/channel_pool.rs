//! The channels of the publishing connection, which the lanes share.
//!
//! Each lane keeps the channel that it used last. While the connection has room, every lane has its own. When it has none, a lane takes an
//! idle one, whoever used it last; and if all are in use, lanes get in turn the one that is free next. So a broker that allows few channels
//! makes publishing slower, and stops nobody.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};
use tracing::warn;

use crate::{
    Error, ErrorKind,
    connection::{ANSWER, Connection, OpenChannel},
    mutants::{self, Mutant},
};

/// How long a lane waits for its turn. A wave that is not confirmed in time gives its channel up, so longer waits mean that the broker
/// confirms nothing.
pub(super) const TURN: Duration = ANSWER.saturating_mul(2);

/// How often one that waits looks for a channel that can be opened again.
const LOOK: Duration = Duration::from_millis(250);

/// How long a limit is believed that the broker tells only by closing the connection.
const BELIEVED: Duration = Duration::from_secs(600);

/// What a lane may do to get a channel.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ChannelGrant {
    /// Take the idle channel of this lane.
    Take(usize),
    Open,
    Wait,
}

/// How the channels are shared: the decisions alone.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// Those that wait, in order.
    waiting: VecDeque<u64>,
    tickets: u64,
}

impl Queue {
    /// How `lane` gets a channel. `idle`: the lanes whose channels are free. `room`: how many more may be opened.
    pub(crate) fn way(
        &self,
        lane: usize,
        ticket: Option<u64>,
        idle: &[usize],
        room: usize,
    ) -> ChannelGrant {
        let place = |ticket| self.waiting.iter().position(|waits| *waits == ticket);
        let ahead = ticket.and_then(place).unwrap_or(self.waiting.len());
        let (is_mine, first) = (idle.contains(&lane), idle.first().copied());
        match first {
            _ if ahead >= idle.len() + room => ChannelGrant::Wait,
            Some(_) if is_mine => ChannelGrant::Take(lane),
            _ if room > 0 => ChannelGrant::Open,
            Some(_) if mutants::has(Mutant::KeepsItsChannel) => ChannelGrant::Wait,
            Some(other) => ChannelGrant::Take(other),
            None => ChannelGrant::Wait,
        }
    }

    /// Takes the last place among those that wait.
    pub(crate) fn join(&mut self) -> u64 {
        self.tickets += 1;
        self.waiting.push_back(self.tickets);
        self.tickets
    }

    pub(crate) fn leave(&mut self, ticket: u64) {
        self.waiting.retain(|waits| *waits != ticket);
    }
}

/// The most channels for lanes, on a connection with so many. One is left for the question whether the broker lives.
pub(crate) fn most_channels(of_connection: usize) -> usize {
    of_connection.saturating_sub(1).max(1)
}

#[derive(Default)]
struct State {
    queue: Queue,
    /// By the lane that used each last.
    idle: BTreeMap<usize, OpenChannel>,
    /// The connection that the channels belong to, with one more reference to `open` for each channel on it, and one to both for each that is
    /// being opened.
    connection: Weak<Connection>,
    open: Arc<()>,
    opening: Arc<()>,
    /// The most channels that the broker allowed before it closed a connection, and when.
    learned: Option<(usize, Instant)>,
}

impl State {
    fn is_of(&self, connection: &Arc<Connection>) -> bool {
        std::ptr::eq(self.connection.as_ptr(), Arc::as_ptr(connection))
    }

    /// The most channels for lanes.
    fn most(&self, connection: &Connection) -> usize {
        let allowed = most_channels(connection.channels());
        let learned = self
            .learned
            .filter(|(_, when)| when.elapsed() < BELIEVED)
            .map_or(usize::MAX, |(most, _)| most);
        allowed.min(learned)
    }

    fn taken(&self) -> usize {
        Arc::strong_count(&self.open) - 1
    }
}

/// The channels of the lanes.
#[derive(Default)]
pub(super) struct ChannelPool {
    state: Mutex<State>,
    returned: Notify,
}

/// How a lane gets a channel.
pub(super) enum AcquiredChannel {
    Channel(OpenChannel),
    /// It may open one.
    MayOpen(OpeningPermit),
    /// All are in use.
    Wait,
}

/// Leave to open a channel. Until it is dropped, it counts as one.
pub(super) struct OpeningPermit {
    _opening: Arc<()>,
    open: Arc<()>,
}

impl OpeningPermit {
    pub(super) fn done(self, channel: OpenChannel) -> OpenChannel {
        channel.counted(self.open)
    }
}

/// A place among those that wait.
pub(super) struct WaitTicket<'a> {
    channels: &'a ChannelPool,
    ticket: u64,
}

impl Drop for WaitTicket<'_> {
    fn drop(&mut self) {
        let ticket = self.ticket;
        self.channels.state().queue.leave(ticket);
        // It may have been woken for a channel that it no longer wants.
        self.channels.returned.notify_waiters();
    }
}

impl ChannelPool {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a channel for its lane until another one needs it.
    pub(super) fn keep(&self, lane: usize, channel: OpenChannel) {
        let mut state = self.state();
        let before = state.idle.insert(lane, channel);
        let somebody_waits = !state.queue.waiting.is_empty();
        drop(state);
        drop(before);
        if somebody_waits {
            self.returned.notify_waiters();
        }
    }

    /// A channel for `lane`. `is_full`: whether the connection just had no number for another one.
    pub(super) fn get(
        &self,
        lane: usize,
        turn: Option<&WaitTicket<'_>>,
        connection: &Arc<Connection>,
        is_full: bool,
    ) -> AcquiredChannel {
        let mut gone = Vec::new();
        let mut state = self.state();
        if !state.is_of(connection) {
            gone.extend(std::mem::take(&mut state.idle).into_values());
            state.connection = Arc::downgrade(connection);
            (state.open, state.opening) = (Arc::default(), Arc::default());
        }
        let idle = state.idle.iter();
        let closed: Vec<usize> = idle
            .filter(|(_, channel)| !channel.is_open())
            .map(|(lane, _)| *lane)
            .collect();
        gone.extend(closed.iter().filter_map(|lane| state.idle.remove(lane)));
        let room = match is_full {
            true => 0,
            false => state.most(connection).saturating_sub(state.taken()),
        };
        let idle: Vec<_> = state.idle.keys().copied().collect();
        let ticket = turn.map(|turn| turn.ticket);
        let got = match state.queue.way(lane, ticket, &idle, room) {
            ChannelGrant::Take(whose) => state
                .idle
                .remove(&whose)
                .map_or(AcquiredChannel::Wait, AcquiredChannel::Channel),
            ChannelGrant::Open => AcquiredChannel::MayOpen(OpeningPermit {
                _opening: Arc::clone(&state.opening),
                open: Arc::clone(&state.open),
            }),
            ChannelGrant::Wait => AcquiredChannel::Wait,
        };
        drop(state);
        drop(gone);
        got
    }

    /// Takes a place among those that wait.
    pub(super) fn turn(&self) -> WaitTicket<'_> {
        let ticket = self.state().queue.join();
        WaitTicket {
            channels: self,
            ticket,
        }
    }

    /// Waits until there may be a channel.
    pub(super) async fn returned(&self) {
        let _ = timeout(LOOK, self.returned.notified()).await;
    }

    /// The broker closed the connection because of a channel too many, which only counts with those of other connections.
    pub(super) fn were_too_many(&self, connection: &Arc<Connection>) {
        let mut state = self.state();
        if !state.is_of(connection) {
            return;
        }
        let most = Arc::strong_count(&state.open).saturating_sub(Arc::strong_count(&state.opening));
        // One is left for whoever checks queues: a consumer cannot start again without it.
        let most = most.saturating_sub(1).max(1);
        // Another lane may report the same loss, when the channels are closed already.
        state.connection = Weak::new();
        let is_news = state.learned.is_none_or(|(known, _)| known != most);
        state.learned = Some((most, Instant::now()));
        drop(state);
        if is_news {
            warn!(
                channels = most,
                "the broker allows this user no more channels: what is published shares those that there are; raise the limit (`max-channels`)"
            );
        }
    }

    /// The error of who has waited for too long.
    pub(super) fn all_in_use(&self, connection: &Connection) -> Error {
        let most = self.state().most(connection);
        Error::new(
            ErrorKind::Timeout,
            format!(
                "no channel to publish on became free within {} s: the broker allows {most} (`channel_max`, or the user's `max-channels`), and \
                 what was published on them is not confirmed; raise the limit",
                TURN.as_secs()
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lane_has_its_own_channel_while_there_is_room() {
        let queue = Queue::default();
        assert_eq!(queue.way(3, None, &[], 1), ChannelGrant::Open);
        assert_eq!(queue.way(3, None, &[1, 2], 1), ChannelGrant::Open);
        assert_eq!(queue.way(2, None, &[1, 2], 1), ChannelGrant::Take(2));
    }

    #[test]
    fn without_room_a_lane_takes_an_idle_channel_or_waits() {
        let queue = Queue::default();
        assert_eq!(queue.way(2, None, &[1, 2], 0), ChannelGrant::Take(2));
        assert_eq!(queue.way(3, None, &[1, 2], 0), ChannelGrant::Take(1));
        assert_eq!(queue.way(3, None, &[], 0), ChannelGrant::Wait);
    }

    #[test]
    fn nobody_overtakes_one_that_waits() {
        let queue = Queue {
            waiting: [5, 6].into(),
            tickets: 6,
        };
        for (ticket, idle, room, way) in [
            (None, &[1, 2][..], 0, ChannelGrant::Wait),
            (None, &[1, 2, 3], 0, ChannelGrant::Take(1)),
            (Some(5), &[1], 0, ChannelGrant::Take(1)),
            (Some(6), &[1], 0, ChannelGrant::Wait),
            (Some(6), &[1], 1, ChannelGrant::Take(1)),
            (Some(6), &[2], 1, ChannelGrant::Open),
            (Some(6), &[1, 2], 0, ChannelGrant::Take(1)),
            (Some(5), &[], 1, ChannelGrant::Open),
        ] {
            let case = format!("{ticket:?}, {idle:?}, {room}");
            assert_eq!(queue.way(1, ticket, idle, room), way, "{case}");
        }
    }
}
