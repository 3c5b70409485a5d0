//! What happened to each order, told while it happens and as a table afterwards.

use std::{
    collections::BTreeMap,
    io::IsTerminal,
    sync::{Mutex, MutexGuard},
    time::{Duration, Instant},
};

use comfy_table::{Attribute, Cell, ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use retryrmq::{Event, Record, format_duration};

use crate::orders::Order;

/// One thing that happened to an order.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Published,
    Attempt(u32),
    Waits { delay: Duration, why: String },
    PutOff(Duration),
    Parked { reason: String, why: String },
    Succeeded,
    Replayed,
}

impl Step {
    fn tell(&self) -> String {
        match self {
            Self::Published => "published".to_owned(),
            Self::Attempt(attempt) => format!("attempt {attempt}"),
            Self::Waits { delay, why } => {
                format!("failed ({why}), waits {}", format_duration(*delay))
            }
            Self::PutOff(delay) => format!("put off for {}", format_duration(*delay)),
            Self::Parked { reason, why } => format!("PARKED as {reason}: {why}"),
            Self::Succeeded => "succeeded".to_owned(),
            Self::Replayed => "replayed by the operator".to_owned(),
        }
    }

    fn ends(&self) -> bool {
        matches!(self, Self::Parked { .. } | Self::Succeeded)
    }
}

#[derive(Default)]
struct Stories {
    orders: Vec<Order>,
    steps: BTreeMap<String, Vec<(Duration, Step)>>,
}

/// The stories of all orders.
pub(crate) struct Chronicle {
    began: Instant,
    stories: Mutex<Stories>,
    bar: ProgressBar,
}

impl Chronicle {
    pub(crate) fn new(terminal: bool) -> Self {
        let target = if terminal {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(None, target);
        if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed_precise} {msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(100));
        Self {
            began: Instant::now(),
            stories: Mutex::default(),
            bar,
        }
    }

    pub(crate) fn expect(&self, order: Order) {
        self.lock().orders.push(order);
    }

    /// Takes a step down, and prints it.
    pub(crate) fn note(&self, id: &str, step: Step) {
        let at = self.began.elapsed();
        let line = format!("{:>7.2}s  {id}  {}", at.as_secs_f64(), step.tell());
        let mut stories = self.lock();
        stories
            .steps
            .entry(id.to_owned())
            .or_default()
            .push((at, step));
        let waiting = stories.orders.len() - ended(&stories);
        drop(stories);
        self.bar.set_message(match waiting {
            1 => "1 order is not done yet: it waits in the broker".to_owned(),
            waiting => format!("{waiting} orders are not done yet: they wait in the broker"),
        });
        if self.bar.is_hidden() {
            println!("{line}");
        } else {
            self.bar.suspend(|| println!("{line}"));
        }
    }

    pub(crate) fn event(&self, event: &Event) {
        let (id, step) = match event {
            Event::Retried {
                message_id,
                delay,
                error,
                ..
            } => (
                message_id,
                Step::Waits {
                    delay: *delay,
                    why: error.clone(),
                },
            ),
            Event::Deferred {
                message_id, delay, ..
            } => (message_id, Step::PutOff(*delay)),
            Event::Parked {
                message_id,
                reason,
                error,
                ..
            } => (
                message_id,
                Step::Parked {
                    reason: reason.to_string(),
                    why: error.clone(),
                },
            ),
            _ => return,
        };
        if let Some(id) = id {
            self.note(id, step);
        }
    }

    /// Whether every order is handled or parked.
    pub(crate) fn all_ended(&self) -> bool {
        let stories = self.lock();
        let done = ended(&stories) == stories.orders.len();
        if done {
            self.bar.set_message("done");
        }
        done
    }

    /// Whether every order that was to be parked was parked for its reason, and every other one succeeded; those that
    /// were replayed succeeded in the end.
    pub(crate) fn is_as_planned(&self) -> bool {
        let stories = self.lock();
        stories.orders.iter().all(|order| {
            let steps = stories
                .steps
                .get(order.id)
                .map(Vec::as_slice)
                .unwrap_or_default();
            let parked = steps.iter().find_map(|(_, step)| match step {
                Step::Parked { reason, .. } => Some(reason.as_str()),
                _ => None,
            });
            let replayed = steps.iter().any(|(_, step)| matches!(step, Step::Replayed));
            let succeeded = matches!(newest(steps), Some(Step::Succeeded));
            parked == order.parked && succeeded == (order.parked.is_none() || replayed)
        })
    }

    /// How many orders were handled in the end.
    pub(crate) fn handled(&self) -> usize {
        let stories = self.lock();
        stories
            .steps
            .values()
            .filter(|steps| matches!(newest(steps), Some(Step::Succeeded)))
            .count()
    }

    /// A row an order: what it shows, its runs by time, and how it ended.
    pub(crate) fn table(&self) -> Table {
        self.rows(|steps| !steps.is_empty())
    }

    /// The same for what was replayed.
    pub(crate) fn replay_table(&self) -> Table {
        self.rows(|steps| steps.iter().any(|(_, step)| matches!(step, Step::Replayed)))
    }

    fn rows(&self, with: impl Fn(&[(Duration, Step)]) -> bool) -> Table {
        let mut table = new_table(["order", "shows", "what happened", "runs", "end"]);
        let stories = self.lock();
        for order in &stories.orders {
            let steps = stories
                .steps
                .get(order.id)
                .map(Vec::as_slice)
                .unwrap_or_default();
            if !with(steps) {
                continue;
            }
            let happened: Vec<String> = steps
                .iter()
                .filter(|(_, step)| !matches!(step, Step::Published | Step::Attempt(_)))
                .map(|(at, step)| format!("{:.2}s {}", at.as_secs_f64(), step.tell()))
                .collect();
            // Not the attempt's number: after a replay that starts again, and beside the failures it would puzzle.
            let runs = steps
                .iter()
                .filter(|(_, step)| matches!(step, Step::Attempt(_)))
                .count();
            let end = match newest(steps) {
                Some(Step::Parked { reason, .. }) => format!("parked: {reason}"),
                Some(Step::Succeeded) => "handled".to_owned(),
                _ => "not done".to_owned(),
            };
            table.add_row([
                Cell::new(order.id),
                Cell::new(order.shows),
                Cell::new(happened.join("\n")),
                Cell::new(runs),
                Cell::new(end).add_attribute(Attribute::Bold),
            ]);
        }
        table
    }

    fn lock(&self) -> MutexGuard<'_, Stories> {
        self.stories
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }
}

fn ended(stories: &Stories) -> usize {
    stories
        .steps
        .values()
        .filter(|steps| newest(steps).is_some_and(Step::ends))
        .count()
}

/// What happened to an order last. That it is published is no news after its first attempt: the broker may deliver a
/// message before it confirms it.
fn newest(steps: &[(Duration, Step)]) -> Option<&Step> {
    steps
        .iter()
        .map(|(_, step)| step)
        .rfind(|step| !matches!(step, Step::Published))
}

/// What an operator sees of the parking queue.
pub(crate) fn parked_table(records: &[Record]) -> Table {
    let mut table = new_table(["order", "reason", "error", "attempts", "fingerprint"]);
    for record in records {
        table.add_row([
            record.message().message_id().unwrap_or_default().to_owned(),
            record
                .reason
                .map(|reason| reason.to_string())
                .unwrap_or_default(),
            record.error.clone(),
            record.attempts.to_string(),
            record.fingerprint.clone(),
        ]);
    }
    table
}

pub(crate) fn new_table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    if !std::io::stdout().is_terminal() {
        table.set_width(100); // a page, where nothing says how wide it is
    }
    table.set_header(header);
    table
}
