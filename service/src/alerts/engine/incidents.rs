//! When an incident begins, is told, grows and is over.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::{
    Engine, after,
    group::{Group, Incident},
    notice::{Notice, NoticeKind},
    since,
};
use crate::alerts::{Severity, rule::Trigger};

impl Engine {
    /// After another failure: is there anything to say? `was_quiet`: nothing had failed for so long that only parked messages kept its incident
    /// open.
    pub(super) fn consider(
        &mut self,
        group: &mut Group,
        was_quiet: bool,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) {
        let triggers = self.triggers(&group.rule);
        let is_fast =
            triggers.has(Trigger::Rate) && group.rate.last_minute(now) > triggers.more_than;
        let Some(mut incident) = group.incident.take() else {
            if group.severity == Severity::Count {
                return;
            }
            let grows = since(now, group.streak) >= self.settings.growing_after;
            let trigger = match group.over {
                None if triggers.has(Trigger::First) => Trigger::First,
                Some(_) if triggers.has(Trigger::Again) => Trigger::Again,
                _ if is_fast => Trigger::Rate,
                _ if grows && triggers.has(Trigger::Growing) => Trigger::Growing,
                _ => return,
            };
            return self.open(group, trigger, now, notices);
        };
        let is_held = incident.due.is_some();
        let is_again = was_quiet && !is_held;
        if is_again {
            incident.rate_told = false;
            incident.growth = after(now, self.settings.growing_after);
        }
        if !is_held && self.is_silenced(group, now) {
            // What is not told now is no less news after the silence.
            incident.withheld = incident.withheld.max(Some(group.severity));
            group.incident = Some(incident);
            return;
        }
        let severity =
            (incident.withheld.take()).map_or(group.severity, |it| it.max(group.severity));
        if severity > incident.severity {
            incident.severity = severity;
            self.decided = true;
            if is_held {
                incident.due = Some(self.due(incident.severity, now));
                self.notify(group, &mut incident, now, notices);
            } else {
                incident.raised = true;
                let mut notice = group.notice(&incident, NoticeKind::Raised, incident.trigger, now);
                notice.channels = self.channels(group, incident.severity);
                incident.told.extend(notice.channels.iter().cloned());
                notices.push(notice);
            }
        } else if !is_held {
            let trigger = if is_again && triggers.has(Trigger::Again) {
                Some(Trigger::Again)
            } else if is_fast && !incident.rate_told {
                Some(Trigger::Rate)
            } else if now >= incident.growth && triggers.has(Trigger::Growing) {
                Some(Trigger::Growing)
            } else {
                None
            };
            if let Some(trigger) = trigger {
                incident.rate_told |= is_fast;
                // Each time after twice as long: whoever works on it knows.
                incident.growth = match trigger {
                    Trigger::Growing => {
                        let open = since(now, incident.opened).max(self.settings.growing_after);
                        after(now, open)
                    }
                    _ => incident.growth,
                };
                self.decided = true;
                let mut notice = group.notice(&incident, NoticeKind::Updated, trigger, now);
                notice.channels = incident.told.iter().cloned().collect();
                notices.push(notice);
            }
        }
        group.incident = Some(incident);
    }

    pub(super) fn open(
        &mut self,
        group: &mut Group,
        trigger: Trigger,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) {
        if self.is_silenced(group, now) {
            self.state.totals.silenced += 1;
            return;
        }
        let id = group.subject.id();
        let mut incident = Incident {
            id: format!("{}-{id}-{}", self.settings.service, now.as_millisecond()),
            trigger,
            severity: group.severity,
            opened: now,
            due: Some(self.due(group.severity, now)),
            told: BTreeSet::new(),
            rate_told: trigger == Trigger::Rate,
            growth: after(now, self.settings.growing_after),
            ended: false,
            raised: false,
            withheld: None,
        };
        self.state.totals.incidents += 1;
        self.decided = true;
        self.notify(group, &mut incident, now, notices);
        group.incident = Some(incident);
    }

    /// Tells people of an incident, if it is time.
    pub(super) fn notify(
        &mut self,
        group: &Group,
        incident: &mut Incident,
        now: Timestamp,
        notices: &mut Vec<Notice>,
    ) {
        if incident.due.is_none_or(|due| due > now) || self.is_silenced(group, now) {
            return;
        }
        incident.due = None;
        incident.growth = after(now, self.settings.growing_after);
        self.decided = true;
        let mut notice = group.notice(incident, NoticeKind::Opened, incident.trigger, now);
        notice.channels = self.channels(group, incident.severity);
        incident.told = notice.channels.iter().cloned().collect();
        notices.push(notice);
    }

    pub(super) fn resolve(&mut self, group: &mut Group, now: Timestamp, notices: &mut Vec<Notice>) {
        let Some(incident) = group.incident.take() else {
            return;
        };
        group.over = Some(now);
        self.state.totals.resolved += 1;
        self.decided = true;
        // People who were told nothing need not be told that it is over.
        if incident.due.is_none() {
            let mut notice = group.notice(&incident, NoticeKind::Resolved, incident.trigger, now);
            notice.channels = incident.told.iter().cloned().collect();
            notices.push(notice);
        }
    }
}
