//! Single cases, played to an engine event by event.

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

#[test]
fn the_end_nacks_what_waits_for_its_copy() {
    let mut case = Case::new();
    case.comes_again(1);
    let token = case.handed_out()[0];
    case.fails(token);
    assert_eq!(publishes(&case.take()), 1);
    case.on(Input::Close);
    case.consume();
    let until = case.engine.ends_at().unwrap();
    case.after(until);
    assert!(
        case.engine.is_finished(case.now()),
        "the drain timeout is for copies as well"
    );
    case.take();
    case.engine.requeue_remaining(&mut case.commands);
    let returned = case.take();
    assert!(
        matches!(
            returned[..],
            [Command::Return {
                tag: 1,
                how: Return::Unstarted,
                ..
            }]
        ),
        "{returned:?}"
    );
    assert_eq!(case.engine.outstanding(), 0);
}

#[test]
fn a_short_drain_still_waits_for_copies_on_their_way() {
    let short = Duration::from_secs(1);
    let mut case = Case::of(Consumer::new("orders").dlx(true).drain_timeout(short));
    case.comes_again(1);
    let token = case.handed_out()[0];
    case.fails(token);
    case.take();
    case.on(Input::Close);
    case.consume();
    case.after(short);
    assert!(!case.engine.is_finished(case.now()));
    case.after(COPIES - short);
    assert!(case.engine.is_finished(case.now()));
}

#[test]
fn a_detour_of_a_lost_channel_holds_others_up_for_a_moment_only() {
    let mut case = Case::new();
    case.comes_again(0);
    assert_eq!(publishes(&case.take()), 1, "its detour");
    let session = case.session;
    case.on(Input::Lost { session, why: None });
    case.take();
    case.open();
    // Its copy is not confirmed: the broker has an alarm, and does not read from publishers.
    case.comes_again(1);
    assert_eq!(case.handed_out(), [], "while the detour is on its way");
    case.after(Duration::from_secs(6));
    assert_eq!(case.handed_out().len(), 1);
}

#[test]
fn a_suspect_runs_when_the_broker_has_read_what_was_settled_before() {
    let mut case = Case::new();
    case.comes_again(1);
    let token = case.handed_out()[0];
    case.comes_again(3);
    assert_eq!(case.handed_out(), [], "another one runs");
    case.consume();
    case.consume();
    case.take();
    let ending = HandlerEnd::Settled(Outcome::Ack);
    case.on(Input::Ended { token, ending });
    let commands = &case.commands.list;
    assert!(
        matches!(
            commands[..],
            [Command::Ack { tag: 1, .. }, Command::Sync { .. }]
        ),
        "{commands:?}"
    );
    assert!(case.commands.deliveries.is_empty(), "before it is read");
    assert_eq!(case.handed_out().len(), 1);
}

#[test]
fn what_was_settled_after_the_broker_was_asked_is_asked_for_again() {
    let mut case = Case::new();
    case.comes_again(3);
    case.comes_again(0);
    let token = copy_of(&case.commands.list).unwrap();
    let is_sync = |command: &mut Command| matches!(command, Command::Sync { .. });
    let asked: Vec<_> = case.commands.list.extract_if(.., is_sync).collect();
    let stored = Ok(None);
    case.on(Input::Copied { token, stored });
    for sync in asked {
        if let Command::Sync { session, number } = sync {
            case.on(Input::Synced { session, number });
        }
    }
    assert!(
        case.commands.deliveries.is_empty(),
        "the original of the detour may come again beside its copy"
    );
    assert_eq!(case.handed_out().len(), 1);
}

#[test]
fn a_broker_that_does_not_answer_holds_no_suspect_up() {
    let mut case = Case::new();
    case.comes_again(3);
    assert!(case.commands.deliveries.is_empty());
    case.after(Duration::from_secs(6));
    assert_eq!(case.commands.deliveries.len(), 1);
    assert_eq!(case.handed_out().len(), 1, "no second time with the answer");
}

#[test]
fn a_loss_is_told_once_however_many_channels_it_takes_to_be_back() {
    let mut case = Case::new();
    let mut told = Vec::new();
    for _ in 0..2 {
        for _ in 0..3 {
            case.session += 1;
            let session = case.session;
            let (session, why) = (session - 1, None);
            case.on(Input::Lost { session, why });
            told.extend(case.events());
            case.on(Input::Opened {
                session: session + 1,
            });
        }
        case.consume();
        told.extend(case.events());
    }
    assert_eq!(
        told,
        ["disconnected", "reconnected", "disconnected", "reconnected"]
    );
}

#[test]
fn a_handler_that_hangs_holds_no_suspect_up() {
    let mut case = Case::new();
    case.comes_again(1);
    assert_eq!(case.handed_out().len(), 1, "it never ends");
    case.comes_again(3);
    case.consume();
    case.consume();
    case.after(Duration::from_secs(6));
    assert_eq!(case.handed_out().len(), 1);
}

#[test]
fn a_copy_runs_when_the_broker_has_read_that_its_original_is_gone() {
    let mut case = Case::new();
    case.comes_again(0);
    let detour = copy_of(&case.take());
    case.comes_again(1);
    assert_eq!(case.handed_out(), [], "its original is not settled yet");
    let token = detour.unwrap();
    let stored = Ok(None);
    case.on(Input::Copied { token, stored });
    assert!(case.commands.deliveries.is_empty(), "before that is read");
    assert_eq!(case.handed_out().len(), 1);
}

#[test]
fn what_began_before_a_pause_is_no_probe() {
    let mut case = Case::circuit_breaker(2, 10);
    for _ in 0..3 {
        case.comes_again(1);
    }
    let tokens = case.handed_out();
    for token in [tokens[0], tokens[1]] {
        case.fails(token);
    }
    assert!(case.engine.circuit_breaker.is_pausing());
    case.after(Duration::from_secs(11));
    case.consume();
    case.fails(tokens[2]);
    assert!(
        case.engine.circuit_breaker.is_probing(),
        "it says nothing of now"
    );
    case.consume();
    case.comes_again(1);
    let token = case.handed_out()[0];
    let ending = HandlerEnd::Settled(Outcome::Ack);
    case.on(Input::Ended { token, ending });
    assert!(case.engine.circuit_breaker.is_off());
}

#[test]
fn a_row_of_detours_holds_no_suspect_up() {
    let mut case = Case::new();
    case.comes_again(3);
    for _ in 0..12 {
        // The next one arrives before the broker has answered, and its copy is stored soon.
        case.comes_again(0);
        let is_publish = |command: &mut Command| matches!(command, Command::Publish { .. });
        let detours: Vec<_> = case.commands.list.extract_if(.., is_publish).collect();
        if !case.handed_out().is_empty() {
            return;
        }
        for detour in detours {
            if let Command::Publish { token, .. } = detour {
                let stored = Ok(None);
                case.on(Input::Copied { token, stored });
            }
        }
        case.after(Duration::from_secs(1));
    }
    panic!("it waits for ever");
}

#[test]
fn what_is_kept_back_while_a_consumer_is_replaced_is_not_taken_for_read() {
    let mut case = Case::new();
    case.comes_again(1);
    assert_eq!(case.handed_out().len(), 1, "others may come");
    case.consume();
    case.comes_again(0);
    let detour = copy_of(&case.take());
    case.comes_again(3);
    let asked = |command: &Command| matches!(command, Command::Consume { prefetch: 1, .. });
    assert!(
        case.take().iter().any(asked),
        "the narrow one, which never comes"
    );
    let (token, stored) = (detour.unwrap(), Ok(None));
    case.on(Input::Copied { token, stored });
    case.after(Duration::from_secs(6));
    assert_eq!(
        case.handed_out().len(),
        1,
        "it is not waited for any longer"
    );
    let acked = |command: &Command| matches!(command, Command::Ack { .. });
    assert!(!case.commands.list.iter().any(acked));
    assert!(!case.engine.syncs.are_done());
}

#[test]
fn what_is_to_go_back_whole_is_nacked_whatever_it_has_behind_it() {
    for whole in [true, false] {
        let mut case = Case::of(Consumer::new("retryrmq.handover").requeue_unchanged(whole));
        case.comes_again(2);
        let token = case.handed_out()[0];
        case.consume();
        case.on(Input::Close);
        case.consume();
        let ending = HandlerEnd::Unstarted;
        case.on(Input::Ended { token, ending });
        let commands = case.take();
        assert_eq!(publishes(&commands), usize::from(!whole), "{commands:?}");
        let nacked = |command: &Command| {
            let how = Return::Unstarted;
            matches!(command, Command::Return { tag: 1, how: back, .. } if *back == how)
        };
        assert_eq!(commands.iter().any(nacked), whole, "{commands:?}");
    }
}

/// A message that is rejected by its handler, and whose copy is not confirmed as long as an alarm lasts.
fn fails_in_an_alarm(case: &mut Case) -> usize {
    case.comes_again(1);
    let tokens = case.handed_out();
    for &token in &tokens {
        case.fails(token);
    }
    case.consume();
    case.after(Duration::from_secs(6));
    case.consume();
    tokens.len()
}

#[test]
fn what_an_earlier_channel_left_behind_takes_no_places_on_the_next_one() {
    let mut case = Case::of(Consumer::new("orders").dlx(true).prefetch(2));
    for _ in 0..3 {
        for _ in 0..40 {
            assert_eq!(fails_in_an_alarm(&mut case), 1);
            assert!(case.engine.slots_taken <= 40);
        }
        // The `consumer_timeout` is over.
        let session = case.session;
        case.on(Input::Lost { session, why: None });
        case.take();
        case.open();
    }
    assert_eq!(case.engine.slots_taken, 0);
}

#[test]
fn a_copy_that_a_crash_bound_keeps_goes_back_in_a_long_pause() {
    let mut case = Case::circuit_breaker(1, 3600);
    case.comes_again(1);
    let running = case.handed_out()[0];
    case.consume();
    case.comes_again(0);
    case.comes_again(1);
    assert_eq!(case.handed_out(), [], "a detour is on its way");
    case.fails(running);
    assert!(case.engine.circuit_breaker.is_pausing());
    for _ in 0..3 {
        case.consume();
    }
    assert!(case.engine.prefetch_control.is_narrow());
    case.after(LONGEST_KEPT + Duration::from_secs(1));
    let commands = case.take();
    let goes_back = |command: &Command| matches!(command, Command::Return { tag: 3, .. });
    assert!(commands.iter().any(goes_back), "{commands:?}");
}

#[test]
fn a_suspect_does_not_run_in_a_pause() {
    let mut case = Case::circuit_breaker(1, 60);
    case.comes_again(1);
    let token = case.handed_out()[0];
    case.consume();
    case.comes_again(3);
    case.consume();
    assert_eq!(case.handed_out(), [], "the other one runs still");
    case.fails(token);
    assert!(case.engine.circuit_breaker.is_pausing());
    case.consume();
    case.after(Duration::from_secs(20));
    assert_eq!(case.handed_out(), [], "nothing begins in a pause");
    case.after(Duration::from_secs(60));
    case.consume();
    assert_eq!(case.handed_out().len(), 1);
}

#[test]
fn in_a_pause_a_message_begins_anew_before_its_queue_has_counted_too_much() {
    let mut case = Case::circuit_breaker(1, 60);
    case.comes_again(1);
    let token = case.handed_out()[0];
    case.fails(token);
    assert!(case.engine.circuit_breaker.is_pausing());
    case.take();
    for count in [2, 3] {
        case.comes("x-delivery-count", count, true);
        let detours = publishes(&case.take());
        assert_eq!(detours, usize::from(count == 3), "{count}");
    }
}

#[test]
fn a_copy_that_an_alarm_holds_up_for_long_is_withdrawn_with_its_channel() {
    for (minutes, withdrawn) in [(1, 0), (11, 1)] {
        let mut case = Case::of(Consumer::new("orders").dlx(true));
        fails_in_an_alarm(&mut case);
        case.after(Duration::from_secs(60 * minutes));
        case.take();
        let session = case.session;
        case.on(Input::Lost { session, why: None });
        let commands = case.take();
        let withdraws = |command: &&Command| matches!(command, Command::Withdraw { .. });
        let count = commands.iter().filter(withdraws).count();
        assert_eq!(count, withdrawn, "after {minutes} min: {commands:?}");
    }
}

#[test]
fn what_ran_for_long_does_not_run_again_because_its_copy_failed_once() {
    let mut case = Case::new();
    case.comes_again(1);
    let token = case.handed_out()[0];
    case.after(LONGEST_KEPT + Duration::from_secs(1));
    case.fails(token);
    assert_eq!(publishes(&case.take()), 1);
    for tries in 1..5 {
        let why = "there is no such queue, and the next try makes it again";
        let stored = Err(crate::Error::new(crate::ErrorKind::Unroutable, why));
        case.on(Input::Copied { token, stored });
        case.after(Duration::from_secs(5));
        let commands = case.take();
        assert_eq!(publishes(&commands), usize::from(tries < 4), "{commands:?}");
    }
    assert_eq!(
        case.engine.outstanding(),
        0,
        "the broker's patience has an end"
    );
}

#[test]
fn a_copy_is_withdrawn_however_often_channels_are_lost_in_an_alarm() {
    let mut case = Case::of(Consumer::new("orders").dlx(true));
    let (mut copies, mut withdrawn) = (0, std::collections::HashSet::new());
    for _ in 0..5 {
        copies += fails_in_an_alarm(&mut case);
        case.after(Duration::from_secs(60 * 8));
        let session = case.session;
        case.on(Input::Lost { session, why: None });
        withdrawn.extend(case.take().into_iter().filter_map(|command| match command {
            Command::Withdraw { token } => Some(token),
            _ => None,
        }));
        assert!(
            copies - withdrawn.len() < 2,
            "{copies} copies, {withdrawn:?}"
        );
        case.open();
    }
    assert_eq!(copies, 5);
}

#[test]
fn what_was_put_down_for_a_message_that_runs_by_now_takes_it_from_nobody() {
    let mut case = Case::new();
    case.comes_again(0);
    let detour = copy_of(&case.take());
    case.comes_again(1);
    assert_eq!(case.handed_out(), [], "a detour is on its way");
    let (token, stored) = (detour.unwrap(), Ok(None));
    case.on(Input::Copied { token, stored });
    let running = case.handed_out();
    assert_eq!(running.len(), 1);
    let session = case.session;
    case.on(Input::Lost { session, why: None });
    case.open();
    case.after(LONGEST_KEPT + Duration::from_secs(1));
    assert!(case.engine.is_handed_out(running[0]), "its handler runs");
    case.on(Input::Close);
    case.consume();
    assert!(!case.engine.is_finished(case.now()), "and is waited for");
}

#[test]
fn what_is_held_for_long_is_put_down_once() {
    let mut case = Case::new();
    case.comes_again(0);
    case.comes_again(1);
    let before = case.engine.timers.len();
    for _ in 0..100 {
        case.after(Duration::from_millis(10));
    }
    assert_eq!(case.handed_out(), [], "a detour is on its way");
    assert_eq!(case.engine.timers.len(), before);
}

#[test]
fn nothing_is_rejected_into_a_queue_that_may_be_young() {
    let options = Consumer::new("orders")
        .dlx(true)
        .strategy(crate::Strategy::DeadLetter)
        .retry("fixed(1m)".parse().unwrap());
    let mut case = Case::of(options);
    for lose in [true, false] {
        let session = case.session;
        case.comes_again(1);
        let token = case.handed_out()[0];
        case.after(Duration::from_millis(1_500));
        case.fails(token);
        if lose {
            case.on(Input::Lost { session, why: None });
            case.take();
            case.open();
            continue;
        }
        case.on(Input::Close);
        case.consume();
        case.consume();
        assert_eq!(
            case.engine.outstanding(),
            1,
            "the end waits for the moment, too"
        );
        case.after(Duration::from_secs(1));
        let rejected = case.take();
        assert!(
            matches!(
                rejected[..],
                [
                    ..,
                    Command::Return {
                        how: Return::DeadLetter,
                        ..
                    }
                ]
            ),
            "{rejected:?}"
        );
        assert!(case.engine.is_finished(case.now()));
    }
}

#[test]
fn a_copy_that_may_have_gone_with_its_young_queue_keeps_no_message_from_running() {
    for (is_young, runs_again) in [(true, 1), (false, 0)] {
        let mut case = Case::new();
        case.comes_as(Some("m1"), "x-acquired-count", 1, false);
        let token = case.handed_out()[0];
        case.fails(token);
        let age = Duration::from_secs(2);
        let stored = Ok(is_young.then_some(case.at + age));
        case.on(Input::Copied { token, stored });
        case.after(age);
        assert_eq!(case.engine.outstanding(), 0, "its original is acknowledged");
        // The broker has died before, without a word, and has not read that.
        let session = case.session;
        case.on(Input::Lost { session, why: None });
        case.take();
        case.open();
        case.comes_as(Some("m1"), "x-acquired-count", 2, true);
        assert_eq!(case.handed_out().len(), runs_again, "young: {is_young}");
    }
}

#[test]
fn a_success_counts_for_the_delivery_by_which_its_message_came_again() {
    let mut case = Case::new();
    case.comes_as(Some("m1"), "x-acquired-count", 1, false);
    let early = case.handed_out()[0];
    case.after(Duration::from_secs(60 * 30));
    // The `consumer_timeout` is over.
    let session = case.session;
    case.on(Input::Lost { session, why: None });
    case.take();
    case.open();
    case.comes_as(Some("m1"), "x-acquired-count", 2, true);
    let late = case.handed_out()[0];
    let handled = |token| Input::Ended {
        token,
        ending: HandlerEnd::Settled(Outcome::Ack),
    };
    case.consume();
    case.on(handled(early));
    assert_eq!(case.events(), ["already_handled"]);
    let commands = case.take();
    let skips = |command: &Command| matches!(command, Command::Skip { token } if *token == late);
    assert!(commands.iter().any(skips), "{commands:?}");
    assert_eq!(case.engine.outstanding(), 0, "it need not run once more");
    case.after(Duration::from_secs(1));
    let acknowledged = case.take();
    assert!(
        matches!(acknowledged[..], [.., Command::Ack { tag: 1, .. }]),
        "{acknowledged:?}"
    );
    case.on(handled(late));
    assert_eq!(case.engine.outstanding(), 0);
}

/// A message is handled, and comes again after the channel was lost. It is done by `id`: none, or its own.
fn done_while_an_earlier_handler_has_it(id: Option<&str>) -> (Case, Token) {
    let mut case = Case::new();
    case.comes_as(id, "x-acquired-count", 1, false);
    let early = case.handed_out()[0];
    let session = case.session;
    case.on(Input::Lost { session, why: None });
    case.take();
    case.open();
    case.comes_as(id, "x-acquired-count", 2, true);
    let late = case.handed_out()[0];
    case.on(succeeded(late));
    case.consume();
    assert_eq!(case.engine.outstanding(), 1, "the earlier handler runs");
    (case, early)
}

fn succeeded(token: Token) -> Input {
    Input::Ended {
        token,
        ending: HandlerEnd::Settled(Outcome::Ack),
    }
}

#[test]
fn a_late_success_settles_no_message_that_is_only_like_its_own() {
    for id in [None, Some("m1")] {
        // The other one is here when the earlier handler succeeds, or comes afterwards.
        for is_here in [true, false] {
            let (mut case, early) = done_while_an_earlier_handler_has_it(id);
            let mut other = None;
            for is_now in [is_here, !is_here] {
                if is_now {
                    case.comes_as(id, "x-acquired-count", 2, true);
                    other = case.handed_out().first().copied();
                } else {
                    case.on(succeeded(early));
                }
            }
            assert!(case.events().is_empty(), "{id:?}, {is_here}");
            assert_eq!(case.engine.outstanding(), 1, "{id:?}, {is_here}: it runs");
            case.on(succeeded(other.expect("it runs")));
            assert_eq!(case.engine.outstanding(), 0);
        }
    }
}
