//! `retryrmq parked ls`.

use std::{collections::HashMap, time::SystemTime};

use clap::Args;
use comfy_table::{Attribute, Cell, CellAlignment, Color, ColumnConstraint, Table, Width};
use retryrmq::{Browse, ParkReason, Record};
use serde_json::json;

use super::record;
use crate::{exit::Exit, fault::Fault, global::Global, moment, output::Output, visible};

/// List parked messages, oldest first
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    /// The queue whose parked messages to list (its own name, not that of the parking queue)
    queue: String,

    /// Look at this many messages at most; 0 is all of them
    #[arg(long, value_name = "N", default_value_t = 1000)]
    limit: usize,

    /// One line for each kind of failure, with counts, the most frequent first
    #[arg(long)]
    group: bool,
}

const EXAMPLES: &str = "\
Examples:
  retryrmq parked ls orders
  retryrmq parked ls orders --group            which failures, and how often
  retryrmq parked ls orders --json | jq -r .message_id

JSON, one object a line: place, message_id, parked_at, reason, by_broker,
attempts, error, error_type, fingerprint, exchange, routing_key, replays,
body_bytes. With --group: count, fingerprint, reason, error, error_type,
first_parked_at, last_parked_at.";

pub(crate) async fn run(options: Options, global: &Global, output: &Output) -> Result<Exit, Fault> {
    let client = global.connect().await?;
    let parked = client.parked(&options.queue);
    let mut browse = parked.browse().await?;
    let total = browse.remaining();
    let listed = list(&options, &mut browse, output).await;
    browse.close().await?;
    client.close().await;
    let seen = listed?;
    if seen == 0 {
        output.note(&format!(
            "nothing is parked in {}",
            visible::line(&parked.name())
        ));
    } else if seen < total as usize {
        output.note(&format!(
            "{seen} of {total} parked messages; --limit 0 looks at all of them"
        ));
    }
    Ok(Exit::Ok)
}

async fn list(options: &Options, browse: &mut Browse, output: &Output) -> Result<usize, Fault> {
    let limit = if options.limit == 0 {
        usize::MAX
    } else {
        options.limit
    };
    let mut groups = Groups::default();
    let mut rows = Vec::new();
    let mut seen = 0;
    while seen < limit
        && let Some(record) = browse.next().await?
    {
        seen += 1;
        if options.group {
            groups.add(&record);
        } else if output.is_json() {
            output.json_line(&record::summary(seen, &record))?;
        } else {
            rows.push(row(seen, &record, output));
        }
    }
    if options.group {
        groups.print(output)?;
    } else if !rows.is_empty() {
        print(&listing(rows, output), output)?;
    }
    Ok(seen)
}

/// On a terminal a line break ends each row; what is cut off is said by `show`.
pub(super) fn print(table: &Table, output: &Output) -> Result<(), Fault> {
    table
        .lines()
        .try_for_each(|line| output.line(line.trim_end()))
}

/// The table of `ls`, also what is shown before messages are dropped.
pub(super) fn listing(rows: Vec<Vec<Cell>>, output: &Output) -> Table {
    let mut table = output.table(
        &[
            "#",
            "id",
            "parked",
            "reason",
            "tries",
            "error",
            "fingerprint",
        ],
        rows,
    );
    for index in [0, 4] {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    if let Some(width) = output.width() {
        for (index, most) in [(0, 7), (1, width / 4), (2, 42), (3, 16), (4, 7), (6, 18)] {
            if let Some(column) = table.column_mut(index) {
                column.set_constraint(ColumnConstraint::UpperBoundary(Width::Fixed(most)));
            }
        }
    }
    table
}

/// One row of it.
pub(super) fn row(place: usize, record: &Record, output: &Output) -> Vec<Cell> {
    let message = record.message();
    let wide = output.width().is_none_or(|width| width >= 110);
    let parked = match record.parked_at {
        Some(time) if wide => format!("{} ({})", moment::ago(time), moment::absolute(time)),
        Some(time) => moment::ago(time),
        None => "-".to_owned(),
    };
    let fingerprint = if wide {
        record.fingerprint.as_str()
    } else {
        record.fingerprint.get(..8).unwrap_or_default()
    };
    vec![
        Cell::new(place).add_attribute(Attribute::Dim),
        match message.message_id() {
            Some(id) => Cell::new(visible::line(id)).add_attribute(Attribute::Bold),
            None => Cell::new("-"),
        },
        Cell::new(parked),
        reason(record.reason),
        Cell::new(if record.attempts == 0 {
            "-".to_owned()
        } else {
            record.attempts.to_string()
        }),
        Cell::new(error(record)),
        Cell::new(visible::line(fingerprint)).add_attribute(Attribute::Dim),
    ]
}

fn reason(reason: Option<ParkReason>) -> Cell {
    let Some(reason) = reason else {
        return Cell::new("unknown");
    };
    let color = match reason {
        ParkReason::Exhausted | ParkReason::TooOld | ParkReason::Expired => Color::Yellow,
        ParkReason::Requested => Color::Cyan,
        _ => Color::Red,
    };
    Cell::new(reason).fg(color)
}

/// The error with its type, unless the text says it already.
pub(super) fn error(record: &Record) -> String {
    let (kind, text) = (
        visible::line(&record.error_type),
        visible::line(&record.error),
    );
    if kind.is_empty() || text.contains(&*kind) {
        text.into_owned()
    } else {
        format!("{text} ({kind})")
    }
}

/// Failures that are alike.
#[derive(Default)]
struct Groups(HashMap<(String, Option<ParkReason>), Group>);

struct Group {
    count: usize,
    error: String,
    error_type: String,
    shown: String,
    first: Option<SystemTime>,
    last: Option<SystemTime>,
}

impl Groups {
    fn add(&mut self, record: &Record) {
        let group = self
            .0
            .entry((record.fingerprint.clone(), record.reason))
            .or_insert_with(|| Group {
                count: 0,
                error: record.error.clone(),
                error_type: record.error_type.clone(),
                shown: error(record),
                first: record.parked_at,
                last: record.parked_at,
            });
        group.count += 1;
        group.first = group.first.min(record.parked_at).or(record.parked_at);
        group.last = group.last.max(record.parked_at);
    }

    fn print(self, output: &Output) -> Result<(), Fault> {
        let mut groups: Vec<_> = self.0.into_iter().collect();
        groups.sort_by(|((fingerprint, _), group), ((other, _), more)| {
            more.count.cmp(&group.count).then(fingerprint.cmp(other))
        });
        if output.is_json() {
            return groups
                .iter()
                .try_for_each(|((fingerprint, reason), group)| {
                    output.json_line(&json!({
                        "count": group.count,
                        "fingerprint": fingerprint,
                        "reason": reason.map(|reason| reason.as_str()),
                        "error": group.error,
                        "error_type": group.error_type,
                        "first_parked_at": group.first.and_then(moment::rfc3339),
                        "last_parked_at": group.last.and_then(moment::rfc3339),
                    }))
                });
        }
        if groups.is_empty() {
            return Ok(());
        }
        let age = |time: Option<SystemTime>| time.map_or_else(|| "-".to_owned(), moment::ago);
        let rows = groups.into_iter().map(|((fingerprint, why), group)| {
            vec![
                Cell::new(group.count)
                    .add_attribute(Attribute::Bold)
                    .set_alignment(CellAlignment::Right),
                reason(why),
                Cell::new(age(group.first)),
                Cell::new(age(group.last)),
                Cell::new(group.shown),
                Cell::new(visible::line(&fingerprint)).add_attribute(Attribute::Dim),
            ]
        });
        let mut table = output.table(
            &["count", "reason", "first", "last", "error", "fingerprint"],
            rows,
        );
        if output.width().is_some() {
            for (index, most) in [(0, 8), (1, 16), (2, 13), (3, 13), (5, 18)] {
                if let Some(column) = table.column_mut(index) {
                    column.set_constraint(ColumnConstraint::UpperBoundary(Width::Fixed(most)));
                }
            }
        }
        print(&table, output)
    }
}
