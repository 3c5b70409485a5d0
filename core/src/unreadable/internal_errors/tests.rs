use super::*;
use crate::unreadable::suspects::Suspects;

fn moved(count: usize) -> Result<Moved> {
    Ok(Moved {
        causes: vec!["why".to_owned(); count],
        ..Moved::default()
    })
}

/// A look that finds nothing, and a message for which connections ended again and again.
fn suspected() -> Result<Moved> {
    let mut suspects = Suspects::default();
    suspects.add(2);
    Ok(Moved {
        suspects,
        ..Moved::default()
    })
}

fn unseen() -> Result<Moved> {
    Err(Error::new(ErrorKind::AccessRefused, "no"))
}

const SUSPECT: SuspectQueue<'_> = SuspectQueue {
    queue: "orders",
    is_classic: false,
    is_free: false,
    prefetch: 10,
};

fn refused(kind: ErrorKind) -> Result<Moved> {
    Ok(Moved {
        refused: Some(Error::new(kind, "no")),
        ..Moved::default()
    })
}

fn hidden() -> Result<Moved> {
    Ok(Moved {
        ended_early: Some(Error::new(ErrorKind::Broker, "hidden")),
        ..Moved::default()
    })
}

fn consumes(internal_errors: &InternalErrors, scanned: Result<Moved>) -> bool {
    internal_errors.after(SUSPECT, scanned).is_ok()
}

fn lost(internal_errors: &mut InternalErrors, by_error: bool, lived: Duration, moves: u64) {
    let reasons = Reasons {
        moved: moves,
        stopped: 0,
    };
    internal_errors.lost(by_error, lived, reasons, OneByOneProgress::default());
}

const SHORT: Duration = Duration::from_secs(1);

#[test]
fn an_end_for_another_reason_is_no_suspicion() {
    let mut internal_errors = InternalErrors::default();
    lost(&mut internal_errors, false, SHORT, 0);
    assert!(!internal_errors.should_scan());
    lost(&mut internal_errors, true, SHORT, 0);
    assert!(internal_errors.should_scan());
    lost(&mut internal_errors, false, FORGIVEN, 0);
    assert!(!internal_errors.should_scan());
    lost(&mut internal_errors, true, FORGIVEN, 0);
    internal_errors.scanned(SUSPECT, moved(0)).unwrap();
    lost(&mut internal_errors, false, SHORT, 1);
    assert!(!internal_errors.should_scan());
    // What another consumer's queue caused counts against nobody whose own queue is in order.
    for moves in 1..100 {
        lost(&mut internal_errors, true, SHORT, moves);
        internal_errors.scanned(SUSPECT, moved(0)).unwrap();
    }
    for moves in 101..100 + u64::from(MOST_CLOSED) {
        assert!(internal_errors.scanned(SUSPECT, hidden()).is_ok());
        lost(&mut internal_errors, true, SHORT, moves);
    }
    assert!(internal_errors.scanned(SUSPECT, hidden()).is_err());
}

#[test]
fn it_waits_in_a_queue_that_a_look_found_empty() {
    let waits = |scanned, suspect| {
        let mut internal_errors = InternalErrors::default();
        lost(&mut internal_errors, true, SHORT, 0);
        internal_errors.scanned(suspect, scanned).unwrap();
        internal_errors.waits_in_queue(suspect)
    };
    let free = SuspectQueue {
        is_free: true,
        ..SUSPECT
    };
    let classic = SuspectQueue {
        is_classic: true,
        ..free
    };
    let innocent = || {
        let mut suspects = Suspects::default();
        suspects.add(0);
        Ok(Moved {
            suspects,
            ..Moved::default()
        })
    };
    for suspect in [SUSPECT, free] {
        assert!(waits(moved(0), suspect));
        // Others would come instead, and for some that would be another delivery.
        assert!(!waits(innocent(), suspect));
        assert!(!waits(suspected(), suspect));
    }
    // Nobody counts there.
    assert!(!waits(moved(0), classic));
}

#[test]
fn it_looks_farther_each_time_unless_a_look_is_free() {
    let mut internal_errors = InternalErrors::default();
    let mut scanned_queue = Vec::new();
    for _ in 0..3 {
        lost(&mut internal_errors, true, SHORT, 0);
        assert_eq!(internal_errors.scan_depth(10, true), FAR);
        scanned_queue.push(internal_errors.scan_depth(100, false));
    }
    assert_eq!(scanned_queue, [200, 800, 1_800]);
    assert_eq!(
        internal_errors.scan_depth(u16::MAX, true),
        2 * u32::from(u16::MAX)
    );
}

/// How often what closes the connections is delivered at most: lost connections, and looks that come to this, for ever. Whatever may make
/// a consumer look again happens all the time.
fn deliveries(kind: Option<ErrorKind>, scan: impl Fn() -> Result<Moved>) -> u32 {
    let mut internal_errors = InternalErrors::default();
    let mut deliveries = 0;
    'lost: loop {
        deliveries += 1;
        let is_hidden = internal_errors.tries().is_hidden;
        let one_by_one = OneByOneProgress {
            began: is_hidden,
            is_unfinished: is_hidden,
            has_taken: false,
        };
        internal_errors.lost(true, SHORT, Reasons::default(), one_by_one);
        for number in 1..1_000_u32 {
            let seen = Evidence {
                ready: Some(10_000 - number),
                aside: Some(number),
                refusal: kind
                    .filter(|_| internal_errors.is_refused() && number.is_multiple_of(2))
                    .map(|kind| Error::new(kind, "no")),
                is_explained: false,
            };
            match internal_errors.step(SUSPECT, seen) {
                Ok(Step::Consume) => continue 'lost,
                // One that ended early is followed by looks at single messages.
                Ok(Step::Look(ScanRange::Near(_))) if internal_errors.tries().number == 1 => {
                    deliveries += 1;
                    let scanned = scan();
                    let is_hidden = scanned
                        .as_ref()
                        .is_ok_and(|moved| moved.ended_early.is_some());
                    deliveries += if is_hidden { FEW } else { 0 };
                    if internal_errors.scanned(SUSPECT, scanned).is_ok() {
                        // It is read once more, and may not be among those that are tried.
                        deliveries += u32::from(internal_errors.next_trial(SUSPECT).is_some());
                        continue 'lost;
                    }
                }
                Ok(Step::Look(reach)) => {
                    deliveries += match reach {
                        ScanRange::Singly { blocked, .. } => blocked,
                        ScanRange::Near(_) => 1,
                    };
                    if internal_errors.scanned(SUSPECT, scan()).is_ok() {
                        continue 'lost;
                    }
                }
                Err(_) => {}
            }
        }
        return deliveries;
    }
}

#[test]
fn it_reads_a_queue_less_than_a_delivery_limit_allows() {
    let nothing = deliveries(None, suspected);
    let tries = MOST_TRIALS;
    assert_eq!(nothing, 2 * (MOST_CLOSED_WITHOUT_A_FIND + 1) + tries);
    assert!(nothing < 20);
    // One that is tried for nothing has the looks, three deliveries for each try, and the connections before messages are taken alone.
    let innocent = MOST_CLOSED_WITHOUT_A_FIND + 1 + 3 * tries + 2;
    assert!(innocent < 20, "{innocent}");
    let unseen = deliveries(None, unseen);
    assert!(unseen < 20, "{unseen}");
    // Three consumers of a queue stop in front of what they found.
    for kind in [
        ErrorKind::Broker,
        ErrorKind::AccessRefused,
        ErrorKind::Mismatch,
    ] {
        let refused = deliveries(Some(kind), || refused(kind));
        assert_eq!(refused, 1 + 1 + MOST_SHRUNK + MOST_CHANGED);
        // One more follows a look that does not see the message, which is no delivery of it.
        assert!(3 * (refused + MOST_MISSING) < 20);
    }
    // Where no look can pass, and the message is the only one that was returned.
    let hidden = deliveries(None, hidden);
    assert!(hidden <= 20, "{hidden}");
}

#[test]
fn single_messages_are_looked_at_farther_each_time_where_that_costs_nothing() {
    let free = SuspectQueue {
        is_free: true,
        ..SUSPECT
    };
    let mut internal_errors = InternalErrors::default();
    let mut before = 0;
    let mut goes_farther = |internal_errors: &InternalErrors| {
        let seen = Evidence {
            ready: Some(10_000),
            ..Evidence::default()
        };
        match internal_errors.step(free, seen) {
            Ok(Step::Look(ScanRange::Singly { in_order, .. })) => {
                assert!(in_order > before);
                before = in_order;
            }
            other => panic!("{other:?}"),
        }
    };
    lost(&mut internal_errors, true, SHORT, 0);
    internal_errors.scanned(free, hidden()).unwrap();
    for has_taken in [true, false, true, false, false, false, false] {
        let one_by_one = OneByOneProgress {
            began: true,
            is_unfinished: true,
            has_taken,
        };
        internal_errors.lost(true, SHORT, Reasons::default(), one_by_one);
        goes_farther(&internal_errors);
        let _ = internal_errors.scanned(free, moved(0));
    }
    // It has stopped.
    for _ in 1..MOST_LOOKS {
        goes_farther(&internal_errors);
        let _ = internal_errors.scanned(free, moved(0));
    }
    let seldom =
        (0..10 * SELDOM).filter(|_| internal_errors.step(free, Evidence::default()).is_ok());
    assert_eq!(seldom.count(), 10);
}

#[test]
fn it_waits_again_when_a_session_cannot_begin() {
    let long = Duration::from_secs(5);
    let mut internal_errors = InternalErrors::default();
    lost(&mut internal_errors, true, SHORT, 0);
    assert_eq!(internal_errors.pause(long), long);
    internal_errors.scanned(SUSPECT, moved(1)).unwrap();
    lost(&mut internal_errors, true, SHORT, 1);
    assert_eq!(internal_errors.pause(long), SHORTEST_PAUSE);
    internal_errors.failed();
    assert_eq!(internal_errors.pause(long), long);
}

#[test]
fn single_messages_that_were_handled_in_between_are_another_reason() {
    let mut internal_errors = InternalErrors::default();
    let one_by_one = |has_taken| OneByOneProgress {
        began: true,
        is_unfinished: true,
        has_taken,
    };
    lost(&mut internal_errors, true, SHORT, 0);
    let step = internal_errors.step(SUSPECT, Evidence::default()).unwrap();
    assert!(matches!(step, Step::Look(ScanRange::Near(_))));
    assert_eq!(internal_errors.scanned(SUSPECT, hidden()).unwrap(), NEAR);
    for _ in 0..MOST_CLOSED_AFTER_OTHERS {
        internal_errors.lost(true, SHORT, Reasons::default(), one_by_one(true));
        // What was sent along with others would count as delivered each time.
        let step = internal_errors.step(SUSPECT, Evidence::default()).unwrap();
        assert!(matches!(step, Step::Look(ScanRange::Singly { .. })));
        assert_eq!(internal_errors.scanned(SUSPECT, hidden()).unwrap(), NEAR);
    }
    for number in 2..=MOST_CLOSED {
        internal_errors.lost(true, SHORT, Reasons::default(), one_by_one(false));
        let scanned = internal_errors.scanned(SUSPECT, hidden());
        assert_eq!(scanned.is_ok(), number < MOST_CLOSED);
    }
    internal_errors.lost(true, SHORT, Reasons::default(), OneByOneProgress::default());
    let step = internal_errors.step(SUSPECT, Evidence::default()).unwrap();
    assert!(matches!(step, Step::Look(ScanRange::Near(_))));
}

#[test]
fn it_stops_before_a_delivery_limit_and_goes_on_when_something_was_moved() {
    let mut internal_errors = InternalErrors::default();
    for number in 1..=MOST_CLOSED {
        lost(&mut internal_errors, true, SHORT, 0);
        assert!(consumes(&internal_errors, moved(0)));
        assert_eq!(consumes(&internal_errors, unseen()), number < 2);
        assert!(!consumes(
            &internal_errors,
            refused(ErrorKind::AccessRefused)
        ));
        assert!(consumes(&internal_errors, moved(1)));
    }
    lost(&mut internal_errors, true, SHORT, 0);
    assert!(!consumes(&internal_errors, moved(0)));
    let error = internal_errors.after(SUSPECT, unseen()).err().unwrap();
    assert!(
        error
            .to_string()
            .contains("retryrmq unreadable take orders")
    );
}

fn found(stopped: u64) -> Reasons {
    Reasons { moved: 0, stopped }
}

#[test]
fn a_consumer_goes_on_when_the_message_is_in_the_queue_of_another_one_that_stopped() {
    let (mut innocent, mut guilty) = (InternalErrors::default(), InternalErrors::default());
    for number in 1..=MOST_CLOSED {
        for one in [&mut innocent, &mut guilty] {
            one.lost(true, SHORT, found(0), OneByOneProgress::default());
            one.step(SUSPECT, Evidence::default()).unwrap();
        }
        // From the second on, each may be the one that nothing is seen in.
        let alone = if number < 2 {
            0
        } else {
            near(SUSPECT.prefetch)
        };
        assert_eq!(innocent.scanned(SUSPECT, moved(0)).unwrap(), alone);
        let is_stopped = guilty.scanned(SUSPECT, hidden()).is_err();
        assert_eq!(is_stopped, number == MOST_CLOSED);
    }
    assert!(guilty.has_warning() && !guilty.has_warning());
    assert!(!guilty.is_explained(found(1)));
    assert!(innocent.is_explained(found(1)) && !innocent.is_explained(found(0)));
    // All connections that were lost before had this reason.
    innocent.lost(true, SHORT, found(1), OneByOneProgress::default());
    assert_eq!(innocent.closed, 1);
}

#[test]
fn a_consumer_that_stopped_goes_on_when_another_one_has_found_the_reason() {
    let mut internal_errors = InternalErrors::default();
    for number in 1..=MOST_CLOSED_WITHOUT_A_FIND {
        lost(&mut internal_errors, true, SHORT, 0);
        internal_errors.step(SUSPECT, Evidence::default()).unwrap();
        let is_stopped = internal_errors.scanned(SUSPECT, moved(0)).is_err();
        assert_eq!(is_stopped, number == MOST_CLOSED_WITHOUT_A_FIND);
    }
    assert!(!internal_errors.has_warning());
    let seen = |is_explained| Evidence {
        is_explained,
        ..Evidence::default()
    };
    assert!(internal_errors.step(SUSPECT, seen(false)).is_err());
    let step = internal_errors.step(SUSPECT, seen(true)).unwrap();
    assert!(matches!(step, Step::Consume));
    let reasons = [
        found(1),
        Reasons {
            moved: 1,
            ..found(0)
        },
    ];
    assert!(
        reasons
            .into_iter()
            .all(|one| internal_errors.is_explained(one))
    );
    assert!(!internal_errors.is_explained(found(0)));
}

#[test]
fn a_consumer_that_found_nothing_consumes_once_more_when_its_queue_is_shorter() {
    let mut internal_errors = InternalErrors::default();
    let ready = |ready| Evidence {
        ready: Some(ready),
        ..Evidence::default()
    };
    for _ in 0..MOST_CLOSED_WITHOUT_A_FIND {
        lost(&mut internal_errors, true, SHORT, 0);
        let _ = internal_errors.scanned(SUSPECT, moved(0));
    }
    for longer in [7, 7, 9] {
        assert!(internal_errors.step(SUSPECT, ready(longer)).is_err());
    }
    let step = internal_errors.step(SUSPECT, ready(8)).unwrap();
    assert!(matches!(step, Step::Consume));
    lost(&mut internal_errors, true, SHORT, 0);
    assert!(internal_errors.scanned(SUSPECT, moved(0)).is_err());
    assert!(internal_errors.step(SUSPECT, ready(7)).is_err());
    assert!(internal_errors.step(SUSPECT, ready(0)).is_err());
    // Somebody may have been looking at the message.
    let step = internal_errors.step(SUSPECT, ready(0)).unwrap();
    assert!(matches!(step, Step::Consume));
}

/// A consumer that stopped because it could not move what it found.
fn stopped(suspect: SuspectQueue<'_>, kind: ErrorKind) -> InternalErrors {
    let mut internal_errors = InternalErrors::default();
    lost(&mut internal_errors, true, SHORT, 0);
    internal_errors.step(suspect, Evidence::default()).unwrap();
    assert!(internal_errors.scanned(suspect, refused(kind)).is_err());
    internal_errors
}

fn seen(refusal: Option<ErrorKind>, ready: u32, aside: u32) -> Evidence {
    Evidence {
        ready: Some(ready),
        aside: Some(aside),
        refusal: refusal.map(|kind| Error::new(kind, "no")),
        is_explained: false,
    }
}

const FORBIDDEN: Option<ErrorKind> = Some(ErrorKind::AccessRefused);

#[test]
fn a_consumer_that_may_not_move_messages_reads_them_again_when_somebody_has_moved_some() {
    let internal_errors = stopped(SUSPECT, ErrorKind::AccessRefused);
    // Others publish meanwhile, and the count of what was moved may be unknown.
    for ready in 5..50 {
        let unknown = Evidence {
            aside: None,
            ..seen(FORBIDDEN, ready, 0)
        };
        assert!(internal_errors.step(SUSPECT, unknown).is_err());
        assert!(
            internal_errors
                .step(SUSPECT, seen(FORBIDDEN, ready, 0))
                .is_err()
        );
    }
    let step = internal_errors
        .step(SUSPECT, seen(FORBIDDEN, 60, 1))
        .unwrap();
    assert!(matches!(step, Step::Look(_)));
    // Another consumer may have held them.
    assert!(internal_errors.scanned(SUSPECT, moved(0)).is_err());
    let step = internal_errors
        .step(SUSPECT, seen(FORBIDDEN, 60, 1))
        .unwrap();
    assert!(matches!(step, Step::Look(_)));
    assert_eq!(internal_errors.scanned(SUSPECT, moved(0)).unwrap(), 0);
}

#[test]
fn another_reason_does_not_make_it_stop_for_those_before() {
    let mut internal_errors = InternalErrors::default();
    for _ in 0..MOST_CLOSED_WITHOUT_A_FIND {
        lost(&mut internal_errors, true, SHORT, 0);
        let _ = internal_errors.scanned(SUSPECT, moved(0));
    }
    lost(&mut internal_errors, false, SHORT, 0);
    let alone = near(SUSPECT.prefetch);
    assert_eq!(internal_errors.scanned(SUSPECT, moved(0)).unwrap(), alone);
}

#[test]
fn messages_are_tried_one_at_a_time_before_a_consumer_stops_that_sees_nothing() {
    let of = |is_classic, is_free| SuspectQueue {
        is_classic,
        is_free,
        ..SUSPECT
    };
    for (suspect, expected) in [
        (
            of(false, false),
            vec![(2, Trial::COSTLY), (3, Trial::COSTLY)],
        ),
        (
            of(false, true),
            (2..=5).map(|closed| (closed, Trial::FREE)).collect(),
        ),
        (of(true, true), Vec::new()),
    ] {
        let mut internal_errors = InternalErrors::default();
        let mut tries = Vec::new();
        for closed in 1..=MOST_CLOSED_WITHOUT_A_FIND {
            // Those before it were handled alone, and do not make up for the connection.
            let one_by_one = OneByOneProgress {
                began: closed > 2,
                is_unfinished: closed > 2,
                has_taken: closed > 2,
            };
            internal_errors.lost(true, SHORT, Reasons::default(), one_by_one);
            internal_errors.step(suspect, Evidence::default()).unwrap();
            let goes_on = internal_errors.scanned(suspect, suspected()).is_ok();
            assert_eq!(goes_on, closed < MOST_CLOSED_WITHOUT_A_FIND);
            if goes_on {
                let trial = internal_errors.next_trial(suspect);
                tries.extend(trial.map(|(_, trial)| (closed, trial)));
            }
        }
        assert_eq!(tries, expected);
    }
}

#[test]
fn nothing_is_tried_after_a_connection_that_was_lost_for_another_reason() {
    let mut internal_errors = InternalErrors::default();
    for _ in 0..=MOST_CLOSED_WITHOUT_A_FIND {
        lost(&mut internal_errors, true, SHORT, 0);
        let _ = internal_errors.scanned(SUSPECT, moved(0));
    }
    for _ in 0..5 {
        lost(&mut internal_errors, false, SHORT, 0);
        internal_errors.scanned(SUSPECT, moved(0)).unwrap();
        assert_eq!(internal_errors.next_trial(SUSPECT), None);
    }
}

/// With slow handlers it takes minutes until it is its turn again.
#[test]
fn a_connection_that_was_lost_after_many_slow_messages_counts_as_well() {
    let mut internal_errors = InternalErrors::default();
    let mut tried = 0;
    for closed in 1..=MOST_CLOSED {
        let one_by_one = OneByOneProgress {
            began: closed > 2,
            ..OneByOneProgress::default()
        };
        let lived = if closed > 2 { FORGIVEN } else { SHORT };
        internal_errors.lost(true, lived, Reasons::default(), one_by_one);
        internal_errors.scanned(SUSPECT, suspected()).unwrap();
        tried += usize::from(internal_errors.next_trial(SUSPECT).is_some());
    }
    assert_eq!(tried, MOST_TRIALS as usize);
    // It ends with a session that takes many at a time, and lives.
    lost(&mut internal_errors, true, FORGIVEN, 0);
    assert_eq!(internal_errors.closed, 1);
}

#[test]
fn messages_are_taken_alone_also_in_the_next_session_if_one_does_not_begin() {
    let mut internal_errors = InternalErrors::default();
    for _ in 0..2 {
        lost(&mut internal_errors, true, SHORT, 0);
        internal_errors.scanned(SUSPECT, moved(0)).unwrap();
    }
    let alone = near(SUSPECT.prefetch);
    assert_eq!(internal_errors.one_by_one(SUSPECT.prefetch), alone);
    internal_errors.failed();
    let step = internal_errors.step(SUSPECT, Evidence::default()).unwrap();
    assert!(matches!(step, Step::Consume));
    assert_eq!(internal_errors.one_by_one(SUSPECT.prefetch), alone);
    // Another consumer of the client has found the reason.
    let explained = Evidence {
        is_explained: true,
        ..Evidence::default()
    };
    internal_errors.step(SUSPECT, explained).unwrap();
    assert_eq!(internal_errors.one_by_one(SUSPECT.prefetch), 0);
}

#[test]
fn it_reads_them_once_when_it_may_move_them() {
    let internal_errors = stopped(SUSPECT, ErrorKind::AccessRefused);
    // An error that passes says nothing about permissions.
    for _ in 0..50 {
        for refusal in [FORBIDDEN, Some(ErrorKind::Timeout)] {
            assert!(internal_errors.step(SUSPECT, seen(refusal, 5, 0)).is_err());
        }
    }
    let step = internal_errors.step(SUSPECT, seen(None, 5, 0)).unwrap();
    assert!(matches!(step, Step::Look(_)));
    let error = internal_errors
        .scanned(SUSPECT, refused(ErrorKind::Broker))
        .unwrap_err();
    assert!(error.to_string().contains("stores messages"), "{error}");
    for _ in 0..50 {
        for refusal in [None, Some(ErrorKind::Timeout)] {
            assert!(internal_errors.step(SUSPECT, seen(refusal, 5, 0)).is_err());
        }
    }
    // Room was made.
    let step = internal_errors.step(SUSPECT, seen(None, 5, 7)).unwrap();
    assert!(matches!(step, Step::Look(_)));
}

#[test]
fn a_look_that_costs_nothing_is_repeated_seldom() {
    let quorum = SuspectQueue {
        is_free: true,
        ..SUSPECT
    };
    let classic = SuspectQueue {
        is_classic: true,
        ..quorum
    };
    for (suspect, refusal, should_scan) in [
        (quorum, None, 10),
        (classic, None, 10),
        (classic, FORBIDDEN, 10),
        (quorum, FORBIDDEN, 0),
        (SUSPECT, None, 0),
    ] {
        let internal_errors = stopped(suspect, ErrorKind::Broker);
        let scanned =
            (1..10 * SELDOM).filter(|_| internal_errors.step(suspect, seen(refusal, 5, 0)).is_ok());
        assert_eq!(scanned.count(), should_scan, "{suspect:?} {refusal:?}");
    }
    // One that failed has released nothing.
    let mut internal_errors = InternalErrors::default();
    for _ in 0..MOST_CLOSED {
        lost(&mut internal_errors, true, SHORT, 0);
    }
    assert!(internal_errors.scanned(quorum, unseen()).is_err());
    let should_scan = (1..100).filter(|_| internal_errors.step(quorum, seen(None, 5, 0)).is_ok());
    assert_eq!(should_scan.count(), 4);
}

#[test]
fn what_was_moved_in_part_is_in_the_way_still() {
    let mut internal_errors = InternalErrors::default();
    lost(&mut internal_errors, true, SHORT, 0);
    let some = Moved {
        refused: Some(Error::new(ErrorKind::Broker, "full")),
        ..moved(2).unwrap()
    };
    assert!(internal_errors.scanned(SUSPECT, Ok(some)).is_err());
    // Its connection was lost for a reason that it found.
    lost(&mut internal_errors, true, SHORT, 0);
    assert_eq!(internal_errors.closed, 1);
}

#[test]
fn a_connection_that_was_lost_for_want_of_a_leader_does_not_count() {
    let mut internal_errors = InternalErrors::default();
    for _ in 0..10 {
        lost(&mut internal_errors, true, SHORT, 0);
        assert_eq!(internal_errors.closed, 1);
        internal_errors.tries().is_leaderless = true;
    }
}

#[test]
fn a_leader_that_was_away_once_makes_up_for_one_connection_only() {
    let mut internal_errors = InternalErrors::default();
    for closed in 1..=MOST_CLOSED {
        lost(&mut internal_errors, true, SHORT, 0);
        assert_eq!(internal_errors.closed, closed);
    }
    internal_errors.tries().is_leaderless = true;
    lost(&mut internal_errors, true, SHORT, 0);
    assert_eq!(internal_errors.closed, MOST_CLOSED);
    lost(&mut internal_errors, true, SHORT, 0);
    assert_eq!(internal_errors.closed, MOST_CLOSED + 1);
}

#[test]
fn a_reason_that_the_broker_gives_is_no_message_but_the_queue_is_asked_for_its_leader() {
    let mut internal_errors = InternalErrors::default();
    assert!(!internal_errors.should_count());
    lost(&mut internal_errors, false, SHORT, 0);
    internal_errors.note_foreseen();
    assert!(internal_errors.should_count() && !internal_errors.should_scan());
    lost(&mut internal_errors, false, SHORT, 0);
    assert!(!internal_errors.should_count());
}
