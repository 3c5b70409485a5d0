//! Copies that wait for an alarm to end, or for their queue to be safe.

use super::*;

/// A message that is rejected by its handler, and whose copy is not confirmed as long as an alarm lasts.
fn fails_in_an_alarm(case: &mut Case) -> usize {
    case.comes_again(1);
    case.fails_in_an_alarm()
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
