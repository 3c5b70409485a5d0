//! Bodies that take more room than `prefetch_bytes` allows.

use super::*;
use crate::Error;

/// A consumer that may hold this many bytes.
fn case(bytes: u64) -> Case {
    Case::of(Consumer::new("orders").dlx(true).prefetch_bytes(bytes))
}

impl Case {
    /// A message with a body of this size comes to the newest consumer.
    fn brings(&mut self, bytes: usize) {
        self.brings_as(None, bytes, false);
    }

    fn brings_as(&mut self, id: Option<&str>, bytes: usize, redelivered: bool) {
        let mut properties = BasicProperties::default();
        if let Some(id) = id {
            properties = properties.with_message_id(id.into());
        }
        let consumer = self.engine.prefetch_control.newest();
        self.tag += 1;
        let arrival = Box::new(IncomingDelivery {
            tag: self.tag,
            redelivered,
            properties,
            body: vec![b'x'; bytes],
            ..IncomingDelivery::default()
        });
        let session = self.session;
        self.on(Input::Delivered {
            session,
            consumer,
            arrival,
        });
    }

    fn succeeds(&mut self, token: Token) {
        let ending = HandlerEnd::Settled(Outcome::Ack);
        self.on(Input::Ended { token, ending });
    }

    /// The prefetches that were asked for since the last call; the broker answers.
    fn prefetches(&mut self) -> Vec<u16> {
        let asked = |command: &Command| match command {
            Command::Consume { prefetch, .. } => Some(*prefetch),
            _ => None,
        };
        let prefetches = self.commands.list.iter().filter_map(asked).collect();
        self.consume();
        prefetches
    }

    /// A wide consumer that has brought one message of a byte.
    fn widened(bytes: u64) -> Self {
        let mut case = case(bytes);
        case.brings(1);
        let first = case.handed_out()[0];
        assert_eq!(case.prefetches(), [64]);
        case.succeeds(first);
        case
    }
}

/// What went back to the queue.
fn returned(commands: &[Command]) -> Vec<u64> {
    let back = |command: &Command| match command {
        Command::Return {
            tag,
            how: Return::Unstarted,
            ..
        } => Some(*tag),
        _ => None,
    };
    commands.iter().filter_map(back).collect()
}

#[test]
fn the_first_message_tells_how_many_more_may_come() {
    let mut case = case(1_000);
    case.brings(240);
    assert_eq!(case.handed_out().len(), 1);
    assert_eq!(case.prefetches(), [3], "a place is left for the narrow one");
}

#[test]
fn what_does_not_fit_goes_back_without_its_body() {
    let mut case = Case::widened(1_000);
    for _ in 0..4 {
        case.brings(400);
    }
    let running = case.handed_out();
    assert_eq!(running.len(), 2);
    assert_eq!(case.engine.byte_budget.held(), 800);
    let back = returned(&case.commands.list);
    assert!(back.is_empty(), "they would come again at once");
    assert_eq!(case.prefetches(), [1]);
    case.consume();
    assert_eq!(returned(&case.take()), [4, 5]);
    case.brings(400);
    assert_eq!(case.handed_out(), [], "there is no room");
    case.succeeds(running[0]);
    assert_eq!(case.handed_out().len(), 1);
}

#[test]
fn when_there_is_room_again_as_many_come_as_fit() {
    let mut case = Case::widened(1_000);
    for _ in 0..4 {
        case.brings(240);
    }
    case.brings(241);
    let running = case.handed_out();
    assert_eq!(running.len(), 4);
    assert_eq!(case.prefetches(), [1]);
    case.consume();
    for (place, token) in running.into_iter().enumerate() {
        case.succeeds(token);
        assert_eq!(
            case.engine.byte_budget.is_exceeded(),
            place < 2,
            "{place} are done"
        );
    }
}

#[test]
fn a_message_larger_than_the_limit_runs_alone() {
    let mut case = case(1_000);
    case.brings(3_000);
    let large = case.handed_out();
    assert_eq!(large.len(), 1);
    case.after(Duration::from_secs(6));
    assert!(case.prefetches().is_empty(), "however long it takes");
    case.brings(1);
    assert_eq!(case.handed_out(), []);
    case.succeeds(large[0]);
    assert_eq!(case.handed_out().len(), 1);
}

#[test]
fn a_handler_that_takes_long_holds_nobody_up_while_bytes_are_free() {
    let mut case = case(1_000);
    case.brings(400);
    assert_eq!(case.handed_out().len(), 1);
    assert!(
        case.prefetches().is_empty(),
        "one more is all that may come"
    );
    case.after(Duration::from_secs(6));
    assert_eq!(case.prefetches(), [1]);
    case.brings(100);
    assert_eq!(case.handed_out().len(), 1);
}

#[test]
fn what_cannot_be_stored_holds_nobody_up() {
    let mut case = case(1_000);
    case.brings(3_000);
    let token = case.handed_out()[0];
    let ending = HandlerEnd::Settled(Outcome::Park {
        reason: crate::ParkReason::Requested,
        failure: Failure::new("no"),
    });
    case.on(Input::Ended { token, ending });
    let stored = Err(Error::new(ErrorKind::TooLarge, "too large"));
    case.on(Input::Copied { token, stored });
    assert_eq!(case.prefetches(), [1]);
    case.brings(900);
    assert_eq!(case.handed_out().len(), 1);
}

/// A message with a body of this size fails while nothing is stored, and its copy is held up.
fn fails_in_an_alarm(case: &mut Case, bytes: usize) -> bool {
    case.brings(bytes);
    case.fails_in_an_alarm() == 1
}

#[test]
fn what_an_alarm_holds_up_leaves_all_the_room_to_others_at_first() {
    let mut case = case(1_000);
    for large in 1..=4 {
        assert!(fails_in_an_alarm(&mut case, 600), "{large}");
    }
    for small in 0..100 {
        case.brings(100);
        let handed_out = case.handed_out();
        assert_eq!(handed_out.len(), 1, "{small}");
        case.succeeds(handed_out[0]);
        case.consume();
    }
}

#[test]
fn what_an_alarm_holds_up_takes_no_more_than_three_times_the_limit() {
    for bytes in [100, 500, 900, 3_000] {
        let mut case = case(1_000);
        let fail = (0..100).take_while(|_| fails_in_an_alarm(&mut case, bytes));
        assert!(fail.count() > 0);
        let most = 3 * 1_000_u64.max(bytes as u64) + bytes as u64;
        let held = case.engine.byte_budget.held();
        assert!(held <= most, "{held} bytes in messages of {bytes}");
        case.after(Duration::from_secs(60));
        assert!(case.prefetches().is_empty(), "{bytes}");
    }
}

#[test]
fn what_an_earlier_channel_left_behind_leaves_the_room_to_others() {
    let mut case = case(1_000);
    case.brings(900);
    let token = case.handed_out()[0];
    case.fails(token);
    let session = case.session;
    case.on(Input::Lost { session, why: None });
    case.take();
    case.open();
    case.after(Duration::from_secs(6));
    case.brings(900);
    assert_eq!(case.handed_out().len(), 1);
}

#[test]
fn what_is_deferred_without_waiting_queues_holds_nobody_up() {
    let mut case = Case::of(Consumer::new("orders").prefetch_bytes(1_000));
    let defers = |case: &mut Case, bytes| {
        case.brings(bytes);
        let handed_out = case.handed_out();
        for &token in &handed_out {
            let outcome = Outcome::defer(Duration::from_secs(15));
            let ending = HandlerEnd::Settled(outcome);
            case.on(Input::Ended { token, ending });
        }
        handed_out.len() == 1
    };
    assert!(defers(&mut case, 900));
    assert_eq!(case.prefetches(), [1], "its place is free");
    for _ in 0..3 {
        case.brings(200);
        let handed_out = case.handed_out();
        assert_eq!(handed_out.len(), 1);
        case.succeeds(handed_out[0]);
        case.consume();
    }
    for _ in 0..2 {
        assert!(defers(&mut case, 900));
        case.consume();
    }
    assert!(!defers(&mut case, 900), "they take too much");
    assert_eq!(case.engine.byte_budget.held(), 3_600);
    case.after(Duration::from_secs(15));
    assert_eq!(publishes(&case.take()), 3);
    assert_eq!(case.handed_out(), [], "their copies are not stored yet");
}

#[test]
fn what_had_to_go_back_is_not_taken_for_its_equal_that_is_done() {
    let mut case = Case::widened(1_000);
    case.brings_as(Some("m1"), 500, false);
    let equal = case.handed_out()[0];
    case.brings(600);
    assert_eq!(case.handed_out(), []);
    case.succeeds(equal);
    case.consume();
    case.brings(900);
    assert_eq!(case.handed_out().len(), 1);
    case.brings_as(Some("m1"), 500, false);
    assert_eq!(case.engine.byte_budget.held(), 900, "without its body");
    let session = case.session;
    case.on(Input::Lost { session, why: None });
    case.take();
    case.open();
    case.brings_as(Some("m1"), 500, true);
    assert!(!case.events().contains(&"already_handled"));
}

#[test]
fn a_drain_returns_what_waits_for_room() {
    let mut case = case(1_000);
    case.brings(900);
    let running = case.handed_out();
    case.brings(900);
    case.on(Input::Close);
    case.consume();
    assert_eq!(returned(&case.take()), [2]);
    case.succeeds(running[0]);
    assert!(case.engine.is_finished(case.now()));
}
