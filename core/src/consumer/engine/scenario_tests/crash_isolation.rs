//! Suspects, which run alone, and what may hold them up.

use super::*;

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
