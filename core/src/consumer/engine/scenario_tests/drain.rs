//! The end: what is waited for, and what goes back.

use super::*;

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
