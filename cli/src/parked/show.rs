//! `retryrmq parked show`.

use clap::Args;
use console::Style;
use retryrmq::{Record, headers};
use retryrmq_operator::{
    decoding::Decoded,
    other_libraries::{DeadLetter, DeadLetterSource, ReplayedMessage},
};

use super::{
    body,
    decode_args::BodyDecoder,
    foreign::{self, PublishedMessage},
    ls,
    message_ref::handle,
    notes::{NoteRow, Notes, OnHiddenHold},
    other_consumers::OtherConsumers,
    record,
    selection::SelectionArgs,
    sort::SortedWalk,
    target,
};
use crate::{
    error::CliError, exit::Exit, global::Global, json, output::Output, shutdown::Shutdown,
    time_format,
};
use retryrmq::terminal_escape;

/// Show everything about parked messages: error, history, stack, headers, body
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES, override_usage = "retryrmq parked show [OPTIONS] <QUEUE> <ID…|--error <TEXT>|--where <CONDITION>|…|--all>")]
pub(crate) struct Options {
    /// The queue (its own name, not that of the parking queue)
    queue: String,

    /// QUEUE is a dead-letter queue itself, whoever fills it: the broker, MassTransit, NServiceBus, Spring, Celery, Dramatiq, Watermill, …
    #[arg(long)]
    dlq: bool,

    #[command(flatten)]
    which: SelectionArgs,

    /// Print the body alone, byte for byte
    #[arg(long, conflicts_with = "json")]
    raw: bool,
}

const EXAMPLES: &str = "\
Examples:
  retryrmq parked show orders order-17
  retryrmq parked show orders '#1'                     the oldest
  retryrmq parked show orders '#3=7c1e09ab'            as `parked ls` shows it
  retryrmq parked show orders '#1' --raw | protoc --decode_raw
  retryrmq parked show orders '#1' --proto shop.pb --type shop.Order
  retryrmq parked show orders --where 'body.customer.id == 7'
  retryrmq parked show orders --all --json | jq .decoded.value

JSON, one object a line: as `parked ls`, and first_failed_at, stack, history,
properties, headers, body (text) or body_base64, and decoded: format, guess,
unwrapped, type, score, value, and truncation with within, byte and why. Of
EasyNetQ's dead letters also original, with properties, headers and body of the
message within, which is what decoded is about.";

pub(crate) async fn run(
    options: Options,
    global: &Global,
    output: &Output,
) -> Result<Exit, CliError> {
    let mut selection = options.which.read()?;
    let shutdown = Shutdown::listen()?;
    let client = global.connect().await?;
    let parked = target::parked(&client, &options.queue, options.dlq);
    let Some(mut walk) = SortedWalk::open(&parked, options.dlq, shutdown.clone()).await? else {
        return Ok(Exit::Interrupted);
    };
    let shown = async {
        let mut shown = 0;
        let work = target::family(&options.queue, options.dlq);
        let notes = Notes::unless_cut(&shutdown, &client, work, OnHiddenHold::IsTold).await?;
        let Some(notes) = notes else {
            return Ok(shown);
        };
        while !selection.ends_by(walk.place)
            && let Some((place, record)) = walk.next().await?
        {
            if selection.takes(place, &record, walk.parking()) {
                let letter = walk.letter(&record);
                let shown_message = (&record, letter.as_ref());
                let about = (&*selection.decoding, &notes);
                show(&options, about, place, shown_message, shown, output)?;
                shown += 1;
            }
        }
        Ok::<_, CliError>(shown)
    }
    .await;
    let (others, stopped) = (OtherConsumers::of(&walk.browse), walk.is_stopped());
    let shown = walk.close_after(shown).await;
    client.close().await;
    let shown = shown?;
    if stopped {
        return Ok(Exit::Interrupted);
    }
    let name = parked.name();
    selection.report_unevaluated(output);
    if let Some(missing) = selection.missing() {
        return Err(others.or_not_found(&missing, &name));
    }
    if shown == 0 {
        return Err(others.or_not_found(selection.described(), &name));
    }
    if others.hold() && !selection.is_named() {
        output.note(&others.sentence(&name));
        return Ok(Exit::Held);
    }
    Ok(Exit::Ok)
}

fn show(
    options: &Options,
    (decoding, notes): (&BodyDecoder, &Notes),
    place: usize,
    (record, letter): (&Record, Option<&DeadLetter>),
    before: usize,
    output: &Output,
) -> Result<(), CliError> {
    if options.raw {
        return output.raw(record.message().body());
    }
    let message = record.message();
    let content = PublishedMessage::of(letter, &message);
    let decoded = decoding.decode(record, &content);
    if output.is_json() {
        let mut all = record::full(place, record, letter);
        if let Some(note) = notes.about(&record.fingerprint) {
            all["about"] = note.json();
        }
        all["decoded"] = record::decoded(&decoded);
        return output.json_line(&all);
    }
    if before > 0 {
        output.line("")?;
    }
    people(place, (record, letter), notes, (&content, &decoded), output)
}

fn people(
    place: usize,
    (record, letter): (&Record, Option<&DeadLetter>),
    notes: &Notes,
    (content, decoded): (&PublishedMessage<'_>, &Decoded<'_>),
    output: &Output,
) -> Result<(), CliError> {
    let message = record.message();
    let id = message
        .message_id()
        .map_or_else(|| "(no id)".into(), terminal_escape::line);
    let reason = record
        .reason
        .map_or("unknown reason", |reason| reason.as_str());
    output.line(&format!(
        "{} {}  {}",
        output.dim(handle(place, record)),
        output.bold(id),
        output.paint(reason, Style::new().yellow())
    ))?;
    let field = |name: &str, value: &str| {
        output.line(&format!("  {} {value}", output.dim(format!("{name:<12}"))))
    };
    field(
        "error",
        &output.paint(ls::error(record), Style::new().red()),
    )?;
    let by = match letter {
        Some(letter) => format!("by {}", letter.library),
        None if record.by_broker => "by the broker".to_owned(),
        None => "by retryrmq".to_owned(),
    };
    let when = record.parked_at.map(|time| {
        format!(
            "{}, {}, {by}",
            time_format::ago(time),
            time_format::absolute(time)
        )
    });
    field("parked", &when.unwrap_or(by))?;
    if let Some(time) = message.first_failed_at() {
        field(
            "first failed",
            &format!(
                "{}, {}",
                time_format::ago(time),
                time_format::absolute(time)
            ),
        )?;
    }
    let attempts = if record.attempts == 0 {
        "not counted".to_owned()
    } else {
        record.attempts.to_string()
    };
    let replays = match message.replays() {
        0 => String::new(),
        1 => ", replayed once before".to_owned(),
        times => format!(", replayed {times} times before"),
    };
    field("attempts", &format!("{attempts}{replays}"))?;
    let exchange = match content.exchange {
        "" => "the default exchange".to_owned(),
        name => format!("exchange {}", terminal_escape::line(name)),
    };
    field(
        "published",
        &format!(
            "to {exchange}, routing key {}",
            terminal_escape::line(content.routing_key)
        ),
    )?;
    let origin = letter.map(|letter| &letter.source);
    match origin {
        Some(DeadLetterSource::Unknown(hint)) if record.home.is_empty() => {
            field(
                "belongs to",
                &format!("an unknown queue: {}", terminal_escape::line(hint)),
            )?;
        }
        _ if record.home.is_empty() => field("belongs to", "an unknown queue")?,
        _ if record.home != message.queue() => {
            field("belongs to", &terminal_escape::line(&record.home))?
        }
        _ => {}
    }
    if let Some(kind) = letter.and_then(|letter| letter.message_type.as_deref()) {
        field("type", &terminal_escape::line(kind))?;
    }
    if let Some((task, arguments)) = foreign::task(record) {
        let task = format!("{task} {arguments}");
        field("task", &terminal_escape::line(&task))?;
    }
    if let Some(ReplayedMessage::Never(why)) = letter.map(|letter| &letter.replay) {
        field("no replay", &terminal_escape::line(why))?;
    }
    field("fingerprint", &terminal_escape::line(&record.fingerprint))?;
    if let Some(note) = notes.about(&record.fingerprint) {
        field("group", &output.bold(note.sentence()))?;
    }
    let properties: Vec<String> = json::properties(&content.properties)
        .iter()
        .filter(|(name, _)| *name != "message_id" || content.is_original)
        .map(|(name, value)| match value.as_str() {
            Some(text) => format!("{name}={}", terminal_escape::line(text)),
            None => format!("{name}={value}"),
        })
        .collect();
    if !properties.is_empty() {
        field("properties", &properties.join("  "))?;
    }
    history(record, output)?;
    if let Some(stack) = &record.stack {
        heading("stack", output)?;
        indented(&terminal_escape::block(stack), output)?;
    }
    headers(content, letter, output)?;
    let shown = body::shown(decoded, content.body.len());
    let what = format!("{}{}", shown.what, wrapped(letter));
    heading(&format!("body  {}", output.dim(what)), output)?;
    for remark in &shown.remarks {
        let remark = output.paint(remark, Style::new().yellow());
        output.line(&format!("    {remark}"))?;
    }
    indented(&shown.text, output)?;
    if shown.rest > 0 {
        let more = format!(
            "… {} more; {} prints it all",
            indicatif::HumanBytes(shown.rest as u64),
            if shown.is_raw && !content.is_original {
                "--raw"
            } else {
                "--json"
            }
        );
        output.line(&format!("    {}", output.dim(more)))?;
    }
    if let Some(dump) = &shown.dump {
        indented(dump, output)?;
    }
    Ok(())
}

fn history(record: &Record, output: &Output) -> Result<(), CliError> {
    if record.history.is_empty() {
        return Ok(());
    }
    heading("history", output)?;
    for entry in &record.history {
        let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(entry.at);
        let version = if entry.app_version.is_empty() {
            String::new()
        } else {
            format!(" {}", terminal_escape::line(&entry.app_version))
        };
        output.line(&format!(
            "    {:>3}  {}  {}  {}",
            entry.attempt,
            output.dim(time_format::absolute(time)),
            terminal_escape::line(&entry.error),
            output.dim(format!(
                "on {}{version}",
                terminal_escape::line(&entry.host)
            ))
        ))?;
    }
    Ok(())
}

/// Our own headers are told above in words; the publisher's are what is left.
fn headers(
    content: &PublishedMessage<'_>,
    letter: Option<&DeadLetter>,
    output: &Output,
) -> Result<(), CliError> {
    let all = content.headers();
    let theirs: Vec<_> = all
        .iter()
        .filter(|(name, _)| {
            !headers::has_our_prefix(name)
                && !headers::is_of_death(name)
                && !headers::is_count(name)
                && !foreign::is_of_failure(letter, name)
        })
        .collect();
    let ours = all.len() - theirs.len();
    if all.is_empty() {
        return Ok(());
    }
    heading("headers", output)?;
    let width = theirs
        .iter()
        .map(|(name, _)| console::measure_text_width(&terminal_escape::line(name)))
        .max()
        .unwrap_or(0)
        .min(32);
    for (name, value) in theirs {
        let name = console::pad_str(
            &terminal_escape::line(name),
            width,
            console::Alignment::Left,
            None,
        )
        .into_owned();
        let value = value.to_string();
        let value = terminal_escape::line(&value);
        let shown = match value.char_indices().nth(2_000) {
            Some((end, _)) => format!("{}… ({} bytes)", &value[..end], value.len()),
            None => value.into_owned(),
        };
        output.line(&format!(
            "    {}  {shown}",
            output.paint(name, Style::new().cyan())
        ))?;
    }
    if ours > 0 {
        let which = if ours == all.len() {
            format!("{ours}, all about its failure")
        } else {
            format!("and {ours} about its failure")
        };
        let shown = output.dim(format!("{which} (--json shows them)"));
        output.line(&format!("    {shown}"))?;
    }
    Ok(())
}

/// Where the body that is shown was.
fn wrapped(letter: Option<&DeadLetter>) -> String {
    match letter {
        Some(letter) if matches!(letter.replay, ReplayedMessage::Original { .. }) => {
            format!(", out of {}'s envelope", letter.library)
        }
        _ => String::new(),
    }
}

fn heading(text: &str, output: &Output) -> Result<(), CliError> {
    output.line(&format!("\n  {}", output.bold(text)))
}

fn indented(text: &str, output: &Output) -> Result<(), CliError> {
    text.lines()
        .try_for_each(|line| output.line(&format!("    {line}")))
}
