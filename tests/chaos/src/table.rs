//! What many lives came to, as a table.

use std::collections::BTreeMap;
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use retryrmq_harness::{QueueType, Version};

use crate::faults::FaultCounts;
use crate::ledger::Verdict;
use crate::plan::EnvironmentKind;

/// The sums of the lives of one version, ground and type.
#[derive(Clone, Debug, Default)]
struct Row {
    seeds: u64,
    broken: u64,
    fault_counts: FaultCounts,
    messages: usize,
    retries: u64,
    repeats: u64,
    duplicates: u64,
    parked: usize,
    lost: usize,
    time: Duration,
}

/// Sums by version, ground and type.
#[derive(Clone, Debug, Default)]
pub struct Totals(BTreeMap<(Version, String, String), Row>);

impl Totals {
    /// A life is over, after so long.
    pub fn add(
        &mut self,
        version: Version,
        environment_kind: EnvironmentKind,
        work: QueueType,
        verdict: &Verdict,
        time: Duration,
    ) {
        let key = (version, work.to_string(), environment_kind.to_string());
        let row = self.0.entry(key).or_default();
        row.seeds += 1;
        row.broken += u64::from(!verdict.problems.is_empty());
        row.fault_counts += verdict.fault_counts;
        row.messages += verdict.report.published;
        row.retries += verdict.retries;
        row.repeats += verdict.repeats;
        row.duplicates += verdict.report.duplicates;
        row.parked += verdict.report.parked;
        row.lost += verdict.report.lost.len();
        row.time += time;
    }

    /// The table.
    pub fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header([
            "version",
            "queue",
            "on",
            "seeds",
            "consumers\nkilled",
            "consumers\nstopped",
            "handlers\ncrashed",
            "networks\ncut",
            "holders\nkilled",
            "others\nkilled",
            "nodes\nstopped",
            "mended",
            "messages",
            "published\nagain",
            "retries",
            "duplicates",
            "parked",
            "lost",
            "seeds\nbroken",
            "seconds",
        ]);
        for ((version, work, environment_kind), row) in &self.0 {
            let fault_counts = row.fault_counts;
            let figures = [
                row.seeds,
                fault_counts.consumers_killed,
                fault_counts.consumers_stopped,
                fault_counts.crashes,
                fault_counts.cuts,
                fault_counts.holders_killed,
                fault_counts.others_killed,
                fault_counts.nodes_stopped,
                fault_counts.mended,
                row.messages as u64,
                row.repeats,
                row.retries,
                row.duplicates,
                row.parked as u64,
                row.lost as u64,
                row.broken,
                row.time.as_secs(),
            ];
            let names = [version.to_string(), work.clone(), environment_kind.clone()];
            table.add_row(
                names
                    .into_iter()
                    .chain(figures.map(|figure| figure.to_string())),
            );
        }
        for column in table.column_iter_mut().skip(3) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use retryrmq_harness::Report;

    #[test]
    fn the_lives_of_one_kind_are_summed_up() {
        let mut sums = Totals::default();
        let verdict = Verdict {
            report: Report {
                published: 40,
                lost: vec!["7".into()],
                ..Report::default()
            },
            problems: vec!["1 lost".into()],
            ..Verdict::default()
        };
        let second = Duration::from_secs(1);
        for work in [QueueType::Quorum, QueueType::Quorum, QueueType::Classic] {
            sums.add(
                Version::V4_3,
                EnvironmentKind::Cluster,
                work,
                &verdict,
                second,
            );
        }
        let table = sums.table().to_string();
        let quorum = table.lines().find(|line| line.contains("quorum")).unwrap();
        let words: Vec<_> = quorum.split_whitespace().collect();
        assert_eq!(words[..4], ["4.3.0", "quorum", "cluster", "2"]);
        assert_eq!(words[12..13], ["80"]);
        assert_eq!(words[17..], ["2", "2", "2"], "lost, broken, seconds");
    }
}
