//! What people are told, decided: inputs in, notices out. It has no clock, no task and no I/O; its state is a value that is kept.
//!
//! ```text
//!             first · rate · growing · again             due (at once, or at office hours)
//!   no incident ─────────────────────────► incident, held ─────────────────────────────► incident, told ──► updates
//!      ▲                                        │ told and over at once                      │
//!      └────────────────────────────────────────┴───────────── quiet, or over ◄──────────────┘
//! ```

mod group;
mod incidents;
mod notice;
#[cfg(test)]
mod properties;
mod rate;
mod settings;
mod state;
#[cfg(test)]
mod tests;

use std::{cmp::Reverse, collections::BTreeSet, time::Duration};

use jiff::{SignedDuration, Timestamp};

pub(crate) use self::group::failure_id;
pub use self::notice::{Notice, NoticeKind};
pub(super) use self::settings::{Settings, Triggers};
use self::{
    group::{Group, Subject},
    rate::MinuteRate,
    state::{FORM, PendingNotice, ReplicaReport, State},
};
use super::{
    Counts, GroupView, Severity, Silence,
    report::{OperatorRequest, ParkedExample, ParkedMessage, QueueProblem, Report, ReportEntry},
    rule::Trigger,
};
use crate::QueueProblemState;

/// Deduplication of reports: how many replicas are remembered, and how long.
const REPLICAS: usize = 200;
/// Notices that have not reached their channels yet.
const OUTBOX: usize = 1_000;
/// Silences at a time.
const SILENCES: usize = 1_000;
/// Bytes of a state. RabbitMQ takes no message of more than 16 MiB, and people would be told nothing any more.
const MOST_BYTES: usize = 8 << 20;
/// An older report counts as if it had arrived now.
const OLDEST: Duration = Duration::from_secs(600);

/// What happens to the engine.
#[derive(Clone, Debug)]
pub(super) enum Input {
    /// A replica tells what happened.
    Told(Report),
    /// Time passes.
    Tick,
    /// Those of [`Engine::quiet_queues`] for which nothing is parked.
    NothingParked(BTreeSet<String>),
    /// A channel has taken a notice, or given it up.
    Delivered { number: u64, channel: String },
}

/// The engine.
#[derive(Clone, Debug)]
pub(super) struct Engine {
    settings: Settings,
    state: State,
    /// Something was decided that must not be lost.
    decided: bool,
    /// Something was counted.
    counted: bool,
}

impl Engine {
    /// An engine that knows nothing yet.
    pub(super) fn new(settings: Settings, now: Timestamp) -> Self {
        Self {
            settings,
            state: State::new(now),
            decided: true,
            counted: true,
        }
    }

    /// An engine that goes on where another one was when it was saved.
    ///
    /// # Errors
    /// A sentence, when the bytes are no such state.
    pub(super) fn resume(settings: Settings, saved: &[u8]) -> Result<Self, String> {
        let state: State = serde_json::from_slice(saved)
            .map_err(|why| format!("the saved state of the alerts cannot be read: {why}"))?;
        if state.form != FORM {
            return Err(format!(
                "the saved state of the alerts has form {}, and this release reads form {FORM}",
                state.form
            ));
        }
        Ok(Self {
            settings,
            state,
            decided: false,
            counted: false,
        })
    }

    /// The state, to be kept.
    pub(super) fn save(&mut self) -> Vec<u8> {
        (self.decided, self.counted) = (false, false);
        let written = |state: &State| serde_json::to_vec(state).unwrap_or_default(); // strings as keys only: it cannot fail
        let mut bytes = written(&self.state);
        for step in 0.. {
            if bytes.len() <= MOST_BYTES || !self.state.shrink(step) {
                break;
            }
            bytes = written(&self.state);
        }
        bytes
    }

    /// Something was decided since the last [`save`](Self::save) that must not be lost: an incident, a silence, a notice to be sent.
    pub(super) fn has_decided(&self) -> bool {
        self.decided
    }

    /// Anything changed since the last [`save`](Self::save).
    pub(super) fn has_changed(&self) -> bool {
        self.decided || self.counted
    }

    /// What has not reached its channels yet: notices and those channels.
    pub(super) fn outbox(&self) -> Vec<Notice> {
        let pending = self.state.outbox.iter().map(|pending| Notice {
            channels: pending.channels.clone(),
            ..pending.notice.clone()
        });
        pending.collect()
    }

    /// Takes what happened, and says whom to tell what.
    pub(super) fn on(&mut self, input: Input, now: Timestamp) -> Vec<Notice> {
        self.reset_future_timers(now);
        let mut notices = Vec::new();
        match input {
            Input::Told(report) => self.on_report(report, now, &mut notices),
            Input::Tick => self.tick(now, &mut notices),
            Input::NothingParked(queues) => self.nothing_parked(&queues, now, &mut notices),
            Input::Delivered { number, channel } => self.delivered(number, &channel),
        }
        for notice in &mut notices {
            self.state.numbers += 1;
            notice.number = self.state.numbers;
            notice.service.clone_from(&self.settings.service);
            self.decided = true;
            if notice.channels.is_empty() {
                continue;
            }
            if self.state.outbox.len() >= OUTBOX {
                self.state.outbox.remove(0);
                self.state.totals.unsent += 1;
            }
            self.state.outbox.push(PendingNotice {
                notice: notice.clone(),
                channels: notice.channels.clone(),
            });
        }
        notices
    }

    /// A clock that was set back would hold every timer for as long.
    fn reset_future_timers(&mut self, now: Timestamp) {
        if now >= self.state.at {
            self.state.at = now;
            return;
        }
        let back = self.state.at.duration_since(now);
        self.state.at = now;
        if back < SignedDuration::from_secs(1) {
            return; // two clocks are never quite the same
        }
        let state = &mut self.state;
        for group in state.groups.values_mut() {
            for at in [&mut group.first, &mut group.last, &mut group.streak] {
                *at = (*at).min(now);
            }
            group.over = group.over.map(|at| at.min(now));
            if let Some(incident) = &mut group.incident {
                incident.opened = incident.opened.min(now);
                incident.growth = incident.growth.min(after(now, self.settings.growing_after));
            }
        }
        for replica in state.replicas.values_mut() {
            replica.at = replica.at.min(now);
        }
    }

    fn on_report(&mut self, report: Report, now: Timestamp, notices: &mut Vec<Notice>) {
        self.counted = true;
        let totals = &mut self.state.totals;
        let known = self.state.replicas.get(&report.replica);
        let last = known.map_or(report.sequence.saturating_sub(1), |known| known.sequence);
        if report.sequence <= last {
            totals.repeated += 1;
            return;
        }
        totals.lost = totals
            .lost
            .saturating_add(report.lost)
            .saturating_add(report.sequence - last - 1);
        if known.is_none() && self.state.replicas.len() >= REPLICAS {
            let oldest = self.state.replicas.iter().min_by_key(|(_, known)| known.at);
            if let Some(oldest) = oldest.map(|(name, _)| name.clone()) {
                self.state.replicas.remove(&oldest);
            }
        }
        let sequence = report.sequence;
        let replica = ReplicaReport { sequence, at: now };
        self.state.replicas.insert(report.replica, replica);
        for entry in report.entries {
            match entry {
                ReportEntry::Died(death) => self.died(death, now, notices),
                ReportEntry::Troubled(problem) => self.troubled(problem, now, notices),
                ReportEntry::Asked(request) => self.asked(request, now, notices),
            }
        }
    }

    fn died(&mut self, death: ParkedMessage, now: Timestamp, notices: &mut Vec<Notice>) {
        let oldest = before(now, OLDEST);
        let at = match (oldest..=now).contains(&death.at) {
            true => death.at,
            false => now,
        };
        let failures = &mut self.state.totals.failures;
        let severity = death.severity.as_str().to_owned();
        *failures.entry(severity).or_default() += 1;
        let subject = Subject::Failure {
            queue: death.queue,
            fingerprint: death.fingerprint,
        };
        let (id, mut group) = self.take(subject, &death.rule, death.severity, now);
        let was_quiet = since(now, group.last) >= self.settings.quiet;
        if was_quiet {
            group.streak = at;
        }
        group.last = group.last.max(at);
        group.count += 1;
        group.rate.count(at, now);
        group.rule = death.rule;
        group.severity = death.severity;
        group.example = death.example;
        self.consider(&mut group, was_quiet, now, notices);
        self.state.groups.insert(id, group);
    }

    fn troubled(&mut self, problem: QueueProblem, now: Timestamp, notices: &mut Vec<Notice>) {
        let subject = Subject::Trouble {
            vhost: problem.vhost,
            queue: problem.queue,
            kind: problem.kind.clone(),
        };
        if problem.state == QueueProblemState::Lasting {
            if let Some(group) = self.state.groups.get_mut(&subject.id())
                && group.incident.is_some()
            {
                group.last = now;
            }
            return;
        }
        if problem.state == QueueProblemState::Over {
            // That of a queue nobody was worried about is no news.
            let id = subject.id();
            if let Some(mut group) = self.state.groups.remove(&id) {
                match &mut group.incident {
                    Some(incident) if incident.due.is_some() => {
                        incident.ended = true;
                        self.decided = true;
                    }
                    _ => self.resolve(&mut group, now, notices),
                }
                self.state.groups.insert(id, group);
            }
            return;
        }
        let (id, mut group) = self.take(subject, &problem.rule, problem.severity, now);
        group.last = now;
        group.rule = problem.rule;
        group.severity = problem.severity;
        group.example = ParkedExample {
            reason: problem.kind,
            error: problem.text,
            ..ParkedExample::default()
        };
        let triggers = self.triggers(&group.rule);
        match &mut group.incident {
            Some(incident) => incident.ended = false,
            None => {
                let trigger = match group.over {
                    None => Trigger::First,
                    Some(_) => Trigger::Again,
                };
                if group.severity > Severity::Count && triggers.has(trigger) {
                    group.count += 1;
                    self.open(&mut group, trigger, now, notices);
                }
            }
        }
        self.state.groups.insert(id, group);
    }

    fn asked(&mut self, request: OperatorRequest, now: Timestamp, notices: &mut Vec<Notice>) {
        self.decided = true;
        match request {
            OperatorRequest::Silence(silence) => {
                let silences = &mut self.state.silences;
                silences.retain(|known| known.id != silence.id && known.until > now);
                if silences.len() < SILENCES {
                    silences.push(silence);
                }
            }
            OperatorRequest::Lift(id) => self.state.silences.retain(|silence| silence.id != id),
            OperatorRequest::Resolve(id) => self.resolve_by_id(id, now, notices),
        }
    }

    fn tick(&mut self, now: Timestamp, notices: &mut Vec<Notice>) {
        let ids: Vec<String> = self.state.groups.keys().cloned().collect();
        for id in ids {
            let Some(mut group) = self.state.groups.remove(&id) else {
                continue;
            };
            let quiet = since(now, group.last);
            if let Some(mut incident) = group.incident.take() {
                self.notify(&group, &mut incident, now, notices);
                let is_over = match group.subject {
                    // The watch says it again and again; when it does not, nobody watches any more.
                    Subject::Trouble { .. } => incident.ended || quiet >= FORGOTTEN_TROUBLE,
                    // While its messages are parked, it is not over.
                    Subject::Failure { .. } => false,
                    Subject::Overflow => quiet >= self.settings.quiet,
                };
                let is_held = incident.due.is_some();
                let silenced = self.is_silenced(&group, now);
                group.incident = Some(incident);
                // What nobody was told yet is told in the morning, even when it is over by then; but not after a silence.
                if is_over && (!is_held || silenced) {
                    self.resolve(&mut group, now, notices);
                }
            }
            if group.incident.is_some() || quiet < self.settings.forget_after {
                self.state.groups.insert(id, group);
            } else {
                self.counted = true;
            }
        }
        let silences = self.state.silences.len();
        self.state.silences.retain(|silence| silence.until > now);
        self.counted |= silences != self.state.silences.len();
    }

    /// The queues whose incidents are over when nothing is parked for them: nothing failed for a while.
    pub(super) fn quiet_queues(&self, now: Timestamp) -> BTreeSet<String> {
        let groups = self.state.groups.values();
        let quiet = groups.filter(|group| self.is_quiet(group, now));
        quiet
            .map(|group| group.subject.queue().to_owned())
            .collect()
    }

    fn is_quiet(&self, group: &Group, now: Timestamp) -> bool {
        let Some(incident) = &group.incident else {
            return false;
        };
        // What nobody was told yet is told in the morning, even when it is over by then; but not after a silence.
        let may_end = incident.due.is_none() || self.is_silenced(group, now);
        let is_failure = matches!(group.subject, Subject::Failure { .. });
        is_failure && may_end && since(now, group.last) >= self.settings.quiet
    }

    fn nothing_parked(
        &mut self,
        queues: &BTreeSet<String>,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) {
        let groups = self.state.groups.iter();
        let over = groups.filter(|(_, group)| {
            queues.contains(group.subject.queue()) && self.is_quiet(group, now)
        });
        let over: Vec<String> = over.map(|(id, _)| id.clone()).collect();
        for id in over {
            self.resolve_by_id(id, now, notices);
        }
    }

    fn resolve_by_id(&mut self, id: String, now: Timestamp, notices: &mut Vec<Notice>) {
        if let Some(mut group) = self.state.groups.remove(&id) {
            self.resolve(&mut group, now, notices);
            self.state.groups.insert(id, group);
        }
    }

    fn delivered(&mut self, number: u64, channel: &str) {
        let outbox = &mut self.state.outbox;
        for pending in outbox.iter_mut() {
            if pending.notice.number == number {
                pending.channels.retain(|name| name != channel);
                self.counted = true;
            }
        }
        outbox.retain(|pending| !pending.channels.is_empty());
    }

    /// Takes a group out of the state, or makes one. Where there is no room, and none that can go, it is that of all others.
    fn take(
        &mut self,
        subject: Subject,
        rule: &str,
        severity: Severity,
        now: Timestamp,
    ) -> (String, Group) {
        let id = subject.id();
        if let Some(group) = self.state.groups.remove(&id) {
            return (id, group);
        }
        let (id, subject) = match self.make_room() {
            true => (id, subject),
            false => {
                self.state.totals.ungrouped += 1;
                let overflow = Subject::Overflow.id();
                if let Some(group) = self.state.groups.remove(&overflow) {
                    return (overflow, group);
                }
                (overflow, Subject::Overflow)
            }
        };
        let group = Group {
            subject,
            rule: rule.to_owned(),
            severity,
            first: now,
            last: now,
            streak: now,
            count: 0,
            rate: MinuteRate::default(),
            example: ParkedExample::default(),
            incident: None,
            over: None,
        };
        (id, group)
    }

    /// Whether another group may be made. One without an incident goes for it, the one that was quiet for longest.
    fn make_room(&mut self) -> bool {
        let groups = &mut self.state.groups;
        // That of all others has a place of its own.
        let own = |group: &Group| group.subject != Subject::Overflow;
        if groups.values().filter(|group| own(group)).count() < self.settings.most_groups {
            return true;
        }
        let idle = groups
            .iter()
            .filter(|(_, group)| group.incident.is_none() && own(group));
        let oldest = idle.min_by_key(|(_, group)| group.last);
        match oldest.map(|(id, _)| id.clone()) {
            Some(id) => {
                groups.remove(&id);
                self.state.totals.evicted += 1;
                true
            }
            None => false,
        }
    }

    fn triggers(&self, rule: &str) -> Triggers {
        let known = self.settings.rules.get(rule).cloned();
        // A rule of a replica with another configuration.
        known.unwrap_or_else(Triggers::otherwise)
    }

    fn is_silenced(&self, group: &Group, now: Timestamp) -> bool {
        let mut silences = self.settings.silences.iter().chain(&self.state.silences);
        silences.any(|silence| silence.covers(group.heard(), now))
    }

    fn due(&self, severity: Severity, now: Timestamp) -> Timestamp {
        match severity {
            Severity::Morning => self.settings.calendar.opens(now),
            Severity::Wake | Severity::Count => now,
        }
    }

    fn channels(&self, group: &Group, severity: Severity) -> Vec<String> {
        let named = self.triggers(&group.rule).channels;
        let all = self.settings.channels.iter();
        let fitting = all.filter(|(name, severities)| match &named {
            Some(named) => named.contains(name),
            None => severities.contains(&severity),
        });
        fitting.map(|(name, _)| name.clone()).collect()
    }

    /// The numbers of the state.
    pub(super) fn counts(&self, counts: &mut Counts) {
        let totals = &self.state.totals;
        counts.failures.clone_from(&totals.failures);
        counts.incidents = totals.incidents;
        counts.resolved = totals.resolved;
        counts.silenced = totals.silenced;
        counts.evicted = totals.evicted;
        counts.ungrouped = totals.ungrouped;
        counts.lost = totals.lost;
        counts.repeated = totals.repeated;
        counts.unsent = totals.unsent;
        counts.groups = self.state.groups.len() as u64;
        let open = self.state.groups.values();
        counts.open = open.filter(|group| group.incident.is_some()).count() as u64;
        counts.outbox = self.state.outbox.len() as u64;
    }

    /// The groups as people see them, those with an incident first.
    pub(super) fn groups(&self, now: Timestamp) -> Vec<GroupView> {
        let groups = self.state.groups.iter();
        let mut views: Vec<GroupView> = groups
            .map(|(id, group)| GroupView {
                id: id.clone(),
                queue: group.subject.queue().to_owned(),
                fingerprint: group.heard().fingerprint.to_owned(),
                reason: group.example.reason.clone(),
                error: group.example.error.clone(),
                rule: group.rule.clone(),
                severity: group.severity,
                count: group.count,
                first: group.first,
                last: group.last,
                incident: group.incident.as_ref().map(|incident| incident.id.clone()),
                silenced: self.is_silenced(group, now),
            })
            .collect();
        views.sort_by_key(|view| Reverse((view.incident.is_some(), view.last)));
        views
    }

    /// The silences that people have made, and those of the configuration.
    pub(super) fn silences(&self) -> Vec<Silence> {
        let all = self.settings.silences.iter().chain(&self.state.silences);
        all.cloned().collect()
    }
}

/// A trouble that is not told any more: the watch repeats each every hour.
const FORGOTTEN_TROUBLE: Duration = Duration::from_secs(4 * 3600);

/// How long ago; nothing for what is in the future.
fn since(now: Timestamp, then: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(then)).unwrap_or_default()
}

fn after(now: Timestamp, duration: Duration) -> Timestamp {
    now.checked_add(duration).unwrap_or(Timestamp::MAX)
}

fn before(now: Timestamp, duration: Duration) -> Timestamp {
    now.checked_sub(duration).unwrap_or(Timestamp::MIN)
}
