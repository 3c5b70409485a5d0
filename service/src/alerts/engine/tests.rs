use super::*;
use crate::alerts::{BusinessHours, Rule};

/// A Monday, 10:00 UTC.
pub(super) fn monday() -> Timestamp {
    "2026-01-05T10:00:00Z".parse().unwrap()
}

pub(super) fn rule(name: &str, severity: Severity, on: &[Trigger]) -> (String, Triggers) {
    let rule = Rule {
        name: name.to_owned(),
        severity,
        on: on.to_vec(),
        more_than: 5,
        ..Rule::otherwise()
    };
    (name.to_owned(), Triggers::from(&rule))
}

pub(super) const ALL: [Trigger; 4] = [
    Trigger::First,
    Trigger::Rate,
    Trigger::Growing,
    Trigger::Again,
];

pub(super) fn settings() -> Settings {
    let all = [Severity::Wake, Severity::Morning];
    Settings {
        service: "shop".to_owned(),
        rules: [
            rule("wake", Severity::Wake, &ALL),
            rule("morning", Severity::Morning, &ALL),
            rule("count", Severity::Count, &ALL),
            rule("rate", Severity::Wake, &[Trigger::Rate]),
            rule("growing", Severity::Wake, &[Trigger::Growing]),
        ]
        .into(),
        channels: [
            ("chat".to_owned(), all.into()),
            ("pager".to_owned(), [Severity::Wake].into()),
        ]
        .into(),
        silences: Vec::new(),
        calendar: BusinessHours::default().calendar().unwrap(),
        quiet: Duration::from_secs(1_800),
        growing_after: Duration::from_secs(600),
        forget_after: Duration::from_secs(86_400),
        most_groups: 3,
    }
}

/// An engine and its reporter, at a time.
struct Story {
    engine: Engine,
    now: Timestamp,
    sequence: u64,
}

impl Story {
    fn new(now: Timestamp) -> Self {
        Self {
            engine: Engine::new(settings(), now),
            now,
            sequence: 0,
        }
    }

    fn later(&mut self, seconds: u64) -> &mut Self {
        self.now = after(self.now, Duration::from_secs(seconds));
        self
    }

    fn told(&mut self, entries: Vec<ReportEntry>) -> Vec<String> {
        self.sequence += 1;
        let report = Report {
            replica: "r".to_owned(),
            sequence: self.sequence,
            lost: 0,
            entries,
        };
        words(self.engine.on(Input::Told(report), self.now))
    }

    fn died(&mut self, rule: &str, fingerprint: &str) -> Vec<String> {
        self.told(vec![death(rule, fingerprint, self.now)])
    }

    /// Time passes, and nothing is parked.
    fn tick(&mut self) -> Vec<String> {
        let mut notices = self.engine.on(Input::Tick, self.now);
        let queues = self.engine.quiet_queues(self.now);
        notices.extend(self.engine.on(Input::NothingParked(queues), self.now));
        words(notices)
    }

    /// The same, and something is, or nobody knows.
    fn tick_with_parked(&mut self) -> Vec<String> {
        words(self.engine.on(Input::Tick, self.now))
    }

    fn trouble(&mut self, is_over: bool) -> Vec<String> {
        self.trouble_is(match is_over {
            true => QueueProblemState::Over,
            false => QueueProblemState::Begun,
        })
    }

    fn trouble_is(&mut self, state: QueueProblemState) -> Vec<String> {
        let problem = QueueProblem {
            vhost: "/".to_owned(),
            queue: "orders".to_owned(),
            kind: "no_consumer".to_owned(),
            text: "nobody".to_owned(),
            state,
            rule: "wake".to_owned(),
            severity: Severity::Wake,
        };
        self.told(vec![ReportEntry::Troubled(problem)])
    }

    fn silence(&mut self, seconds: u64) -> Vec<String> {
        let silence = Silence {
            id: "s".to_owned(),
            queue: Some("orders".to_owned()),
            until: after(self.now, Duration::from_secs(seconds)),
            author: "ann".to_owned(),
            why: "works on it".to_owned(),
            ..Silence::default()
        };
        self.told(vec![ReportEntry::Asked(OperatorRequest::Silence(silence))])
    }
}

pub(super) fn death(rule: &str, fingerprint: &str, at: Timestamp) -> ReportEntry {
    let severity = match rule {
        "count" => Severity::Count,
        "morning" => Severity::Morning,
        _ => Severity::Wake,
    };
    ReportEntry::Died(ParkedMessage {
        at,
        queue: "orders".to_owned(),
        fingerprint: fingerprint.to_owned(),
        rule: rule.to_owned(),
        severity,
        example: ParkedExample::default(),
    })
}

/// `opened first > chat,pager`
fn words(notices: Vec<Notice>) -> Vec<String> {
    let words = notices.iter().map(|notice| {
        let trigger = format!("{:?}", notice.trigger).to_lowercase();
        format!(
            "{} {trigger} > {}",
            notice.kind.as_str(),
            notice.channels.join(",")
        )
    });
    words.collect()
}

#[test]
fn one_bug_is_one_page_that_is_over_when_it_is_quiet_and_comes_again() {
    let mut story = Story::new(monday());
    assert_eq!(story.died("wake", "a"), ["opened first > chat,pager"]);
    for _ in 0..4 {
        assert!(story.later(1).died("wake", "a").is_empty());
    }
    assert!(story.later(1_799).tick().is_empty());
    assert_eq!(story.later(1).tick(), ["resolved first > chat,pager"]);
    assert!(story.later(5_000).tick().is_empty());
    assert_eq!(story.died("wake", "a"), ["opened again > chat,pager"]);
    assert_eq!(
        story.later(1).died("wake", "b"),
        ["opened first > chat,pager"]
    );
}

#[test]
fn a_burst_and_growth_are_updates_of_the_same_page() {
    let mut story = Story::new(monday());
    story.died("wake", "a");
    let burst = (0..10).map(|_| death("wake", "a", story.now)).collect();
    assert_eq!(story.told(burst), ["updated rate > chat,pager"]);
    assert!(story.later(300).died("wake", "a").is_empty());
    assert_eq!(
        story.later(300).died("wake", "a"),
        ["updated growing > chat,pager"]
    );
    // Twice as long each time: after 10, 20, 40 minutes.
    assert!(story.later(500).died("wake", "a").is_empty());
    assert_eq!(
        story.later(100).died("wake", "a"),
        ["updated growing > chat,pager"]
    );
    assert!(story.later(1_199).died("wake", "a").is_empty());
    assert_eq!(
        story.later(1).died("wake", "a"),
        ["updated growing > chat,pager"]
    );
}

#[test]
fn a_rule_tells_only_by_its_triggers() {
    let mut story = Story::new(monday());
    let few = (0..5).map(|_| death("rate", "a", story.now)).collect();
    assert!(story.told(few).is_empty());
    assert_eq!(
        story.later(10).died("rate", "a"),
        ["opened rate > chat,pager"]
    );
    assert!(story.died("growing", "b").is_empty());
    assert!(story.later(599).died("growing", "b").is_empty());
    assert_eq!(
        story.later(1).died("growing", "b"),
        ["opened growing > chat,pager"]
    );
    let many = (0..100).map(|_| death("count", "c", story.now)).collect();
    assert!(story.told(many).is_empty());
    assert_eq!(story.engine.state.totals.failures["count"], 100);
}

#[test]
fn the_morning_waits_for_the_office_unless_it_becomes_more_important() {
    // Friday evening.
    let mut story = Story::new("2026-01-09T20:00:00Z".parse().unwrap());
    assert!(story.died("morning", "a").is_empty());
    assert!(story.died("morning", "b").is_empty());
    assert_eq!(
        story.later(60).died("wake", "b"),
        ["opened first > chat,pager"]
    );
    assert!(
        story
            .later(3_600)
            .tick()
            .contains(&"resolved first > chat,pager".to_owned())
    );
    // Monday, 9:00: it is over by then, and is told all the same.
    story.now = "2026-01-12T08:59:59Z".parse().unwrap();
    assert!(story.tick().is_empty());
    assert_eq!(
        story.later(1).tick(),
        ["opened first > chat", "resolved first > chat"]
    );
    // At office hours at once; and what becomes more important wakes those who were not told.
    assert_eq!(story.died("morning", "c"), ["opened first > chat"]);
    assert_eq!(
        story.later(1).died("wake", "c"),
        ["raised first > chat,pager"]
    );
    assert_eq!(story.later(1_800).tick(), ["resolved first > chat,pager"]);
}

#[test]
fn a_silence_silences_until_its_end_and_what_is_told_is_still_over() {
    let mut story = Story::new(monday());
    story.silence(600);
    assert!(story.died("wake", "a").is_empty());
    assert_eq!(story.engine.state.totals.silenced, 1);
    assert_eq!(
        story.later(600).died("wake", "a"),
        ["opened first > chat,pager"]
    );
    story.silence(86_400);
    assert!(story.later(601).died("wake", "a").is_empty());
    assert_eq!(story.later(1_800).tick(), ["resolved first > chat,pager"]);
    assert!(story.died("wake", "a").is_empty());
    story.told(vec![ReportEntry::Asked(OperatorRequest::Lift(
        "s".to_owned(),
    ))]);
    assert_eq!(story.died("wake", "a"), ["opened again > chat,pager"]);
}

#[test]
fn what_becomes_more_important_in_a_silence_is_told_after_it() {
    let mut story = Story::new(monday());
    assert_eq!(story.died("morning", "a"), ["opened first > chat"]);
    story.silence(600);
    for _ in 0..10 {
        assert!(story.later(1).died("wake", "a").is_empty());
    }
    let raised = story.later(600).died("wake", "a");
    assert_eq!(raised, ["raised first > chat,pager"]);
    assert_eq!(
        story.later(1).died("wake", "a"),
        ["updated growing > chat,pager"]
    );
    assert_eq!(story.later(1_800).tick(), ["resolved first > chat,pager"]);
    assert!(
        story
            .engine
            .outbox()
            .iter()
            .all(|told| told.raised != (told.kind == NoticeKind::Opened))
    );
}

#[test]
fn an_incident_is_open_while_its_messages_are_parked_or_their_number_is_not_known() {
    let mut story = Story::new(monday());
    story.died("wake", "a");
    story.later(1_799);
    assert!(story.engine.quiet_queues(story.now).is_empty());
    assert!(story.later(1).tick_with_parked().is_empty());
    assert!(story.later(100_000).tick_with_parked().is_empty());
    // What failed since the question was asked may be parked. People hear of it: it is news after so long.
    let gone = Input::NothingParked(["orders".to_owned()].into());
    assert_eq!(story.died("wake", "a"), ["updated again > chat,pager"]);
    assert!(story.engine.on(gone, story.now).is_empty());
    assert!(story.later(1).died("wake", "a").is_empty());
    assert_eq!(story.later(1_800).tick(), ["resolved first > chat,pager"]);
}

#[test]
fn a_trouble_that_lasts_keeps_an_incident_open_and_opens_none() {
    let mut story = Story::new(monday());
    let lasts = |story: &mut Story| story.trouble_is(QueueProblemState::Lasting);
    assert!(lasts(&mut story).is_empty());
    story.trouble(false);
    for _ in 0..24 {
        story.later(3_600);
        assert!(lasts(&mut story).is_empty());
        assert!(story.tick().is_empty());
    }
    assert_eq!(story.trouble(true), ["resolved first > chat,pager"]);
    assert!(lasts(&mut story).is_empty());
}

#[test]
fn a_person_says_that_it_is_fixed() {
    let mut story = Story::new(monday());
    story.died("wake", "a");
    let id = story.engine.state.groups.keys().next().unwrap().clone();
    let fixed = vec![ReportEntry::Asked(OperatorRequest::Resolve(id))];
    assert_eq!(story.told(fixed.clone()), ["resolved first > chat,pager"]);
    assert!(story.told(fixed).is_empty());
    assert_eq!(
        story.later(1).died("wake", "a"),
        ["opened again > chat,pager"]
    );
}

#[test]
fn a_queue_in_trouble_is_told_once_by_however_many_replicas_see_it() {
    let mut story = Story::new(monday());
    assert!(story.trouble(true).is_empty());
    assert_eq!(story.trouble(false), ["opened first > chat,pager"]);
    assert!(story.later(5).trouble(false).is_empty());
    assert!(story.later(10_000).tick().is_empty());
    assert_eq!(story.trouble(true), ["resolved first > chat,pager"]);
    assert!(story.later(5).trouble(true).is_empty());
    assert_eq!(story.trouble(false), ["opened again > chat,pager"]);
    // Nobody watches any more.
    assert_eq!(story.later(14_400).tick(), ["resolved again > chat,pager"]);
}

#[test]
fn more_groups_than_there_is_room_for_are_one_and_what_is_over_makes_room() {
    let mut story = Story::new(monday());
    for name in ["a", "b", "c"] {
        assert_eq!(story.later(1).died("wake", name).len(), 1);
    }
    assert_eq!(
        story.later(1).died("wake", "d"),
        ["opened first > chat,pager"]
    );
    assert!(story.later(1).died("wake", "e").is_empty());
    assert_eq!(story.engine.state.totals.ungrouped, 2);
    assert!(
        story.engine.state.groups[&Subject::Overflow.id()]
            .incident
            .is_some()
    );
    assert_eq!(story.later(1_800).tick().len(), 4);
    assert_eq!(story.died("wake", "f"), ["opened first > chat,pager"]);
    assert_eq!(story.engine.state.totals.evicted, 1);
    assert!(story.engine.state.groups.len() <= 4);
}

#[test]
fn a_report_counts_once_and_one_that_is_missing_is_counted() {
    let mut story = Story::new(monday());
    story.died("wake", "a");
    story.sequence -= 1;
    story.died("wake", "a");
    assert_eq!(story.engine.state.groups.values().next().unwrap().count, 1);
    story.sequence += 3;
    story.died("wake", "a");
    let totals = &story.engine.state.totals;
    assert_eq!((totals.repeated, totals.lost), (1, 3));
}

#[test]
fn the_outbox_keeps_what_a_channel_has_not_taken() {
    let mut story = Story::new(monday());
    story.died("wake", "a");
    let delivered = |channel: &str| Input::Delivered {
        number: 1,
        channel: channel.to_owned(),
    };
    story.engine.on(delivered("chat"), story.now);
    let saved = story.engine.save();
    let other = Engine::resume(settings(), &saved).unwrap();
    let outbox = other.outbox();
    assert_eq!(
        (outbox.len(), outbox[0].channels.join(",")),
        (1, "pager".to_owned())
    );
    story.engine.on(delivered("pager"), story.now);
    assert!(story.engine.outbox().is_empty());
}

#[test]
fn a_state_is_never_too_large_to_be_kept_and_every_page_is_told() {
    let mut story = Story::new(monday());
    story.engine.settings.most_groups = 500;
    let long = "\u{1f600}".repeat(200);
    for number in 0..500 {
        let mut died = death("wake", &format!("f{number}"), story.now);
        if let ReportEntry::Died(death) = &mut died {
            death.example.error.clone_from(&long);
            let fields = (0..20).map(|field| (format!("headers.h{field}"), long.clone()));
            death.example.fields = fields.collect();
        }
        assert_eq!(story.told(vec![died]).len(), 1);
    }
    let saved = story.engine.save();
    assert!(saved.len() <= MOST_BYTES, "{}", saved.len());
    let next = Engine::resume(story.engine.settings.clone(), &saved).unwrap();
    assert_eq!((next.outbox().len(), next.state.groups.len()), (500, 500));
    // What cannot be made smaller goes, the oldest first.
    for step in 0..40 {
        story.engine.state.shrink(step);
    }
    assert!(story.engine.state.outbox.is_empty());
    assert_eq!(story.engine.state.totals.unsent, 500);
    assert_eq!(
        story.engine.state.groups.len(),
        500,
        "all have open incidents"
    );
}

#[test]
fn a_clock_that_is_set_back_holds_no_timer() {
    let mut story = Story::new(monday());
    story.died("wake", "a");
    story.now = before(story.now, Duration::from_secs(86_400));
    assert!(story.tick().is_empty());
    assert_eq!(story.later(1_800).tick(), ["resolved first > chat,pager"]);
}

#[test]
fn a_state_with_the_names_of_builds_before_the_release_goes_on() {
    let mut story = Story::new(monday());
    story.died("wake", "a");
    let saved = String::from_utf8(story.engine.save()).unwrap();
    let mut old = saved.clone();
    for (now, before) in [
        ("totals", "tally"),
        ("incidents", "pages"),
        ("incident", "page"),
    ] {
        assert!(saved.contains(&format!("\"{now}\":")), "{now} in {saved}");
        old = old.replace(&format!("\"{now}\":"), &format!("\"{before}\":"));
    }
    let next = Engine::resume(settings(), old.as_bytes()).unwrap();
    assert_eq!(next.state, story.engine.state);
}

#[test]
fn what_is_no_state_is_refused_with_a_sentence() {
    let mut engine = Engine::new(settings(), monday());
    let newer = String::from_utf8(engine.save())
        .unwrap()
        .replace("\"form\":1", "\"form\":9");
    for (saved, words) in [
        (newer.as_str(), "form 9"),
        ("{}", "cannot be read"),
        ("", "cannot be read"),
    ] {
        let why = Engine::resume(settings(), saved.as_bytes()).unwrap_err();
        assert!(why.contains(words), "{why}");
    }
}
