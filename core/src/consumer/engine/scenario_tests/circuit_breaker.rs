//! Pauses of the circuit breaker.

use super::*;

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
    for count in [1, 2] {
        case.comes("x-delivery-count", count, true);
        let detours = publishes(&case.take());
        assert_eq!(detours, usize::from(count == 2), "{count}");
    }
}
