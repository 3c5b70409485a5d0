//! The table of results, and the sentences of what failed.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use comfy_table::Table;
use comfy_table::presets::UTF8_FULL_CONDENSED;

use crate::matrix::{Outcome, Verdict};

/// A row per scenario, a column per broker, queue type and driver.
pub fn table(verdicts: &[Verdict]) -> String {
    let column = |verdict: &Verdict| {
        format!(
            "{}\n{}\n{}",
            verdict.driver, verdict.broker, verdict.queue_type
        )
    };
    let mut columns: Vec<String> = Vec::new();
    let mut rows: BTreeMap<&str, BTreeMap<String, String>> = BTreeMap::new();
    for verdict in verdicts {
        let name = column(verdict);
        if !columns.contains(&name) {
            columns.push(name.clone());
        }
        let cell = match verdict.result {
            Outcome::Passed => format!("ok {:.1} s", verdict.took_ms as f64 / 1000.0),
            Outcome::Failed => "FAILED".into(),
            Outcome::Broken => "BROKEN".into(),
            Outcome::NotForThisDriver => "not for it".into(),
        };
        rows.entry(&verdict.scenario)
            .or_default()
            .insert(name, cell);
    }
    columns.sort();
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(std::iter::once("scenario".to_owned()).chain(columns.iter().cloned()));
    for (scenario, cells) in &rows {
        let cells = columns
            .iter()
            .map(|name| cells.get(name).cloned().unwrap_or_else(|| "–".into()));
        table.add_row(std::iter::once((*scenario).to_owned()).chain(cells));
    }
    table.to_string()
}

/// What went wrong in one run, and what a driver cannot do.
pub fn sentences(verdict: &Verdict) -> Option<String> {
    let what = match verdict.result {
        Outcome::Passed | Outcome::NotForThisDriver => return None,
        Outcome::Failed => "FAILED",
        Outcome::Broken => "BROKEN",
    };
    let Verdict {
        scenario,
        driver,
        broker,
        queue_type,
        ..
    } = verdict;
    let mut text = format!("{what} {scenario} ({driver}, RabbitMQ {broker}, {queue_type}):");
    for line in &verdict.because {
        // writing to a String cannot fail
        let _ = write!(text, "\n    {line}");
    }
    Some(text)
}

/// Why scenarios were not for a driver, each said once.
pub fn not_for_drivers(verdicts: &[Verdict]) -> Vec<String> {
    let mut lines: Vec<String> = verdicts
        .iter()
        .filter(|verdict| verdict.result == Outcome::NotForThisDriver)
        .map(|verdict| {
            format!(
                "{} is not for the driver {}: {}",
                verdict.scenario,
                verdict.driver,
                verdict.because.join("; ")
            )
        })
        .collect();
    lines.sort();
    lines.dedup();
    lines
}

/// Prints the table, what is not for a driver, what failed, and the sum.
pub fn print(verdicts: &[Verdict]) {
    println!("{}", table(verdicts));
    not_for_drivers(verdicts)
        .iter()
        .for_each(|line| println!("{line}"));
    // last, because it is what somebody looks for
    verdicts
        .iter()
        .filter_map(sentences)
        .for_each(|text| println!("{text}"));
    println!("{}", summary(verdicts));
}

/// The last line.
pub fn summary(verdicts: &[Verdict]) -> String {
    let count = |outcome| {
        verdicts
            .iter()
            .filter(|verdict| verdict.result == outcome)
            .count()
    };
    format!(
        "{} passed, {} failed, {} broken, {} not for their driver",
        count(Outcome::Passed),
        count(Outcome::Failed),
        count(Outcome::Broken),
        count(Outcome::NotForThisDriver)
    )
}

/// 0 when something ran and nothing failed.
pub fn exit_code(verdicts: &[Verdict]) -> u8 {
    let any = |outcome| verdicts.iter().any(|verdict| verdict.result == outcome);
    u8::from(any(Outcome::Failed) || any(Outcome::Broken) || !any(Outcome::Passed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::QueueKind;

    fn verdict(result: Outcome, because: &[&str]) -> Verdict {
        Verdict {
            scenario: "s".into(),
            broker: "4.3.6".into(),
            queue_type: QueueKind::Quorum,
            driver: "d".into(),
            result,
            because: because.iter().map(|line| (*line).to_owned()).collect(),
            took_ms: 1234,
        }
    }

    #[test]
    fn only_success_that_happened_is_success() {
        let [passed, failed, broken, not] = [
            Outcome::Passed,
            Outcome::Failed,
            Outcome::Broken,
            Outcome::NotForThisDriver,
        ]
        .map(|outcome| verdict(outcome, &[]));
        assert_eq!(exit_code(&[]), 1);
        assert_eq!(exit_code(std::slice::from_ref(&not)), 1);
        assert_eq!(exit_code(&[passed.clone(), not]), 0);
        assert_eq!(exit_code(&[passed.clone(), failed]), 1);
        assert_eq!(exit_code(&[passed, broken]), 1);
    }

    #[test]
    fn a_failure_is_told_in_sentences() {
        let told = sentences(&verdict(Outcome::Failed, &["a: expected this, saw that"])).unwrap();
        assert!(
            told.contains("FAILED s (d, RabbitMQ 4.3.6, quorum)") && told.contains("saw that"),
            "{told}"
        );
        assert_eq!(sentences(&verdict(Outcome::Passed, &[])), None);
        let table = table(&[verdict(Outcome::Failed, &[])]);
        assert!(
            table.contains("FAILED") && table.contains("4.3.6"),
            "{table}"
        );
        assert_eq!(
            not_for_drivers(&[verdict(Outcome::NotForThisDriver, &["it cannot panic"])]).len(),
            1
        );
    }
}
