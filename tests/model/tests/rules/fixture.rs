//! A broker with one client, and few words for what it does.

use retryrmq_model::{
    Broker, ConnectionId, Consume, Declare, Delay, Delivery, Frame, Method, Nondeterminism,
    Profile, Publish, QueueType, UnknownOutcome, Version,
};
use std::time::Duration;

/// Confirms and settlements take this long; the rest is at once.
pub(crate) const SLOW: Duration = Duration::from_millis(10);

/// Everything that may be lost is lost.
#[derive(Debug)]
pub(crate) struct Unlucky;

impl Nondeterminism for Unlucky {
    fn delay(&mut self, what: Delay) -> Duration {
        match what {
            Delay::Confirm | Delay::Settle => SLOW,
            Delay::DeadLetter | Delay::Timer => Duration::ZERO,
        }
    }

    fn happens(&mut self, _: UnknownOutcome) -> bool {
        true
    }
}

pub(crate) struct Fixture {
    pub(crate) broker: Broker,
    pub(crate) client: ConnectionId,
}

impl Fixture {
    pub(crate) fn new(version: Version) -> Self {
        Fixture::with(Profile::new(version))
    }

    pub(crate) fn with(profile: Profile) -> Self {
        let mut broker = Broker::new(profile, Unlucky);
        let client = broker.connect().expect("it runs");
        let mut fixture = Fixture { broker, client };
        fixture.open();
        fixture
    }

    /// Opens channel 1 anew, on a new connection when need be.
    pub(crate) fn open(&mut self) {
        if !self.broker.is_open(self.client) {
            self.client = self.broker.connect().expect("it runs");
        }
        self.send(Method::OpenChannel);
        self.send(Method::SelectConfirms);
        self.frames();
    }

    pub(crate) fn send(&mut self, method: Method) {
        self.broker.send(self.client, 1, method);
    }

    pub(crate) fn frames(&mut self) -> Vec<Frame> {
        let client = self.client;
        std::iter::from_fn(|| self.broker.receive(client))
            .map(|(_, frame)| frame)
            .collect()
    }

    pub(crate) fn declare(&mut self, queue: &str, kind: QueueType) {
        self.declare_as(Declare::durable(queue, kind));
    }

    pub(crate) fn declare_as(&mut self, declare: Declare) {
        self.send(Method::Declare(Box::new(declare)));
        let frames = self.frames();
        assert!(matches!(frames[..], [Frame::Declared { .. }]), "{frames:?}");
    }

    /// Publishes and waits for the confirm.
    pub(crate) fn publish(&mut self, queue: &str, body: &str) {
        self.send(Method::Publish(Box::new(Publish::to_queue(
            queue,
            body.as_bytes(),
        ))));
        self.wait(SLOW);
        self.frames();
    }

    pub(crate) fn consume(&mut self, queue: &str, prefetch: u16) {
        self.send(Method::Qos { prefetch });
        self.send(Method::Consume(Consume::new(queue, "reader")));
    }

    pub(crate) fn wait(&mut self, time: Duration) {
        self.broker.advance(self.broker.now() + time);
    }

    pub(crate) fn ready(&self, queue: &str) -> usize {
        self.broker.queue_view(queue).expect("it exists").ready
    }

    /// The code with which the broker has closed the channel or the connection, if it has.
    pub(crate) fn refusal(&mut self) -> Option<u16> {
        self.frames().into_iter().find_map(|frame| match frame {
            Frame::CloseChannel(refusal) | Frame::CloseConnection(refusal) => Some(refusal.code),
            _ => None,
        })
    }

    pub(crate) fn deliveries(&mut self) -> Vec<Delivery> {
        let frames = self.frames().into_iter();
        frames
            .filter_map(|frame| match frame {
                Frame::Deliver(delivery) => Some(*delivery),
                _ => None,
            })
            .collect()
    }
}
