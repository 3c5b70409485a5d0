//! Single cases, played to an engine event by event.

mod byte_budget;
mod circuit_breaker;
mod copies;
mod crash_isolation;
mod drain;
mod redeliveries;

use std::time::Duration;

use super::*;
use crate::{
    BasicProperties, Consumer,
    retry::{Failure, Outcome},
    types::{AMQPValue, FieldTable},
};

struct Case {
    engine: Engine,
    commands: Commands,
    at: EngineTime,
    session: u64,
    tag: u64,
}

impl Case {
    fn new() -> Self {
        Self::of(Consumer::new("orders").dlx(true))
    }

    fn of(options: Consumer) -> Self {
        let setup = Setup {
            options,
            origin: Origin::default(),
            counters: Counters::default(),
            counting: Counting::Header,
            nack_is_uncounted: true,
            is_classic: false,
            queues_sleep: false,
            header_room: crate::connection::USUAL_HEADER_ROOM,
            seed: 1,
        };
        let mut case = Self {
            engine: Engine::new(setup),
            commands: Commands::default(),
            at: EngineTime::ZERO,
            session: 0,
            tag: 0,
        };
        case.open();
        case
    }

    /// A consumer that pauses when more than half of this many attempts have failed.
    fn circuit_breaker(window: usize, seconds: u64) -> Self {
        let pause = crate::Pause::default()
            .window(window)
            .pause(Duration::from_secs(seconds));
        Self::of(Consumer::new("orders").dlx(true).pause(pause))
    }

    /// A handler fails.
    fn fails(&mut self, token: Token) {
        let ending = HandlerEnd::Settled(Outcome::retry(Failure::new("no such customer")));
        self.on(Input::Ended { token, ending });
    }

    /// All messages that came fail while nothing is stored, and their copies are held up. Returns how many.
    fn fails_in_an_alarm(&mut self) -> usize {
        let tokens = self.handed_out();
        for &token in &tokens {
            self.fails(token);
        }
        self.consume();
        self.after(Duration::from_secs(6));
        self.consume();
        tokens.len()
    }

    fn on(&mut self, input: Input) {
        let now = self.now();
        self.engine.on(input, now, &mut self.commands);
        self.engine.turn(now, &mut self.commands);
    }

    fn now(&self) -> Now {
        Now {
            at: self.at,
            unix: 1_800_000_000,
        }
    }

    /// Time passes.
    fn after(&mut self, time: Duration) {
        self.at += time;
        let now = self.now();
        self.engine.turn(now, &mut self.commands);
    }

    /// The next channel is open, with a consumer on it.
    fn open(&mut self) {
        self.session += 1;
        let session = self.session;
        self.tag = 0;
        self.on(Input::Opened { session });
        self.consume();
    }

    /// The broker answers all requests about consumers.
    fn consume(&mut self) {
        let session = self.session;
        for command in self.take() {
            match command {
                Command::Consume { consumer, .. } => {
                    self.on(Input::Consuming { session, consumer })
                }
                Command::Cancel { consumer, .. } => self.on(Input::Cancelled { session, consumer }),
                _ => {}
            }
        }
    }

    /// A message comes again, with this number of crashes in our header.
    fn comes_again(&mut self, crashes: i64) {
        self.comes("x-retry-crashes", crashes, crashes == 0);
    }

    /// A message comes with this count.
    fn comes(&mut self, header: &str, count: i64, redelivered: bool) {
        self.comes_as(None, header, count, redelivered);
    }

    /// Like [`comes`](Self::comes), with a message id.
    fn comes_as(&mut self, id: Option<&str>, header: &str, count: i64, redelivered: bool) {
        let mut properties = BasicProperties::default();
        if let Some(id) = id {
            properties = properties.with_message_id(id.into());
        }
        let mut headers = FieldTable::default();
        headers.insert("x-retry-protocol".into(), AMQPValue::LongLongInt(1));
        headers.insert(header.into(), AMQPValue::LongLongInt(count));
        self.tag += 1;
        let arrival = Box::new(IncomingDelivery {
            tag: self.tag,
            redelivered,
            properties: properties.with_headers(headers),
            ..IncomingDelivery::default()
        });
        let (session, consumer) = (self.session, self.engine.prefetch_control.newest());
        self.on(Input::Delivered {
            session,
            consumer,
            arrival,
        });
    }

    fn take(&mut self) -> Vec<Command> {
        std::mem::take(&mut self.commands.list)
    }

    /// The names of the events since the last call.
    fn events(&mut self) -> Vec<&'static str> {
        let told = self
            .commands
            .list
            .extract_if(.., |command| matches!(command, Command::Tell(_)));
        let name = |command| match command {
            Command::Tell(event) => Some(event.name()),
            _ => None,
        };
        told.filter_map(name).collect()
    }

    /// The broker has read everything that was sent, if the engine asks.
    fn sync(&mut self) {
        let is_sync = |command: &mut Command| matches!(command, Command::Sync { .. });
        let syncs: Vec<_> = self.commands.list.extract_if(.., is_sync).collect();
        for sync in syncs {
            if let Command::Sync { session, number } = sync {
                self.on(Input::Synced { session, number });
            }
        }
    }

    /// The messages handed to handlers since the last call, after the broker has read everything that was sent.
    fn handed_out(&mut self) -> Vec<Token> {
        self.sync();
        let deliveries = self.commands.deliveries.drain(..);
        deliveries.map(|delivery| delivery.token).collect()
    }
}

/// The first message that is copied.
fn copy_of(commands: &[Command]) -> Option<Token> {
    commands.iter().find_map(|command| match command {
        Command::Publish { token, .. } => Some(*token),
        _ => None,
    })
}

fn publishes(commands: &[Command]) -> usize {
    let publish = |command: &&Command| matches!(command, Command::Publish { .. });
    commands.iter().filter(publish).count()
}
