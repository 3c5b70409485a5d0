//! Messages that come again after their channel was lost.

use super::*;

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
