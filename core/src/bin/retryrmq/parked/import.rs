//! `retryrmq parked import`: what `export` has written, parked again.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufRead, BufReader, Read, Seek},
    path::PathBuf,
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use clap::Args;
use retryrmq::{BasicProperties, Client, Parked, parking_queue, types::FieldTable};
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use super::{
    audit::{Audit, Log},
    lossless, place,
};
use crate::{exit::Exit, fault::Fault, global::Global, output::Output, stop::Stop};
use retryrmq::visible;

/// Park the messages of a file that `parked export` has written
///
/// What was exported with --dlq goes back to that dead-letter queue. The whole file is read before anything happens: a bad line is named, and nothing is imported. Each message is confirmed. What is
/// imported twice is there twice.
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

    /// Only read the file
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    log: Log,
}

const EXAMPLES: &str = "\
Examples:
  retryrmq parked import orders.jsonl
  zcat orders.jsonl.gz | retryrmq parked import - --queue orders-copy
  retryrmq parked import orders.jsonl --queue morgue --dlq

A parking queue that is missing is not made: `retryrmq topology QUEUE --apply`
makes it. A user_id and an expiration come back as headers of ours, as in every
copy of a parked message.

JSON: imported, and how many by queue.";

/// Messages that are on their way at a time.
const WAVE: usize = 64;
/// A younger queue forgets what it confirmed when its broker is killed.
const SAFE_AGE: Duration = Duration::from_secs(2);

/// Where messages are parked: for a work queue, or in a dead-letter queue itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Home {
    queue: String,
    dlq: bool,
}

impl Home {
    fn parked(&self, client: &Client) -> Parked {
        place::parked(client, &self.queue, self.dlq)
    }

    /// The queue that holds them.
    fn parking(&self) -> String {
        match place::family(&self.queue, self.dlq) {
            Some(work) => parking_queue(work),
            None => self.queue.clone(),
        }
    }
}

/// One line.
#[derive(Debug, Deserialize)]
struct Line {
    #[serde(rename = "retryrmq", deserialize_with = "format")]
    _format: u64,
    #[serde(deserialize_with = "name")]
    queue: String,
    #[serde(default)]
    dlq: bool,
    #[serde(default)]
    mark: Option<String>,
    #[serde(deserialize_with = "name")]
    exchange: String,
    #[serde(deserialize_with = "name")]
    routing_key: String,
    #[serde(deserialize_with = "properties")]
    properties: BasicProperties,
    #[serde(deserialize_with = "headers")]
    headers: FieldTable,
    #[serde(rename = "body_base64", deserialize_with = "body")]
    body: Vec<u8>,
}

fn format<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    match u64::deserialize(from)? {
        1 => Ok(1),
        other => Err(D::Error::custom(format!(
            "the format is {other}, and this version reads 1"
        ))),
    }
}

fn name<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let name = String::deserialize(from)?;
    if name.len() > 255 {
        return Err(D::Error::custom("a name of more than 255 bytes"));
    }
    Ok(name)
}

fn properties<'de, D: Deserializer<'de>>(from: D) -> Result<BasicProperties, D::Error> {
    lossless::to_properties(&Value::deserialize(from)?).map_err(D::Error::custom)
}

fn headers<'de, D: Deserializer<'de>>(from: D) -> Result<FieldTable, D::Error> {
    lossless::to_table(&Value::deserialize(from)?).map_err(D::Error::custom)
}

fn body<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(from)?;
    BASE64_STANDARD
        .decode(text)
        .map_err(|why| D::Error::custom(format!("body_base64 is no base64: {why}")))
}

pub(crate) async fn run(options: Options, global: &Global, output: &Output) -> Result<Exit, Fault> {
    let mut source = Source::open(&options)?;
    let mut counts: BTreeMap<Home, u64> = BTreeMap::new();
    while let Some((_, line)) = source.next().map_err(nothing)? {
        *counts.entry(home_of(&options, &line)).or_default() += 1;
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
        output.note(&format!("{total} messages in the file; none imported"));
        if output.is_json() {
            output
                .json_document(&json!({ "imported": 0, "lines": total, "queues": by_queue() }))?;
        }
        return Ok(Exit::Ok);
    }
    let stop = Stop::listen()?;
    let client = global.connect().await?;
    let found = Instant::now();
    all_exist(&client, &counts).await?;
    let of: Vec<_> = counts.keys().map(|home| home.queue.as_str()).collect();
    let audit = Audit::open(
        Some(&options.log),
        (&client, &stop),
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
        is_cut: false,
    };
    let progress = output.progress(Some(total), "imported");
    let done = import.all(&mut source, &stop, &progress).await;
    progress.finish_and_clear();
    if import.is_cut {
        output.note(&format!(
            "stopped: {} of {total} messages imported to {}, and perhaps some more; go on with --from-line {}",
            import.imported,
            names(&counts),
            import.last + 1
        ));
        return Ok(Exit::Interrupted); // an alarm: what is under way would be done twice
    }
    if import.imported > 0 {
        sleep_until(found + SAFE_AGE).await;
    }
    client.close().await;
    let (imported, last) = (import.imported, import.last);
    let summary = format!(
        "{imported} of {total} messages imported to {}",
        names(&counts)
    );
    let go_on = format!("{summary}; go on with --from-line {}", last + 1);
    done.map_err(|fault| fault.after(&go_on))?;
    if output.is_json() {
        output.json_document(
            &json!({ "imported": imported, "lines": total, "queues": by_queue() }),
        )?;
    }
    if stop.is_set() && imported < total {
        output.note(&go_on);
        return Ok(Exit::Interrupted);
    }
    output.note(&summary);
    Ok(Exit::Ok)
}

/// Of a file that is bad before anything has begun.
fn nothing(fault: Fault) -> Fault {
    fault.after("nothing was imported")
}

fn home_of(options: &Options, line: &Line) -> Home {
    match &options.queue {
        Some(queue) => Home {
            queue: queue.clone(),
            dlq: options.dlq,
        },
        None => Home {
            queue: line.queue.clone(),
            dlq: line.dlq,
        },
    }
}

fn names(counts: &BTreeMap<Home, u64>) -> String {
    let names: Vec<_> = counts
        .keys()
        .map(|home| visible::line(&home.parking()).into_owned())
        .collect();
    names.join(", ")
}

async fn all_exist(client: &Client, counts: &BTreeMap<Home, u64>) -> Result<(), Fault> {
    let parking: Vec<_> = counts.keys().map(Home::parking).collect();
    let depths = client.depths(&parking).await?;
    let missing = counts.keys().zip(depths).find(|(_, depth)| depth.is_none());
    match missing {
        None => Ok(()),
        Some((home, _)) => {
            let parking = home.parking();
            let make = match place::family(&home.queue, home.dlq) {
                Some(work) => format!(
                    "make it with `retryrmq topology {} --apply`, or ",
                    visible::line(work)
                ),
                None => String::new(),
            };
            Err(Fault::not_found(format!(
                "there is no queue `{}`; nothing was imported: {make}name another queue with --queue",
                visible::line(&parking)
            )))
        }
    }
}

struct Import<'a> {
    client: &'a Client,
    options: &'a Options,
    audit: Option<Audit>,
    imported: u64,
    /// The last line up to which all is confirmed.
    last: u64,
    /// Something was still under way when we ended.
    is_cut: bool,
}

impl Import<'_> {
    async fn all(
        &mut self,
        source: &mut Source,
        stop: &Stop,
        progress: &indicatif::ProgressBar,
    ) -> Result<(), Fault> {
        let mut wave = Vec::new();
        loop {
            let next = source.next()?;
            let is_end = next.is_none();
            let other = match (&next, wave.first()) {
                (Some((_, line)), Some((_, first))) => {
                    home_of(self.options, line) != home_of(self.options, first)
                }
                _ => false,
            };
            if is_end || other || wave.len() >= WAVE {
                self.publish(std::mem::take(&mut wave), stop).await?;
                progress.set_position(self.imported);
                if is_end || stop.is_set() {
                    return Ok(());
                }
            }
            wave.extend(next);
        }
    }

    async fn publish(&mut self, wave: Vec<(u64, Line)>, stop: &Stop) -> Result<(), Fault> {
        let Some((_, first)) = wave.first() else {
            return Ok(());
        };
        let home = home_of(self.options, first);
        let lines: Vec<_> = wave
            .iter()
            .map(|(number, line)| (*number, line.mark.clone(), id_of(line)))
            .collect();
        let messages = wave
            .into_iter()
            .map(|(_, line)| {
                let properties = line.properties.with_headers(line.headers);
                (line.exchange, line.routing_key, properties, line.body)
            })
            .collect();
        let parked = home.parked(self.client);
        let Some(answers) = stop.unless_cut(parked.restore(messages)).await else {
            self.is_cut = true;
            return Ok(());
        };
        let (mut audited, mut fault) = (Vec::new(), None);
        for ((number, mark, id), answer) in lines.into_iter().zip(answers) {
            match answer {
                Ok(()) => {
                    self.imported += 1;
                    if fault.is_none() {
                        self.last = number;
                    }
                    if let Some(audit) = &self.audit {
                        let mut line = audit.line("imported");
                        line["to"] = json!(home.parking());
                        line["mark"] = json!(mark);
                        line["message_id"] = json!(id);
                        audited.push(line);
                    }
                }
                Err(error) => {
                    fault.get_or_insert_with(|| {
                        Fault::from(error).after(&format!("this was line {number}"))
                    });
                }
            }
        }
        if let Some(audit) = &mut self.audit {
            let done = "what it does not name may be imported";
            audit.append(&audited, done).await?;
        }
        fault.map_or(Ok(()), Err)
    }
}

fn id_of(line: &Line) -> Option<String> {
    let id = line.properties.message_id().as_ref();
    id.map(|id| id.as_str().to_owned())
}

/// The lines of a file, with their numbers.
struct Source {
    reader: BufReader<File>,
    name: String,
    number: u64,
    from: u64,
}

impl Source {
    fn open(options: &Options) -> Result<Self, Fault> {
        let shown = options.file.to_string_lossy();
        let shown = visible::line(&shown).into_owned();
        let cannot = |why: io::Error| Fault::usage(format!("cannot read {shown}: {why}"));
        let file = if options.file.as_os_str() == "-" {
            // It is read twice.
            let mut copy = tempfile::tempfile().map_err(cannot)?;
            io::copy(&mut io::stdin().lock(), &mut copy).map_err(cannot)?;
            copy
        } else {
            File::open(&options.file).map_err(cannot)?
        };
        let mut source = Self {
            reader: BufReader::new(file),
            name: shown.clone(),
            number: 0,
            from: options.from_line,
        };
        source.rewind()?;
        Ok(source)
    }

    fn rewind(&mut self) -> Result<(), Fault> {
        self.number = 0;
        self.reader
            .rewind()
            .map_err(|why| Fault::usage(format!("cannot read {} twice: {why}", self.name)))
    }

    /// Longer than any message that a broker takes, in base64 and with its headers.
    const LONGEST: u64 = 800 * 1024 * 1024;

    fn next(&mut self) -> Result<Option<(u64, Line)>, Fault> {
        loop {
            let mut text = Vec::new();
            let mut line = (&mut self.reader).take(Self::LONGEST);
            let count = line
                .read_until(b'\n', &mut text)
                .map_err(|why| Fault::usage(format!("cannot read {}: {why}", self.name)))?;
            if count == 0 {
                return Ok(None);
            }
            self.number += 1;
            if self.number < self.from || text.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let line = serde_json::from_slice(&text).map_err(|why| self.bad(&why))?;
            return Ok(Some((self.number, line)));
        }
    }

    fn bad(&self, why: &serde_json::Error) -> Fault {
        let text = why.to_string();
        // The line that it counts is always the first.
        let what = text.split(" at line ").next().unwrap_or(&text);
        Fault::usage(format!(
            "{} line {} column {}: {}",
            self.name,
            self.number,
            why.column(),
            visible::line(what)
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Line, String> {
        serde_json::from_str(line).map_err(|why| why.to_string())
    }

    #[test]
    fn a_line_is_read_and_a_bad_one_says_where() {
        let good = json!({"retryrmq": 1, "queue": "orders", "exchange": "", "routing_key": "orders",
            "properties": {"message_id": "7"}, "headers": {"a": {"$int8": 1}}, "body_base64": "AAE="});
        let line = read(&good.to_string()).unwrap();
        assert_eq!((line.body, line.queue.as_str()), (vec![0, 1], "orders"));
        for (name, value, words) in [
            ("retryrmq", json!(2), "the format is 2"),
            ("body_base64", json!("%"), "no base64"),
            ("headers", json!({"a": {"$int8": 999}}), "`a`: 999"),
            ("properties", json!({"colour": 1}), "no property `colour`"),
            ("exchange", json!("x".repeat(256)), "255 bytes"),
        ] {
            let mut bad = good.clone();
            bad[name] = value;
            let why = read(&bad.to_string()).unwrap_err();
            assert!(why.contains(words) && why.contains("column"), "{why}");
        }
    }
}
