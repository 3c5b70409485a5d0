//! What holds whatever happens.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{
    tests::{death, monday, settings},
    *,
};

#[derive(Clone, Debug)]
enum Step {
    Died(usize, usize),
    Troubled(QueueProblemState),
    /// Nothing is parked.
    NothingParked,
    Silence(u64),
    Lift,
    Resolve(usize),
    /// Seconds, forward or back.
    Time(i64),
    Tick,
}

const RULES: [&str; 5] = ["wake", "morning", "count", "rate", "growing"];
const STATES: [QueueProblemState; 3] = [
    QueueProblemState::Begun,
    QueueProblemState::Lasting,
    QueueProblemState::Over,
];
const PRINTS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0..RULES.len(), 0..PRINTS.len()).prop_map(|(rule, print)| Step::Died(rule, print)),
        2 => (0..STATES.len()).prop_map(|state| Step::Troubled(STATES[state])),
        2 => Just(Step::NothingParked),
        1 => (1_u64..5_000).prop_map(Step::Silence),
        1 => Just(Step::Lift),
        1 => (0..PRINTS.len()).prop_map(Step::Resolve),
        4 => (0_i64..4_000).prop_map(Step::Time),
        1 => (40_000_i64..400_000).prop_map(Step::Time),
        1 => (-100_000_i64..0).prop_map(Step::Time),
        4 => Just(Step::Tick),
    ];
    proptest::collection::vec(step, 1..150)
}

fn input(step: &Step, number: usize, now: Timestamp) -> Input {
    let entry = match step {
        Step::Died(rule, print) => death(RULES[*rule], PRINTS[*print], now),
        Step::Troubled(state) => ReportEntry::Troubled(QueueProblem {
            vhost: "/".to_owned(),
            queue: "orders".to_owned(),
            kind: "no_consumer".to_owned(),
            text: String::new(),
            state: *state,
            rule: "morning".to_owned(),
            severity: Severity::Morning,
        }),
        Step::Silence(seconds) => ReportEntry::Asked(OperatorRequest::Silence(Silence {
            id: "s".to_owned(),
            queue: Some("*".to_owned()),
            until: after(now, Duration::from_secs(*seconds)),
            ..Silence::default()
        })),
        Step::Lift => ReportEntry::Asked(OperatorRequest::Lift("s".to_owned())),
        Step::Resolve(print) => {
            let subject = Subject::Failure {
                queue: "orders".to_owned(),
                fingerprint: PRINTS[*print].to_owned(),
            };
            ReportEntry::Asked(OperatorRequest::Resolve(subject.id()))
        }
        Step::NothingParked => return Input::NothingParked(["orders".to_owned()].into()),
        Step::Tick | Step::Time(_) => return Input::Tick,
    };
    Input::Told(Report {
        replica: "r".to_owned(),
        sequence: number as u64 + 1,
        lost: 0,
        entries: vec![entry],
    })
}

fn moved(now: Timestamp, step: &Step) -> Timestamp {
    match step {
        Step::Time(seconds) => now + SignedDuration::from_secs(*seconds),
        _ => now,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_group_has_one_open_page_and_each_page_is_over_or_still_open(steps in steps()) {
        let mut now = monday();
        let mut engine = Engine::new(settings(), now);
        // The incident that people know of, by group.
        let mut open: BTreeMap<String, String> = BTreeMap::new();
        let mut numbers = 0;
        for (number, step) in steps.iter().enumerate() {
            now = moved(now, step);
            for notice in engine.on(input(step, number, now), now) {
                prop_assert!(notice.number > numbers);
                numbers = notice.number;
                prop_assert!(notice.severity > Severity::Count);
                prop_assert!(!notice.channels.is_empty());
                let known = open.get(&notice.group);
                match notice.kind {
                    NoticeKind::Opened => {
                        prop_assert_eq!(known, None);
                        open.insert(notice.group.clone(), notice.incident.clone());
                    }
                    NoticeKind::Raised | NoticeKind::Updated => prop_assert_eq!(known, Some(&notice.incident)),
                    NoticeKind::Resolved => {
                        prop_assert_eq!(known, Some(&notice.incident));
                        open.remove(&notice.group);
                    }
                }
            }
            let told = engine.state.groups.iter().filter_map(|(id, group)| {
                let incident = group.incident.as_ref().filter(|incident| incident.due.is_none())?;
                Some((id.clone(), incident.id.clone()))
            });
            prop_assert_eq!(&told.collect::<BTreeMap<_, _>>(), &open);
            prop_assert!(engine.state.groups.len() <= engine.settings.most_groups + 1);
            prop_assert!(engine.state.outbox.len() <= OUTBOX);
        }
        // Left alone, everything is over in the end: the office is open within a week, and no silence is longer.
        for _ in 0..9 * 24 {
            now = after(now, Duration::from_secs(3_600));
            let parked = Input::NothingParked(["orders".to_owned()].into());
            let mut notices = engine.on(Input::Tick, now);
            notices.extend(engine.on(parked, now));
            for notice in notices {
                match notice.kind {
                    NoticeKind::Opened => { open.insert(notice.group, notice.incident); }
                    _ => { open.remove(&notice.group); }
                }
            }
        }
        prop_assert!(open.is_empty(), "{:?}", open);
        prop_assert!(engine.state.groups.values().all(|group| group.incident.is_none()));
    }

    #[test]
    fn saved_and_resumed_anywhere_it_says_the_same(steps in steps(), cut in 0_usize..150) {
        let mut now = monday();
        let mut engine = Engine::new(settings(), now);
        let mut other = engine.clone();
        for (number, step) in steps.iter().enumerate() {
            now = moved(now, step);
            if number == cut {
                other = Engine::resume(settings(), &other.save()).unwrap();
            }
            let said = engine.on(input(step, number, now), now);
            prop_assert_eq!(other.on(input(step, number, now), now), said);
        }
        prop_assert_eq!(engine.state, other.state);
    }

    #[test]
    fn whatever_people_are_told_was_decided_before(steps in steps()) {
        let mut now = monday();
        let mut engine = Engine::new(settings(), now);
        for (number, step) in steps.iter().enumerate() {
            now = moved(now, step);
            engine.save();
            let incidents = |engine: &Engine| -> Vec<_> {
                engine.state.groups.values().filter_map(|g| g.incident.clone()).collect()
            };
            let before = (incidents(&engine), engine.state.silences.clone());
            let said = engine.on(input(step, number, now), now);
            let is_same = before == (incidents(&engine), engine.state.silences.clone());
            let is_back = matches!(step, Step::Time(..0));
            prop_assert!(engine.has_decided() || said.is_empty() && (is_same || is_back || engine.has_changed()));
        }
    }
}
