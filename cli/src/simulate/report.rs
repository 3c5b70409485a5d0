//! A forecast as tables, as a plot of the terminal's width, and as JSON.

use console::Style;
use retryrmq::{Forecast, format_duration};
use serde_json::{Value, json};

use super::{
    PolicyForecast, SimulationArgs,
    format::{count, short, time},
    term_plot::{InkStyle, Panel, PanelLine},
};
use crate::{
    error::CliError,
    output::{Column, Output, TableCell, TextStyle},
};

/// The most rows of a table; JSON has all.
const ROWS: usize = 12;
/// Columns where there is no terminal.
const USUAL_WIDTH: usize = 80;
/// Between two plots.
const GAP: usize = 2;

/// The labels of the policies in tables.
const NAMES: [&str; 2] = ["A", "B"];

pub(super) fn print(
    question: &SimulationArgs,
    answers: &[PolicyForecast],
    output: &Output,
) -> Result<(), CliError> {
    heading(question, answers, output)?;
    output.line("")?;
    summary(question, answers, output)?;
    output.line("")?;
    attempts(answers, output)?;
    if answers
        .iter()
        .any(|answer| !answer.forecast.queues.is_empty())
    {
        output.line("")?;
        queues(answers, output)?;
    }
    plots(question, answers, output)
}

fn heading(
    question: &SimulationArgs,
    answers: &[PolicyForecast],
    output: &Output,
) -> Result<(), CliError> {
    for (name, answer) in NAMES.iter().zip(answers) {
        let policy = output.bold(answer.policy.to_string());
        match answers {
            [_] => output.line(&policy)?,
            _ => output.line(&format!("{name}  {policy}"))?,
        }
    }
    let options = &question.options;
    let percent = |share: f64| format!("{}%", short(share * 100.0));
    let mut line = format!(
        "{}/s for {}, {} handlers take {}, {} of attempts fail",
        short(question.rate),
        format_duration(question.lasts),
        options.handlers,
        format_duration(question.handler_time),
        percent(options.fail_rate)
    );
    if options.poison > 0.0 {
        line.push_str(&format!(", {} of messages always", percent(options.poison)));
    }
    output.line(&output.dim(line))?;
    if let Some((start, length)) = question.outage {
        output.line(&output.dim(format!(
            "all fail from {} to {}",
            time(start),
            time(start + length)
        )))?;
    }
    Ok(())
}

fn summary(
    question: &SimulationArgs,
    answers: &[PolicyForecast],
    output: &Output,
) -> Result<(), CliError> {
    let mut rows: Vec<Vec<TableCell>> = Vec::new();
    let mut row = |label: &str, value: &dyn Fn(&Forecast) -> String| {
        let mut row = vec![TextStyle::Dim.of(label)];
        row.extend(
            answers
                .iter()
                .map(|answer| TextStyle::Plain.of(value(&answer.forecast))),
        );
        rows.push(row);
    };
    row("messages", &|forecast| count(forecast.messages));
    row("attempts", &|forecast| count(forecast.attempts));
    row("added by retries", &|forecast| {
        let more = forecast.attempts - forecast.messages;
        format!(
            "+{}%",
            short(more as f64 * 100.0 / forecast.messages as f64)
        )
    });
    row("attempts/s at most", &|forecast| {
        short(busiest(forecast, |_| true))
    });
    if let Some((start, length)) = question.outage {
        let (start, end) = (start.as_secs_f64(), (start + length).as_secs_f64());
        row("  during the outage", &|forecast| {
            short(busiest(forecast, |at| at >= start && at < end))
        });
        row("  after it", &|forecast| {
            short(busiest(forecast, |at| at >= end))
        });
    }
    row("handled", &|forecast| count(forecast.handled));
    row("parked", &|forecast| parked(forecast));
    row("waiting at most", &|forecast| count(forecast.most_waiting));
    row("ready at most", &|forecast| count(forecast.most_ready));
    row("the last is done at", &|forecast| time(forecast.ends));
    let mut columns = vec![Column::left("", 24)];
    columns.extend(names(answers).iter().map(|name| Column::right(name, 26)));
    output.table(&columns, rows)
}

/// The names of the policies as headings; of one policy none.
fn names(answers: &[PolicyForecast]) -> &'static [&'static str] {
    match answers {
        [_] => &[""],
        _ => &NAMES,
    }
}

fn parked(forecast: &Forecast) -> String {
    let all: u64 = forecast.parked.values().sum();
    let reasons: Vec<&str> = forecast.parked.keys().copied().collect();
    match (all, &reasons[..]) {
        (0, _) => "0".to_owned(),
        (all, [reason]) => format!("{} {reason}", count(all)),
        _ => {
            let each = forecast.parked.iter();
            let each: Vec<String> = each
                .map(|(reason, number)| format!("{} {reason}", count(*number)))
                .collect();
            each.join(", ")
        }
    }
}

/// Attempts a second in the busiest moment that begins at such a time, in seconds.
fn busiest(forecast: &Forecast, counts: impl Fn(f64) -> bool) -> f64 {
    let length = forecast.interval.as_secs_f64();
    let intervals = forecast.intervals.iter().enumerate();
    let most = intervals
        .filter(|(index, _)| counts(*index as f64 * length))
        .map(|(_, interval)| interval.attempts)
        .max();
    most.unwrap_or(0) as f64 / length
}

/// When attempts are made, and how they end.
fn attempts(answers: &[PolicyForecast], output: &Output) -> Result<(), CliError> {
    let mut columns = vec![Column::right("attempt", 8)];
    let single = answers.len() == 1;
    for name in NAMES.iter().take(answers.len()) {
        columns.push(Column::right(
            if single {
                "after"
            } else if *name == "A" {
                "A: after"
            } else {
                "B: after"
            },
            10,
        ));
        if single {
            columns.push(Column::right("on average", 10));
        }
        columns.push(Column::right("messages", 11));
        columns.push(Column::right("failed", 11));
    }
    let longest = answers
        .iter()
        .map(|answer| answer.forecast.rounds.len())
        .max()
        .unwrap_or(0);
    let rows = (0..longest.min(ROWS)).map(|index| {
        let mut row = vec![TextStyle::Dim.of(index + 1)];
        for answer in answers {
            let Some(round) = answer.forecast.rounds.get(index) else {
                row.extend(
                    std::iter::repeat_with(|| TextStyle::Plain.of("")).take(if single {
                        4
                    } else {
                        3
                    }),
                );
                continue;
            };
            row.push(TextStyle::Bold.of(time(round.earliest)));
            if single {
                row.push(TextStyle::Plain.of(time(round.average)));
            }
            row.push(TextStyle::Plain.of(count(round.attempts)));
            row.push(TextStyle::Plain.of(count(round.failed)));
        }
        row
    });
    output.table(&columns, rows.collect())?;
    and_more(longest, "attempts", output)
}

fn and_more(all: usize, what: &str, output: &Output) -> Result<(), CliError> {
    if all <= ROWS {
        return Ok(());
    }
    output.line(&output.dim(format!("and {} more {what}: --json has them", all - ROWS)))
}

/// How deep the waiting queues get.
fn queues(answers: &[PolicyForecast], output: &Output) -> Result<(), CliError> {
    let single = answers.len() == 1;
    let mut delays: Vec<_> = answers
        .iter()
        .flat_map(|answer| answer.forecast.queues.keys().copied())
        .collect();
    delays.sort_unstable();
    delays.dedup();
    let mut columns = vec![Column::right("waits", 10)];
    for name in NAMES.iter().take(answers.len()) {
        columns.push(Column::right(
            if single {
                "messages"
            } else if *name == "A" {
                "A: messages"
            } else {
                "B: messages"
            },
            12,
        ));
        columns.push(Column::right("at most", 10));
    }
    let rows = delays.iter().take(ROWS).map(|delay| {
        let mut row = vec![TextStyle::Bold.of(time(*delay))];
        for answer in answers {
            let depth = answer.forecast.queues.get(delay);
            row.push(
                TextStyle::Plain.of(depth.map_or(String::new(), |depth| count(depth.messages))),
            );
            row.push(TextStyle::Plain.of(depth.map_or(String::new(), |depth| count(depth.most))));
        }
        row
    });
    output.table(&columns, rows.collect())?;
    and_more(delays.len(), "waiting queues", output)
}

/// A value for each moment.
type PlotValue = fn(&Forecast) -> Vec<f64>;

/// Side by side, and on the same scale.
fn plots(
    question: &SimulationArgs,
    answers: &[PolicyForecast],
    output: &Output,
) -> Result<(), CliError> {
    let width = output.width().map_or(USUAL_WIDTH, usize::from);
    let each = (width + GAP) / answers.len() - GAP;
    let curves: [(&str, PlotValue, Option<f64>); 3] = [
        ("attempts a second", attempts_curve, Some(question.rate)),
        ("messages that wait for a retry", waiting_curve, None),
        ("messages ready in the work queue", ready_curve, None),
    ];
    for (title, curve, mark) in curves {
        let values: Vec<Vec<f64>> = answers
            .iter()
            .map(|answer| curve(&answer.forecast))
            .collect();
        let top = values.iter().flatten().copied().fold(0.0, f64::max);
        if top <= 0.0 {
            continue;
        }
        let panels = answers
            .iter()
            .zip(&values)
            .enumerate()
            .map(|(index, (_, values))| {
                let name = if answers.len() > 1 {
                    format!("{}: {title}", NAMES[index])
                } else {
                    title.to_owned()
                };
                let panel = Panel {
                    title: &name,
                    values,
                    top,
                    mark,
                    lasts: question.lasts,
                    outage: question
                        .outage
                        .map(|(start, length)| (start, start + length)),
                };
                panel.lines(each)
            });
        output.line("")?;
        beside(&panels.collect::<Vec<_>>(), each, output)?;
    }
    Ok(())
}

fn beside(panels: &[Vec<PanelLine>], each: usize, output: &Output) -> Result<(), CliError> {
    let height = panels.iter().map(Vec::len).max().unwrap_or(0);
    for row in 0..height {
        let mut text = String::new();
        for (index, panel) in panels.iter().enumerate() {
            let Some(line) = panel.get(row) else { continue };
            text.push_str(&output.dim(&line.left));
            for (styled, part) in &line.parts {
                text.push_str(&match styled {
                    InkStyle::Title => output.bold(part),
                    InkStyle::Curve => output.paint(part, colour(index)),
                    InkStyle::Axis => output.dim(part),
                    InkStyle::Outage => output.paint(part, Style::new().red()),
                });
            }
            if index + 1 < panels.len() {
                text.push_str(&" ".repeat((each + GAP).saturating_sub(line.width())));
            }
        }
        output.line(text.trim_end())?;
    }
    Ok(())
}

fn colour(policy: usize) -> Style {
    match policy {
        0 => Style::new().cyan(),
        _ => Style::new().yellow(),
    }
}

/// Attempts a second.
pub(super) fn attempts_curve(forecast: &Forecast) -> Vec<f64> {
    let length = forecast.interval.as_secs_f64();
    let intervals = forecast.intervals.iter();
    intervals
        .map(|interval| interval.attempts as f64 / length)
        .collect()
}

pub(super) fn waiting_curve(forecast: &Forecast) -> Vec<f64> {
    forecast
        .intervals
        .iter()
        .map(|interval| interval.waiting as f64)
        .collect()
}

/// Nothing where the handlers kept up: a message or two are always on their way.
fn ready_curve(forecast: &Forecast) -> Vec<f64> {
    let behind = forecast
        .intervals
        .iter()
        .any(|interval| interval.ready > 100);
    let intervals = forecast.intervals.iter().filter(|_| behind);
    intervals.map(|interval| interval.ready as f64).collect()
}

pub(super) fn as_json(question: &SimulationArgs, answers: &[PolicyForecast]) -> Value {
    let options = &question.options;
    let policies: Vec<Value> = answers.iter().map(policy_as_json).collect();
    json!({
        "rate": question.rate,
        "for_ms": ms(question.lasts),
        "outage": question.outage.map(|(start, length)| json!({"starts_ms": ms(start), "lasts_ms": ms(length)})),
        "fail_rate": options.fail_rate,
        "poison": options.poison,
        "handler_time_ms": ms(question.handler_time),
        "handlers": options.handlers,
        "seed": options.seed,
        "policies": policies,
    })
}

fn policy_as_json(answer: &PolicyForecast) -> Value {
    let forecast = &answer.forecast;
    let rounds: Vec<Value> = forecast
        .rounds
        .iter()
        .enumerate()
        .map(|(index, round)| {
            json!({
                "attempt": index + 1, "attempts": round.attempts, "failed": round.failed,
                "earliest_ms": ms(round.earliest), "average_ms": ms(round.average),
            })
        })
        .collect();
    let queues: Vec<Value> = forecast
        .queues
        .iter()
        .map(|(delay, depth)| {
            json!({
                "delay_ms": ms(*delay), "messages": depth.messages, "most": depth.most,
            })
        })
        .collect();
    let intervals: Vec<Value> = forecast.intervals.iter().map(|interval| json!({
        "arrivals": interval.arrivals, "attempts": interval.attempts, "waiting": interval.waiting, "ready": interval.ready,
    })).collect();
    json!({
        "policy": answer.policy.to_string(),
        "messages": forecast.messages,
        "attempts": forecast.attempts,
        "handled": forecast.handled,
        "parked": forecast.parked,
        "ends_ms": ms(forecast.ends),
        "most_waiting": forecast.most_waiting,
        "most_ready": forecast.most_ready,
        "interval_ms": forecast.interval.as_secs_f64() * 1_000.0,
        "rounds": rounds,
        "queues": queues,
        "intervals": intervals,
    })
}

fn ms(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
