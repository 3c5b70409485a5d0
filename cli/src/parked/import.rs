//! `retryrmq parked import`: what `export` has written, parked again.

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
};

use clap::Args;
use retryrmq::{Client, ErrorKind, Parked, SAFE_AGE, parking_queue};
use retryrmq_operator::plural;
use serde_json::json;
use tokio::time::{Instant, sleep_until};

use super::{
    audit::{Audit, AuditLog},
    export_format::{ExportLine, ExportReader},
    target,
};
use crate::{error::CliError, exit::Exit, global::Global, output::Output, shutdown::Shutdown};
use retryrmq::terminal_escape;

/// Park the messages of a file that `parked export` has written
///
/// What was exported with --dlq goes back to that dead-letter queue. The whole file is read before anything happens: a bad line is
/// named, and nothing is imported. The same holds where some of its messages are parked there already. Each message is confirmed.
#[derive(Clone, Debug, Args)]
#[command(override_usage = "retryrmq parked import [OPTIONS] <FILE>", after_help = EXAMPLES)]
pub(crate) struct Options {
    /// The file; `-` is standard input
    file: PathBuf,

    /// Park them for this queue, whichever they were parked for
    #[arg(long, value_name = "QUEUE")]
    queue: Option<String>,

    /// --queue names a dead-letter queue itself, whoever fills it
    #[arg(long, requires = "queue")]
    dlq: bool,

    /// Begin with this line, such as the one where a failed import stopped
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    from_line: u64,

    /// Also park messages that are parked there already: they are there twice then
    #[arg(long)]
    again: bool,

    /// Only read the file: the broker is not asked, not even what is parked already
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    log: AuditLog,
}

const EXAMPLES: &str = "\
Examples:
  retryrmq parked import orders.jsonl
  zcat orders.jsonl.gz | retryrmq parked import - --queue orders-copy
  retryrmq parked import orders.jsonl --queue morgue --dlq

A parking queue that is missing is not made: `retryrmq topology QUEUE --apply`
makes it. A user_id and an expiration come back as headers of ours, as in every
copy of a parked message.

An import looks through the parking queue first, and refuses (exit code 5) if a message of
the file is parked there: the file was imported before, or its messages were exported and
not dropped. Where these are the first lines, --from-line goes on behind them; --again parks
them once more. It does not see what was replayed or dropped since, what others hold, or
messages that have no mark in the file.

A message that no broker takes, because its headers or its body are too large, stops no
other: its line is named at the end (exit code 1).

JSON: imported, lines, refused (the numbers of such lines), how many by queue, and
next_line (for --from-line; null when the whole file was dealt with).";

/// Messages that are on their way at a time.
const WAVE: usize = 64;
/// How many bytes of bodies they have, before the last of them.
const WAVE_BYTES: usize = 16 << 20;

/// Where messages are parked: for a work queue, or in a dead-letter queue itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ImportTarget {
    queue: String,
    dlq: bool,
}

impl ImportTarget {
    fn parked(&self, client: &Client) -> Parked {
        target::parked(client, &self.queue, self.dlq)
    }

    /// The queue that holds them.
    fn parking(&self) -> String {
        match target::family(&self.queue, self.dlq) {
            Some(work) => parking_queue(work),
            None => self.queue.clone(),
        }
    }
}

pub(crate) async fn run(
    options: Options,
    global: &Global,
    output: &Output,
) -> Result<Exit, CliError> {
    let mut source = ExportReader::open(&options.file, options.from_line)?;
    let mut counts: BTreeMap<ImportTarget, u64> = BTreeMap::new();
    let mut marks: BTreeMap<ImportTarget, LinesByMark> = BTreeMap::new();
    let mut unmarked = 0_u64;
    source.skipped(|line| {
        if let Some(mark) = line.mark.as_deref().and_then(hex) {
            let marks = marks.entry(home_of(&options, &line)).or_default();
            marks.entry(mark).or_default().before += 1;
        }
    })?;
    while let Some((number, line)) = source.next().map_err(nothing)? {
        let home = home_of(&options, &line);
        let mark = line.mark.as_deref().and_then(hex);
        unmarked += u64::from(mark.is_none());
        if let Some(mark) = mark.filter(|_| !options.again) {
            let marks = marks.entry(home.clone()).or_default();
            marks.entry(mark).or_default().numbers.push(number);
        }
        *counts.entry(home).or_default() += 1;
    }
    let total: u64 = counts.values().sum();
    let by_queue = || -> BTreeMap<&str, u64> {
        let mut by_queue = BTreeMap::new();
        for (home, count) in &counts {
            *by_queue.entry(home.queue.as_str()).or_default() += count;
        }
        by_queue
    };
    if options.dry_run || total == 0 {
        let from = match options.from_line {
            1 => String::new(),
            line => format!(" from line {line} on"),
        };
        let messages = plural::messages(total);
        output.note(&format!(
            "{messages} in the file{from}; none imported, and the broker was not asked whether some are parked already"
        ));
        if output.is_json() {
            output.json_document(&json!({
                "imported": 0, "lines": total, "refused": [], "queues": by_queue(),
            }))?;
        }
        return Ok(Exit::Ok);
    }
    let shutdown = Shutdown::listen()?;
    let client = global.connect().await?;
    let found = Instant::now();
    all_exist(&client, &counts).await?;
    if unmarked > 0 && !options.again {
        let have = plural::word(
            unmarked,
            "message of the file has",
            "messages of the file have",
        );
        output.note(&format!(
            "{unmarked} {have} no mark: whether parked already is not checked"
        ));
    }
    for (home, marks) in &marks {
        let looked = shutdown.unless_cut(refuse_parked(
            &client,
            home,
            (marks, options.from_line),
            output,
        ));
        match looked.await {
            Some(looked) => looked?,
            None => return Ok(Exit::Interrupted),
        }
        if shutdown.is_set() {
            output.note("stopped: nothing was imported");
            client.close().await;
            return Ok(Exit::Interrupted);
        }
    }
    let of: Vec<_> = counts.keys().map(|home| home.queue.as_str()).collect();
    let audit = Audit::open(
        Some(&options.log),
        (&client, &shutdown),
        "import",
        &of.join(", "),
    )
    .await?;
    source.rewind()?;
    let mut import = Import {
        client: &client,
        options: &options,
        audit,
        imported: 0,
        last: options.from_line - 1,
        refused: Vec::new(),
        why: None,
        is_cut: false,
    };
    let progress = output.progress(Some(total), "imported");
    let done = import.all(&mut source, &shutdown, &progress).await;
    progress.finish_and_clear();
    let (imported, last, refused) = (import.imported, import.last, import.refused);
    let not_all = match refused.is_empty() {
        true => String::new(),
        false => format!("; not imported: {}", lines(&refused)),
    };
    let count = format!(
        "{imported} of {} imported to {}",
        plural::messages(total),
        names(&counts)
    );
    let from_line = format!("go on with --from-line {}", last + 1);
    let is_whole = done.is_ok() && !import.is_cut && imported + (refused.len() as u64) >= total;
    // Whether anybody reads it changes nothing about what happened.
    let printed = match output.is_json() {
        true => output.json_document(&json!({
            "imported": imported, "lines": total, "refused": refused, "queues": by_queue(),
            "next_line": (!is_whole).then_some(last + 1),
        })),
        false => Ok(()),
    };
    if import.is_cut {
        output.note(&format!(
            "stopped: {count}, and perhaps some more{not_all}; {from_line}"
        ));
        return Ok(Exit::Interrupted); // an alarm: what is under way would be done twice
    }
    if imported > 0 {
        sleep_until(found + SAFE_AGE).await;
    }
    client.close().await;
    let summary = format!("{count}{not_all}");
    let go_on = format!("{summary}; {from_line}");
    done.map_err(|cli_error| cli_error.on_the_way().after(&go_on))?;
    if shutdown.is_set() && !is_whole {
        output.note(&go_on);
        return Ok(Exit::Interrupted);
    }
    if let Some(why) = import.why {
        return Err(why.on_the_way().after(&summary));
    }
    output.note(&summary);
    printed.map(|()| Exit::Ok)
}

/// The lines of messages, by their marks.
type LinesByMark = HashMap<u64, SameMark>;

/// The lines of messages that look alike.
#[derive(Debug, Default)]
struct SameMark {
    /// So many are before the line to begin with.
    before: usize,
    numbers: Vec<u64>,
}

/// The number of a mark.
fn hex(mark: &str) -> Option<u64> {
    u64::from_str_radix(mark, 16).ok()
}

/// Refuses where messages of the file are parked already.
async fn refuse_parked(
    client: &Client,
    home: &ImportTarget,
    (marks, from_line): (&LinesByMark, u64),
    output: &Output,
) -> Result<(), CliError> {
    let mut browse = home.parked(client).browse().await?;
    let mut parked: Vec<u64> = Vec::new();
    // Messages that look alike share a mark: as many lines of it are parked as there are records.
    let mut records: HashMap<u64, usize> = HashMap::new();
    let browsed = async {
        while let Some(record) = browse.next().await? {
            let Some(mark) = hex(&record.mark) else {
                continue;
            };
            let Some(lines) = marks.get(&mark) else {
                continue;
            };
            let nth = records.entry(mark).or_default();
            let here = nth.checked_sub(lines.before);
            parked.extend(here.and_then(|at| lines.numbers.get(at)));
            *nth += 1;
        }
        Ok::<_, retryrmq::Error>(())
    }
    .await;
    let is_alone = browse.others() == 0 && browse.missed() == 0;
    let closed = browse.close().await;
    browsed?;
    closed?;
    let place = home.parking();
    let place = terminal_escape::line(&place);
    parked.sort_unstable();
    if let Some(last) = parked.last() {
        let (is, them) = if parked.len() == 1 {
            ("is", "it")
        } else {
            ("are", "them")
        };
        // Otherwise lines that are not parked would be passed over.
        let go_on = match parked.iter().copied().eq(from_line..=*last) {
            true => format!("--from-line {} goes on behind {them}, ", last + 1),
            false => String::new(),
        };
        return Err(CliError::refused(format!(
            "{} of the file {is} parked in {place} already; nothing was imported: {go_on}--again parks {them} once more",
            lines(&parked)
        )));
    }
    if !is_alone {
        output.note(&format!(
            "others hold messages of {place}: whether some of the file are among them is not seen"
        ));
    }
    Ok(())
}

/// `line 3`, `lines 3, 7-12`. All of them, in order: the file may be the only place that has them.
fn lines(numbers: &[u64]) -> String {
    let ranges: Vec<_> = numbers
        .chunk_by(|one, next| one + 1 == *next)
        .map(|range| match range {
            [first, .., last] => format!("{first}-{last}"),
            one => one[0].to_string(),
        })
        .collect();
    let lines = plural::word(numbers.len() as u64, "line", "lines");
    format!("{lines} {}", ranges.join(", "))
}

/// Of a file that is bad before anything has begun.
fn nothing(cli_error: CliError) -> CliError {
    cli_error.after("nothing was imported")
}

fn home_of(options: &Options, line: &ExportLine) -> ImportTarget {
    match &options.queue {
        Some(queue) => ImportTarget {
            queue: queue.clone(),
            dlq: options.dlq,
        },
        None => ImportTarget {
            queue: line.queue.clone(),
            dlq: line.dlq,
        },
    }
}

fn names(counts: &BTreeMap<ImportTarget, u64>) -> String {
    let names: Vec<_> = counts
        .keys()
        .map(|home| terminal_escape::line(&home.parking()).into_owned())
        .collect();
    names.join(", ")
}

async fn all_exist(client: &Client, counts: &BTreeMap<ImportTarget, u64>) -> Result<(), CliError> {
    let parking: Vec<_> = counts.keys().map(ImportTarget::parking).collect();
    let depths = client.depths(&parking).await?;
    let missing = counts.keys().zip(depths).find(|(_, depth)| depth.is_none());
    match missing {
        None => Ok(()),
        Some((home, _)) => {
            let parking = home.parking();
            let make = match target::family(&home.queue, home.dlq) {
                Some(work) => format!(
                    "make it with `retryrmq topology {} --apply`, or ",
                    terminal_escape::line(work)
                ),
                None => String::new(),
            };
            Err(CliError::not_found(format!(
                "there is no queue `{}`; nothing was imported: {make}name another queue with --queue",
                terminal_escape::line(&parking)
            )))
        }
    }
}

struct Import<'a> {
    client: &'a Client,
    options: &'a Options,
    audit: Option<Audit>,
    imported: u64,
    /// The last line that was dealt with: whoever goes on behind it doubles nothing that is confirmed.
    last: u64,
    /// The lines before it that were not imported.
    refused: Vec<u64>,
    /// Why the first of them was not.
    why: Option<CliError>,
    /// Something was still under way when we ended.
    is_cut: bool,
}

impl Import<'_> {
    async fn all(
        &mut self,
        source: &mut ExportReader,
        shutdown: &Shutdown,
        progress: &indicatif::ProgressBar,
    ) -> Result<(), CliError> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        loop {
            let next = source.next()?;
            let is_end = next.is_none();
            let other = match (&next, batch.first()) {
                (Some((_, line)), Some((_, first))) => {
                    home_of(self.options, line) != home_of(self.options, first)
                }
                _ => false,
            };
            if is_end || other || batch.len() >= WAVE || bytes >= WAVE_BYTES {
                bytes = 0;
                self.publish(std::mem::take(&mut batch), shutdown).await?;
                progress.set_position(self.imported);
                if is_end || shutdown.is_set() {
                    return Ok(());
                }
            }
            bytes += next.as_ref().map_or(0, |(_, line)| line.body.len());
            batch.extend(next);
        }
    }

    async fn publish(
        &mut self,
        batch: Vec<(u64, ExportLine)>,
        shutdown: &Shutdown,
    ) -> Result<(), CliError> {
        let Some((_, first)) = batch.first() else {
            return Ok(());
        };
        let home = home_of(self.options, first);
        let lines: Vec<_> = batch
            .iter()
            .map(|(number, line)| (*number, line.mark.clone(), id_of(line)))
            .collect();
        let messages = batch
            .into_iter()
            .map(|(_, line)| {
                let properties = line.properties.with_headers(line.headers);
                (line.exchange, line.routing_key, properties, line.body)
            })
            .collect();
        let parked = home.parked(self.client);
        let Some(answers) = shutdown.unless_cut(parked.restore(messages)).await else {
            self.is_cut = true;
            return Ok(());
        };
        let (mut audited, mut failed, mut cli_error) = (Vec::new(), Vec::new(), None);
        for ((number, mark, id), answer) in lines.into_iter().zip(answers) {
            match answer {
                Ok(()) => {
                    self.imported += 1;
                    self.last = number;
                    self.refused.append(&mut failed);
                    if let Some(audit) = &self.audit {
                        let mut line = audit.line("imported");
                        line["to"] = json!(home.parking());
                        line["mark"] = json!(mark);
                        line["message_id"] = json!(id);
                        audited.push(line);
                    }
                }
                Err(error) => {
                    let is_its_own = error.kind() == ErrorKind::TooLarge;
                    let why = || CliError::from(error).after(&format!("this was line {number}"));
                    if is_its_own {
                        self.last = number;
                        self.refused.append(&mut failed);
                        self.refused.push(number);
                        self.why.get_or_insert_with(why);
                    } else {
                        // Behind the last that was imported it is left to --from-line.
                        failed.push(number);
                        cli_error.get_or_insert_with(why);
                    }
                }
            }
        }
        if let Some(audit) = &mut self.audit {
            let done = "what it does not name may be imported";
            audit.append(&audited, done).await?;
        }
        cli_error.map_or(Ok(()), Err)
    }
}

fn id_of(line: &ExportLine) -> Option<String> {
    let id = line.properties.message_id().as_ref();
    id.map(|id| id.as_str().to_owned())
}

#[cfg(test)]
mod tests {
    use super::lines;

    #[test]
    fn all_lines_are_named() {
        assert_eq!(lines(&[3]), "line 3");
        assert_eq!(lines(&[3, 7, 8]), "lines 3, 7-8");
        let many: Vec<u64> = (1..=60).map(|number| number * 2).collect();
        assert!(lines(&many).ends_with(", 118, 120"));
    }
}
