//! Figures as tables: median, spread, and ratios round by round.

use std::{collections::BTreeMap, fs::OpenOptions, io::Write};

use comfy_table::{Table, presets};

use crate::cases::Measured;

/// All rounds of one case.
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) rounds: Vec<Measured>,
}

impl Row {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            rounds: Vec::new(),
        }
    }

    fn values(&self, figure: &str) -> Vec<f64> {
        self.rounds.iter().map(|round| round.get(figure)).collect()
    }
}

/// A line for `tests/bench/table`, in the file `RETRYRMQ_BENCH_FIGURES` if that is set.
pub(crate) fn keep(group: &str, kind: &str, count: usize, rows: &[Row]) {
    let Ok(path) = std::env::var("RETRYRMQ_BENCH_FIGURES") else {
        return;
    };
    let rounds: BTreeMap<&str, &[Measured]> = rows
        .iter()
        .map(|row| (row.name.as_str(), row.rounds.as_slice()))
        .collect();
    let line = serde_json::json!({
        "language": "Rust", "group": group, "kind": kind, "count": count, "rounds": rounds,
    });
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .expect("the file of figures");
    writeln!(file, "{line}").expect("written");
}

/// Messages per second and CPU per message, and each case's pace as a ratio to the peers, pair by pair.
pub(crate) fn pace(rows: &[Row], peers: &[&str]) -> Table {
    let mut table = table();
    let mut header = vec![
        "case".to_owned(),
        "messages/s".to_owned(),
        "client CPU µs each".to_owned(),
    ];
    header.extend(peers.iter().map(|peer| format!("pace × {peer}")));
    table.set_header(header);
    for row in rows {
        let mut cells = vec![
            row.name.clone(),
            spread(row.values("per_second"), 0),
            spread(row.values("cpu_us"), 1),
        ];
        for peer in peers {
            let base = rows
                .iter()
                .find(|row| row.name == *peer)
                .map(|row| row.values("per_second"))
                .unwrap_or_default();
            let ratios = row
                .values("per_second")
                .iter()
                .zip(base)
                .map(|(ours, theirs)| ours / theirs)
                .collect();
            cells.push(spread(ratios, 2));
        }
        table.add_row(cells);
    }
    table
}

pub(crate) fn lateness(rows: &[Row]) -> Table {
    let mut table = table();
    table.set_header(["case", "p50 ms", "p99 ms", "max ms"]);
    for row in rows {
        let figures = ["p50_ms", "p99_ms", "max_ms"].map(|figure| spread(row.values(figure), 1));
        table.add_row([vec![row.name.clone()], figures.to_vec()].concat());
    }
    table
}

/// What an outage made a client do, and what was left of it: figures of one round each.
pub(crate) fn outage(rows: &[Row]) -> Table {
    let mut table = table();
    table.set_header([
        "case",
        "failed attempts",
        "parked or dead",
        "seconds until all was done",
        "client CPU µs each",
    ]);
    for row in rows {
        let figures = [
            ("attempts", 0),
            ("parked", 0),
            ("after_s", 1),
            ("cpu_us", 0),
        ]
        .map(|(figure, digits)| spread(row.values(figure), digits));
        table.add_row([vec![row.name.clone()], figures.to_vec()].concat());
    }
    table
}

/// What a client keeps while messages wait: with a tenth of them, with half and with all.
pub(crate) fn memory(rows: &[Row]) -> Table {
    let mut table = table();
    table.set_header([
        "case",
        "held by the client",
        "KiB at a tenth",
        "at half",
        "at the end",
        "bytes each",
    ]);
    for row in rows {
        let figures = ["held", "begin_kib", "half_kib", "end_kib", "bytes_each"]
            .map(|figure| spread(row.values(figure), 0));
        table.add_row([vec![row.name.clone()], figures.to_vec()].concat());
    }
    table
}

/// The median, and in brackets the smallest and the largest where there are several.
fn spread(mut values: Vec<f64>, digits: usize) -> String {
    values.sort_by(f64::total_cmp);
    match (values.first(), values.get(values.len() / 2), values.last()) {
        (Some(only), ..) if values.len() == 1 && !only.is_nan() => format!("{only:.digits$}"),
        // What was not measured is no number.
        (Some(low), Some(median), Some(high)) if !median.is_nan() => {
            format!("{median:.digits$} [{low:.digits$} – {high:.digits$}]")
        }
        _ => "–".to_owned(),
    }
}

fn table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table
}
