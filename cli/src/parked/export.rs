//! `retryrmq parked export`: parked messages as JSON lines, lossless.

use std::{
    fs::{File, OpenOptions},
    io::{self, BufWriter, Seek, Write},
    path::{Path, PathBuf},
};

use clap::Args;
use retryrmq::Record;
use retryrmq_operator::plural;
use serde_json::{Value, json};

use super::{
    amqp_json,
    audit::{Audit, AuditLog},
    decode_args::DecodeArgs,
    filter::FilterArgs,
    message_ref::handle,
    notes::{Notes, OnHiddenHold},
    other_consumers::OtherConsumers,
    selection::{Selection, SelectionArgs},
    sort::SortedWalk,
    target,
};
use crate::{
    error::CliError, exit::Exit, global::Global, json, output::Output, shutdown::Shutdown,
};
use retryrmq::terminal_escape;

/// Write parked messages to a file that `parked import` reads
///
/// Every header of every type, all properties and the body are kept exactly. The messages stay parked, unless --remove says otherwise.
#[derive(Clone, Debug, Args)]
#[command(override_usage = "retryrmq parked export [OPTIONS] <QUEUE> [FILE]", after_help = EXAMPLES)]
pub(crate) struct Options {
    /// The queue whose parked messages to export (its own name, not that of the parking queue)
    queue: String,

    /// QUEUE is a dead-letter queue itself, whoever fills it: the broker, MassTransit, NServiceBus, Spring, Celery, Dramatiq, Watermill, …
    #[arg(long)]
    dlq: bool,

    /// The file to write, which must not exist yet; standard output when it is left out
    file: Option<PathBuf>,

    /// Only those whose failures are alike: the fingerprint, or its beginning, as `parked ls` shows it
    #[arg(long, value_name = "HEX")]
    fingerprint: Option<String>,

    /// Only those parked for this reason
    #[arg(long, value_name = "REASON")]
    reason: Option<String>,

    #[command(flatten)]
    filter_args: FilterArgs,

    #[command(flatten)]
    reading: DecodeArgs,

    /// Take each message out of the parking queue once it is on the disk; a group on hold stays, unless --fingerprint names it
    #[arg(long, requires = "file")]
    remove: bool,

    #[command(flatten)]
    log: AuditLog,
}

const EXAMPLES: &str = "\
Examples:
  retryrmq parked export orders orders.jsonl
  retryrmq parked export orders orders.jsonl --remove
  retryrmq parked export orders | gzip > orders.jsonl.gz
  retryrmq parked export orders_error orders_error.jsonl --dlq

A line is a JSON object: retryrmq (the format, 1), queue, mark, exchange and
routing_key (where it was first published), properties, headers, body_base64; and
dlq (true), where queue is a dead-letter queue itself.
Types that JSON lacks say so: {\"$timestamp\": 1700000000}, {\"$int32\": 7}.";

/// Lines that go to the disk together.
const WAVE: usize = 256;
/// Or bytes.
const BYTES: usize = 16 * 1024 * 1024;

pub(crate) async fn run(
    options: Options,
    global: &Global,
    output: &Output,
) -> Result<Exit, CliError> {
    let words = SelectionArgs::every(
        options.fingerprint.clone(),
        options.reason.clone(),
        options.filter_args.clone(),
        options.reading.clone(),
    );
    let mut selection = words.read()?;
    if options.remove {
        selection.refuse_guesses()?;
    }
    let shutdown = Shutdown::listen()?;
    let client = global.connect().await?;
    let parked = target::parked(&client, &options.queue, options.dlq);
    // What is taken out is as gone for others as what is dropped.
    let notes = if options.remove && !selection.wants_a_fingerprint() {
        let work = target::family(&options.queue, options.dlq);
        Notes::unless_cut(&shutdown, &client, work, OnHiddenHold::Refuses).await?
    } else {
        Some(Notes::default())
    };
    let Some(notes) = notes else {
        return Ok(Exit::Interrupted);
    };
    let log = options.remove.then_some(&options.log);
    let audit = Audit::open(log, (&client, &shutdown), "export", &options.queue).await?;
    let Some(mut walk) = SortedWalk::open(&parked, options.dlq, shutdown).await? else {
        return Ok(Exit::Interrupted);
    };
    let mut export = Export {
        sink: Sink::open(options.file.as_deref())?,
        audit,
        notes,
        options: &options,
        batch: Vec::new(),
        bytes: 0,
        written: 0,
        exported: 0,
        removed: 0,
        skipped: 0,
        spared: 0,
    };
    let progress = output.progress(Some(walk.browse.remaining().into()), "looked at");
    let done = export
        .all(&mut walk, &mut selection, output, &progress)
        .await;
    progress.finish_and_clear();
    let (others, stopped) = (OtherConsumers::of(&walk.browse), walk.is_stopped());
    let done = walk.close_after(done).await;
    client.close().await;
    let summary = export.summary();
    done.map_err(|cli_error| cli_error.after(&summary))?;
    let name = parked.name();
    if export.exported == 0
        && export.spared == 0
        && export.skipped == 0
        && !stopped
        && selection.is_narrow()
    {
        return Err(others.or_not_found("like that", &name));
    }
    output.note(&summary);
    if stopped {
        return Ok(Exit::Interrupted);
    }
    if export.skipped > 0 {
        return Ok(Exit::Failed);
    }
    if others.hold() {
        return others.report(&name, output);
    }
    Ok(Exit::Ok)
}

struct Export<'a> {
    sink: Sink,
    audit: Option<Audit>,
    /// What is on hold, where messages are taken out that are not named.
    notes: Notes,
    options: &'a Options,
    batch: Vec<Record>,
    bytes: usize,
    /// How many were written to the file, and may not be on the disk.
    written: u64,
    exported: u64,
    removed: u64,
    skipped: u64,
    /// How many were passed over because they are on hold.
    spared: u64,
}

impl Export<'_> {
    async fn all(
        &mut self,
        walk: &mut SortedWalk,
        selection: &mut Selection,
        output: &Output,
        progress: &indicatif::ProgressBar,
    ) -> Result<(), CliError> {
        while let Some((place, record)) = walk.next().await? {
            progress.set_position(place as u64);
            if !selection.takes(place, &record, walk.parking()) {
                continue;
            }
            if self.notes.holds(&record.fingerprint) {
                self.spared += 1;
                continue;
            }
            if let Some(mended) = record.message().mended() {
                self.skipped += 1;
                let mended = terminal_escape::line(mended).into_owned();
                output.note(&format!(
                    "{}: not exported, because it could not be read as it is ({mended})",
                    handle(place, &record)
                ));
                continue;
            }
            let line = line_of(&self.options.queue, self.options.dlq, &record).to_string();
            self.sink.write(&json::harmless(line))?;
            match self.sink {
                Sink::File(..) => self.written += 1,
                Sink::Output => self.exported += 1,
            }
            self.bytes += record.message().body().len();
            if self.options.remove {
                self.batch.push(record);
            }
            if self.batch.len() >= WAVE || self.bytes >= BYTES {
                self.flush(walk).await?;
            }
        }
        self.flush(walk).await
    }

    /// What was written is on the disk; then what is to be removed goes.
    async fn flush(&mut self, walk: &mut SortedWalk) -> Result<(), CliError> {
        self.bytes = 0;
        self.sink.sync()?;
        self.exported += std::mem::take(&mut self.written);
        let batch = std::mem::take(&mut self.batch);
        if let Some(audit) = &mut self.audit {
            let to = self.options.file.as_deref().map(Path::to_string_lossy);
            let lines: Vec<_> = batch
                .iter()
                .map(|record| audit.of("exported and removed", record, to.as_deref()))
                .collect();
            let done = "what it does not name was not removed";
            audit.append(&lines, done).await?;
        }
        for record in &batch {
            if walk.drop(record).await? {
                self.removed += 1;
            }
        }
        Ok(())
    }

    fn summary(&self) -> String {
        let messages = plural::messages(self.exported);
        let to = match &self.options.file {
            Some(path) => format!(" to {}", terminal_escape::line(&path.to_string_lossy())),
            None => String::new(),
        };
        let rest = match (self.options.remove, self.skipped) {
            (true, 0) => format!(", {} removed", self.removed),
            (true, skipped) => format!(
                ", {} removed; {skipped} could not be exported",
                self.removed
            ),
            (false, 0) => String::new(),
            (false, skipped) => format!("; {skipped} could not be exported"),
        };
        let spared = match self.spared {
            0 => String::new(),
            spared => format!(
                "; {spared} on hold were left alone (`parked ls --group` says why; pass --fingerprint to act on them)"
            ),
        };
        format!("{messages} exported{to}{rest}{spared}")
    }
}

/// The message, and nothing of its place in the queue.
fn line_of(queue: &str, dlq: bool, record: &Record) -> Value {
    let work = target::family(queue, dlq);
    let message = record.message();
    let headers = message.headers().cloned().unwrap_or_default();
    let mut line = json!({
        "retryrmq": 1,
        "queue": work.unwrap_or(queue),
        "mark": record.mark,
        "exchange": message.exchange(),
        "routing_key": message.routing_key(),
        "properties": amqp_json::of_properties(message.properties()),
        "headers": amqp_json::of_table(&headers),
        "body_base64": json::base64(message.body()),
    });
    if work.is_none() {
        line["dlq"] = json!(true);
    }
    line
}

/// Where the lines go.
enum Sink {
    /// With its length as of the last time that all of it was on the disk.
    File(BufWriter<File>, PathBuf, u64),
    Output,
}

impl Sink {
    fn open(path: Option<&Path>) -> Result<Self, CliError> {
        let Some(path) = path else {
            return Ok(Self::Output);
        };
        if path == Path::new("-") {
            return Err(CliError::usage(
                "leave out the file to write to standard output; nothing was exported",
            ));
        }
        let mut options = OpenOptions::new();
        let options = options.write(true).create_new(true);
        #[cfg(unix)]
        let options = std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
        let file = options.open(path).map_err(|why| {
            let shown = path.to_string_lossy();
            let shown = terminal_escape::line(&shown);
            if why.kind() == io::ErrorKind::AlreadyExists {
                CliError::usage(format!(
                    "{shown} exists: name a new file; nothing was exported"
                ))
            } else {
                CliError::usage(format!("cannot make {shown}: {why}; nothing was exported"))
            }
        })?;
        Ok(Self::File(BufWriter::new(file), path.to_owned(), 0))
    }

    fn write(&mut self, line: &str) -> Result<(), CliError> {
        match self {
            Self::File(file, ..) => file
                .write_all(line.as_bytes())
                .and_then(|()| file.write_all(b"\n"))
                .map_err(|why| self.broken(&why)),
            Self::Output => {
                let mut out = io::stdout().lock();
                out.write_all(line.as_bytes())
                    .and_then(|()| out.write_all(b"\n"))
                    .map_err(|why| unread(&why))
            }
        }
    }

    /// Returns when all of it is on the disk, the file's name as well.
    fn sync(&mut self) -> Result<(), CliError> {
        match self {
            Self::File(file, path, whole) => {
                let synced = file
                    .flush()
                    .and_then(|()| file.get_ref().sync_all())
                    .and_then(|()| sync_folder(path))
                    .and_then(|()| file.stream_position());
                match synced {
                    Ok(length) => *whole = length,
                    Err(why) => return Err(self.broken(&why)),
                }
                Ok(())
            }
            Self::Output => io::stdout().lock().flush().map_err(|why| unread(&why)),
        }
    }

    /// Takes off what is not known to be on the disk, so that half a line does not spoil the rest for `import`.
    fn broken(&mut self, why: &io::Error) -> CliError {
        match std::mem::replace(self, Self::Output) {
            Self::File(file, path, whole) => {
                // Without what is buffered: dropping it would write that behind the end.
                let (file, _) = file.into_parts();
                let _ = file.set_len(whole);
                let path = path.to_string_lossy();
                CliError::failed(format!(
                    "cannot write {}: {why}",
                    terminal_escape::line(&path)
                ))
            }
            Self::Output => unread(why),
        }
    }
}

fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// A reader who has gone is no reason to be content, as elsewhere: a copy that is not whole must not be taken for one that is.
fn unread(why: &io::Error) -> CliError {
    CliError::failed(format!(
        "cannot write the output: {why}; not all of it is where it should be"
    ))
}
