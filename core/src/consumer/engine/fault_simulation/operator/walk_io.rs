//! The connection between an operator's walk and the world: two AMQP connections, and their results. The walk waits here; the world passes
//! one frame at a time, and lets the walk continue.

use std::{
    cell::RefCell,
    collections::{BTreeMap, VecDeque},
    future::poll_fn,
    rc::Rc,
    task::Poll,
    time::Duration,
};

use retryrmq_model::{Delivery, Frame, Method};

use super::super::replica::Side;

/// The walk was interrupted.
#[derive(Debug)]
pub(super) struct Interrupted;

/// What the ledger must record.
#[derive(Clone, Copy, Debug)]
pub(super) enum LedgerNote {
    /// The operator drops a message for good.
    Drops(u32),
    Replays(u32),
}

#[derive(Debug, Default)]
struct WalkIoState {
    now: Duration,
    /// With the channel; publishing has only one.
    walking: VecDeque<(u16, Method)>,
    /// The walk's current channel.
    channel: u16,
    publishing: VecDeque<Method>,
    deliveries: VecDeque<Delivery>,
    answers: VecDeque<Frame>,
    publishes: u64,
    confirms: BTreeMap<u64, bool>,
    /// The last publish before the next confirm was returned.
    came_back: bool,
    is_over: bool,
    wakes_at: Option<Duration>,
    told: Vec<LedgerNote>,
}

/// Shared between the walk and the world.
#[derive(Clone, Debug)]
pub(super) struct WalkIo(Rc<RefCell<WalkIoState>>);

impl WalkIo {
    pub(super) fn at(now: Duration) -> Self {
        let state = WalkIoState {
            now,
            channel: 1,
            ..WalkIoState::default()
        };
        let walk_io = Self(Rc::new(RefCell::new(state)));
        for method in [Method::OpenChannel, Method::SelectConfirms] {
            walk_io.write(Side::Publishing, method);
        }
        walk_io.write(Side::Consuming, Method::OpenChannel);
        walk_io
    }

    // Used by the world.

    pub(super) fn has_written(&self, side: Side) -> bool {
        let state = self.0.borrow();
        match side {
            Side::Consuming => !state.walking.is_empty(),
            Side::Publishing => !state.publishing.is_empty(),
        }
    }

    pub(super) fn take_written(&self, side: Side) -> Option<(u16, Method)> {
        let mut state = self.0.borrow_mut();
        match side {
            Side::Consuming => state.walking.pop_front(),
            Side::Publishing => state.publishing.pop_front().map(|method| (1, method)),
        }
    }

    pub(super) fn hears(&self, frame: Frame) {
        let mut state = self.0.borrow_mut();
        match frame {
            Frame::Deliver(delivery) => state.deliveries.push_back(*delivery),
            Frame::Return(_) => state.came_back = true,
            Frame::Confirm { publish, stored } => {
                let stored = stored && !std::mem::take(&mut state.came_back);
                state.confirms.insert(publish, stored);
            }
            Frame::Cancel { .. } | Frame::CloseChannel(_) | Frame::CloseConnection(_) => {
                state.is_over = true;
            }
            Frame::ConsumeOk { .. } | Frame::CancelOk { .. } | Frame::Declared { .. } => {
                state.answers.push_back(frame);
            }
            _ => {}
        }
    }

    pub(super) fn passes(&self, now: Duration) {
        self.0.borrow_mut().now = now;
    }

    pub(super) fn wakes_at(&self) -> Option<Duration> {
        self.0.borrow().wakes_at
    }

    pub(super) fn take_told(&self) -> Vec<LedgerNote> {
        std::mem::take(&mut self.0.borrow_mut().told)
    }

    // Used by the walk.

    pub(super) fn now(&self) -> Duration {
        self.0.borrow().now
    }

    pub(super) fn write(&self, side: Side, method: Method) {
        let mut state = self.0.borrow_mut();
        let channel = state.channel;
        match side {
            Side::Consuming => state.walking.push_back((channel, method)),
            Side::Publishing => state.publishing.push_back(method),
        }
    }

    /// Acknowledges a message of a channel, which may be an earlier one.
    pub(super) fn acknowledge(&self, channel: u16, tag: u64) {
        let method = Method::Ack {
            tag,
            multiple: false,
        };
        self.0.borrow_mut().walking.push_back((channel, method));
    }

    /// The walk continues on another channel.
    pub(super) fn part(&self) {
        self.0.borrow_mut().channel += 1;
        self.write(Side::Consuming, Method::OpenChannel);
    }

    /// Publishes, and returns the number of its confirm.
    pub(super) fn publish(&self, method: Method) -> u64 {
        self.write(Side::Publishing, method);
        let mut state = self.0.borrow_mut();
        state.publishes += 1;
        state.publishes
    }

    pub(super) fn record(&self, told: LedgerNote) {
        self.0.borrow_mut().told.push(told);
    }

    pub(super) async fn confirm(&self, publish: u64) -> Result<bool, Interrupted> {
        self.until(None, |state| state.confirms.remove(&publish))
            .await
            .map(|stored| stored.unwrap_or(false))
    }

    pub(super) async fn answer(&self) -> Result<Frame, Interrupted> {
        let answer = self.until(None, |state| state.answers.pop_front()).await?;
        answer.ok_or(Interrupted)
    }

    /// The next delivery; `None` if none came for this time.
    pub(super) async fn delivery(&self, quiet: Duration) -> Result<Option<Delivery>, Interrupted> {
        let end = self.now() + quiet;
        self.until(Some(end), |state| state.deliveries.pop_front())
            .await
    }

    pub(super) fn delivery_at_hand(&self) -> Option<Delivery> {
        self.0.borrow_mut().deliveries.pop_front()
    }

    async fn until<T>(
        &self,
        end: Option<Duration>,
        mut take: impl FnMut(&mut WalkIoState) -> Option<T>,
    ) -> Result<Option<T>, Interrupted> {
        poll_fn(|_| {
            let mut state = self.0.borrow_mut();
            state.wakes_at = None;
            if let Some(taken) = take(&mut state) {
                return Poll::Ready(Ok(Some(taken)));
            }
            if state.is_over {
                return Poll::Ready(Err(Interrupted));
            }
            if end.is_some_and(|end| end <= state.now) {
                return Poll::Ready(Ok(None));
            }
            state.wakes_at = end;
            Poll::Pending
        })
        .await
    }
}
