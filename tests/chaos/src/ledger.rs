//! What was published on one side of a life, and what became of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use retryrmq_harness::{Ledger, Message, Report};

use crate::faults::FaultCounts;
use crate::handler_script::HandlerScript;
use crate::worker;

/// The ledger of one side. Clones write into the same.
#[derive(Clone, Debug)]
pub struct SideLedger {
    ledger: Ledger,
    pages: Arc<Mutex<LedgerEntries>>,
}

#[derive(Debug)]
struct LedgerEntries {
    began: Instant,
    pages: BTreeMap<u32, LedgerEntry>,
    fault_counts: FaultCounts,
    retries: u64,
    repeats: u64,
    /// Attempts that have begun and not ended, by the consumer.
    running: BTreeSet<(usize, u32)>,
    problems: Vec<String>,
    trace: Vec<String>,
}

#[derive(Debug)]
struct LedgerEntry {
    kind: HandlerScript,
    runs: u32,
    /// The attempts and deferrals that were seen: a run more than these came to no end.
    attempts: BTreeSet<String>,
    succeeded: bool,
    reasons: Vec<String>,
}

impl LedgerEntry {
    fn unfinished(&self) -> u32 {
        let attempts = u32::try_from(self.attempts.len()).unwrap_or(u32::MAX);
        self.runs.saturating_sub(attempts)
    }
}

/// What one side of a life came to.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// The balance.
    pub report: Report,
    /// What was done.
    pub fault_counts: FaultCounts,
    /// How many retries there were.
    pub retries: u64,
    /// How often something was published again, because its publisher could not know: each may be a duplicate.
    pub repeats: u64,
    /// What must not be; empty when all is well.
    pub problems: Vec<String>,
    /// Everything that happened, a line each.
    pub trace: Vec<String>,
}

impl Default for SideLedger {
    fn default() -> Self {
        Self::new()
    }
}

impl SideLedger {
    /// Empty ones.
    pub fn new() -> Self {
        let pages = LedgerEntries {
            began: Instant::now(),
            pages: BTreeMap::new(),
            fault_counts: FaultCounts::default(),
            retries: 0,
            repeats: 0,
            running: BTreeSet::new(),
            problems: Vec::new(),
            trace: Vec::new(),
        };
        SideLedger {
            ledger: Ledger::new(),
            pages: Arc::new(Mutex::new(pages)),
        }
    }

    /// Puts a line on the trace.
    pub fn note(&self, line: impl AsRef<str>) {
        let mut pages = self.pages();
        let line = format!(
            "{:>9.3} {}",
            pages.began.elapsed().as_secs_f64(),
            line.as_ref()
        );
        pages.trace.push(line);
    }

    /// Harm was done.
    pub fn harmed(&self, count: impl FnOnce(&mut FaultCounts)) {
        count(&mut self.pages().fault_counts);
    }

    /// Something that must not be.
    pub fn problem(&self, what: impl Into<String>) {
        let what = what.into();
        self.note(format!("PROBLEM: {what}"));
        self.pages().problems.push(what);
    }

    /// A message is about to be published.
    pub fn publishing(&self, number: u32, kind: HandlerScript) {
        let page = LedgerEntry {
            kind,
            runs: 0,
            attempts: BTreeSet::new(),
            succeeded: false,
            reasons: Vec::new(),
        };
        self.pages().pages.insert(number, page);
        self.note(format!("message {number} is published: {kind}"));
    }

    /// Nobody knows whether it was stored, so it is published again.
    pub fn doubtful(&self, number: u32, why: &str) {
        self.pages().repeats += 1;
        self.note(format!("message {number} is published again: {why}"));
    }

    /// The broker has confirmed it.
    pub fn published(&self, number: u32) {
        self.ledger.published(number.to_string());
        self.note(format!("message {number} is confirmed"));
    }

    /// A line that a consumer told.
    pub fn told(&self, process: usize, kind: &str, what: &str) {
        self.note(format!("consumer {process}: {kind} {what}"));
        let (first, rest) = what.split_once(' ').unwrap_or((what, ""));
        let number = first.parse::<u32>();
        match (kind, number) {
            ("begin", Ok(number)) => {
                let mut pages = self.pages();
                pages.running.insert((process, number));
                if let Some(page) = pages.pages.get_mut(&number) {
                    page.runs += 1;
                    page.attempts.insert(rest.to_owned());
                }
            }
            ("done", Ok(number)) => {
                self.ledger.handled(number.to_string());
                if let Some(page) = self.pages().pages.get_mut(&number) {
                    page.succeeded = true;
                }
            }
            ("end", Ok(number)) => drop(self.pages().running.remove(&(process, number))),
            ("event", _) if first == "retried" => self.pages().retries += 1,
            _ => {}
        }
    }

    /// The process of a consumer has ended.
    pub fn gone(&self, process: usize) {
        self.pages().running.retain(|(at, _)| *at != process);
    }

    /// A message was taken out of the parking queue.
    pub fn parked(&self, message: &Message) {
        let number = worker::number(&message.headers());
        let reason = message.header_text("x-retry-parked-reason");
        let reason = reason.unwrap_or_else(|| "what the broker says".into());
        match number {
            Some(number) => self.parked_as(number, reason),
            None => self.problem("a message without a number is parked"),
        }
    }

    fn parked_as(&self, number: u32, reason: String) {
        self.note(format!("message {number} is parked: {reason}"));
        self.ledger.parked(number.to_string());
        if let Some(page) = self.pages().pages.get_mut(&number) {
            page.reasons.push(reason);
        }
    }

    /// A message was found in a queue in the end.
    pub fn queued(&self, queue: &str, message: &Message) {
        if let Some(number) = worker::number(&message.headers()) {
            self.note(format!("message {number} is still in {queue}"));
            self.ledger.queued(number.to_string());
        }
    }

    /// Confirmed messages that were neither handled nor found parked.
    pub fn unsettled(&self) -> Vec<String> {
        let unsettled = self.ledger.unsettled();
        unsettled.iter().map(|number| self.named(number)).collect()
    }

    /// Whether an attempt has begun and not ended.
    pub fn is_running(&self) -> bool {
        !self.pages().running.is_empty()
    }

    fn named(&self, number: &str) -> String {
        let kind = number.parse().ok().and_then(|number: u32| {
            let pages = self.pages();
            pages.pages.get(&number).map(|page| page.kind)
        });
        kind.map_or_else(|| number.to_owned(), |kind| format!("{number} ({kind})"))
    }

    /// Closes the ledger. Where all harm was `gentle`, nothing may have been handled twice.
    pub fn judge(&self, gentle: bool) -> Verdict {
        let report = self.ledger.report();
        let lost: Vec<_> = report.lost.iter().map(|lost| self.named(lost)).collect();
        let pages = self.pages();
        let mut problems = pages.problems.clone();
        if report.published == 0 {
            problems.push("nothing was published, so nothing was tried".into());
        }
        if !lost.is_empty() {
            problems.push(format!("{} lost: {}", lost.len(), lost.join(", ")));
        }
        for (number, page) in &pages.pages {
            let (kind, unfinished) = (page.kind, page.unfinished());
            for reason in &page.reasons {
                if !kind.may_be_parked(reason, unfinished) {
                    problems.push(format!(
                        "message {number} ({kind}) is parked as {reason}, and {unfinished} of its {} runs came to no end",
                        page.runs
                    ));
                }
            }
            if page.succeeded && kind.is_doomed() {
                problems.push(format!("message {number} ({kind}) was handled"));
            }
        }
        if gentle && pages.repeats == 0 && report.duplicates > 0 {
            problems.push(format!(
                "{} handled twice, although consumers were only stopped cleanly",
                report.duplicates
            ));
        }
        Verdict {
            report,
            fault_counts: pages.fault_counts,
            retries: pages.retries,
            repeats: pages.repeats,
            problems,
            trace: pages.trace.clone(),
        }
    }

    /// Closes the ledger of a life that could not be played to its end: what is missing may be anywhere.
    pub fn break_off(&self, why: &str) -> Verdict {
        self.problem(format!("broken off: {why}"));
        let mut report = self.ledger.report();
        report.lost.clear();
        let pages = self.pages();
        Verdict {
            report,
            fault_counts: pages.fault_counts,
            retries: pages.retries,
            repeats: pages.repeats,
            problems: pages.problems.clone(),
            trace: pages.trace.clone(),
        }
    }

    fn pages(&self) -> MutexGuard<'_, LedgerEntries> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(kinds: &[HandlerScript]) -> SideLedger {
        let ledger = SideLedger::new();
        for (number, kind) in (1..).zip(kinds) {
            ledger.publishing(number, *kind);
            ledger.published(number);
        }
        ledger
    }

    fn problems(ledger: &SideLedger, gentle: bool) -> String {
        ledger.judge(gentle).problems.join("; ")
    }

    #[test]
    fn what_was_handled_or_parked_for_a_reason_is_well() {
        let ledger = ledger(&[
            HandlerScript::Fine,
            HandlerScript::FailsAlways,
            HandlerScript::Poison,
        ]);
        ledger.told(0, "begin", "1 1.0");
        ledger.told(0, "done", "1");
        ledger.told(0, "end", "1");
        assert_eq!(ledger.unsettled(), ["2 (fails-always)", "3 (poison)"]);
        ledger.parked_as(2, "exhausted".into());
        ledger.parked_as(3, "delivery-limit".into());
        assert!(ledger.unsettled().is_empty() && !ledger.is_running());
        assert_eq!(problems(&ledger, true), "");
    }

    #[test]
    fn a_message_that_is_nowhere_is_found_missing() {
        let ledger = ledger(&[HandlerScript::Fine, HandlerScript::Fails(1)]);
        ledger.told(0, "done", "1");
        assert_eq!(problems(&ledger, false), "1 lost: 2 (fails 1)");
    }

    #[test]
    fn an_innocent_message_that_is_parked_is_found() {
        let ledger = ledger(&[HandlerScript::Fine]);
        ledger.told(0, "begin", "1 1.0");
        ledger.parked_as(1, "delivery-limit".into());
        assert!(problems(&ledger, false).contains("message 1 (fine) is parked as delivery-limit"));
        for _ in 0..7 {
            ledger.told(0, "begin", "1 1.0");
        }
        assert_eq!(
            problems(&ledger, false),
            "",
            "it was hit seven times itself"
        );
    }

    #[test]
    fn what_is_handled_twice_is_found_where_nobody_was_harmed() {
        let ledger = ledger(&[HandlerScript::Fine]);
        ledger.told(0, "done", "1");
        ledger.told(1, "done", "1");
        assert_eq!(problems(&ledger, false), "");
        assert!(problems(&ledger, true).contains("1 handled twice"));
        ledger.doubtful(1, "its confirm did not come");
        assert_eq!(problems(&ledger, true), "");
    }

    #[test]
    fn what_runs_ends_with_its_process() {
        let ledger = ledger(&[HandlerScript::Fine]);
        ledger.told(2, "begin", "1 1.0");
        assert!(ledger.is_running());
        ledger.gone(1);
        assert!(ledger.is_running());
        ledger.gone(2);
        assert!(!ledger.is_running());
    }
}
