//! `--edit`: a message as a file for `$VISUAL` or `$EDITOR`. Nothing is cut: what is saved is what is sent.

use std::{
    io::{self, BufRead, Write},
    process::Stdio,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use retryrmq::{BasicProperties, Record, Resend, headers};
use serde_json::{Value, json};
use tokio::process::Command;

use super::{amqp_json, message_ref::handle};
use crate::{error::CliError, output::Output, prompt};
use retryrmq::terminal_escape;

const TEXT: &str = "--- body: text, to the end of the file ---";
const BINARY: &str = "--- body: base64, to the end of the file ---";

/// What a person made of a message.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct EditedContent {
    pub(super) properties: BasicProperties,
    pub(super) body: Vec<u8>,
}

/// The file that a person saved, until the message has gone.
#[derive(Debug)]
pub(super) struct SavedFile(tempfile::NamedTempFile);

impl SavedFile {
    /// Keeps it, because the message has not gone.
    pub(super) fn keep(self, cli_error: CliError) -> CliError {
        match self.0.keep() {
            Ok((_, path)) => {
                let path = path.to_string_lossy();
                cli_error.after(&format!(
                    "what you edited is in {}",
                    terminal_escape::line(&path)
                ))
            }
            Err(_) => cli_error,
        }
    }
}

/// The command that edits a file.
#[derive(Clone, Debug)]
pub(super) struct Editor(Vec<String>);

impl Editor {
    /// `$VISUAL`, then `$EDITOR`, then vi.
    pub(super) fn of_environment() -> Result<Self, CliError> {
        let set = |name: &str| {
            std::env::var(name)
                .ok()
                .filter(|value| !value.trim().is_empty())
        };
        let line = set("VISUAL")
            .or_else(|| set("EDITOR"))
            .unwrap_or_else(|| "vi".to_owned());
        let words = shell_words::split(&line).unwrap_or_default();
        if words.is_empty() {
            return Err(CliError::usage(
                "$VISUAL or $EDITOR is no command line: a quote is not closed",
            ));
        }
        Ok(Self(words))
    }

    /// Lets a person edit what would be sent of a message; none when it is to stay as it is.
    pub(super) async fn edit(
        &self,
        place: usize,
        record: &Record,
        resend: &Resend,
        output: &Output,
    ) -> Result<Option<(EditedContent, SavedFile)>, CliError> {
        let name = name(place, record);
        let cannot =
            |why: io::Error| CliError::failed(format!("cannot write a file to edit: {why}"));
        let original = text_of(resend, &name);
        let mut builder = tempfile::Builder::new();
        let file = builder.prefix("retryrmq-").suffix(".txt").tempfile();
        let mut file = file.map_err(cannot)?;
        file.write_all(original.as_bytes()).map_err(cannot)?;
        file.flush().map_err(cannot)?;
        loop {
            self.run(file.path()).await?;
            // By its path: many editors write a new file and rename it.
            let saved = std::fs::read_to_string(file.path());
            let saved = saved.map_err(|why| {
                CliError::failed(format!(
                    "cannot read what was edited: {why}; nothing was changed"
                ))
            })?;
            if saved == original || saved.trim().is_empty() {
                output.note(&format!("{name}: not changed, and still parked"));
                return Ok(None);
            }
            let why = match content_of(&saved) {
                Ok(content) => return Ok(Some((content, SavedFile(file)))),
                Err(why) => why,
            };
            if !again(&name, &why).await? {
                let cli_error = CliError::usage(format!(
                    "what was edited of {name} is no message: {why}; nothing was changed"
                ));
                return Err(SavedFile(file).keep(cli_error));
            }
        }
    }

    async fn run(&self, path: &std::path::Path) -> Result<(), CliError> {
        let shown = shell_words::join(&self.0);
        let shown = terminal_escape::line(&shown).into_owned();
        let status = Command::new(&self.0[0])
            .args(&self.0[1..])
            .arg(path)
            .stdin(Stdio::inherit())
            .status()
            .await
            .map_err(|why| {
                CliError::usage(format!(
                    "cannot run the editor `{shown}`: {why}; set VISUAL or EDITOR"
                ))
            })?;
        if status.success() {
            return Ok(());
        }
        Err(CliError::failed(format!(
            "the editor `{shown}` failed ({status}); nothing was changed"
        )))
    }
}

fn name(place: usize, record: &Record) -> String {
    let message = record.message();
    match message.message_id() {
        Some(id) => format!("{} ({})", terminal_escape::line(id), handle(place, record)),
        None => handle(place, record),
    }
}

/// Asks whether to edit again; nobody to ask is a no.
async fn again(name: &str, why: &str) -> Result<bool, CliError> {
    if !prompt::can_ask() {
        return Ok(false);
    }
    let mut err = io::stderr().lock();
    let question = format!("{name}: {why}. Edit it again? [Y/n] ");
    err.write_all(terminal_escape::line(&question).as_bytes())?;
    err.flush()?;
    drop(err);
    let answer = tokio::task::spawn_blocking(|| {
        let mut answer = String::new();
        io::stdin()
            .lock()
            .read_line(&mut answer)
            .map(|count| (count, answer))
    });
    let Ok(answer) = answer.await else {
        return Ok(false);
    };
    let (count, answer) = answer?;
    Ok(count > 0
        && matches!(
            answer.trim().to_ascii_lowercase().as_str(),
            "" | "y" | "yes"
        ))
}

/// The file that is edited.
fn text_of(resend: &Resend, name: &str) -> String {
    let properties = resend.properties();
    let mut headers = amqp_json::of_table(&properties.headers().clone().unwrap_or_default());
    if let Some(table) = headers.as_object_mut() {
        table.retain(|name, _| !headers::is_reserved(name));
    }
    let head = json!({
        "properties": amqp_json::of_properties(properties),
        "headers": headers,
    });
    let head = serde_json::to_string_pretty(&head).unwrap_or_default();
    let target = terminal_escape::line(resend.target());
    let notes = format!(
        "# {name}: when you save and close this, it goes to {target} as it stands here.\n\
         # Not changed, or empty: it stays parked. Lines like this one are left out.\n\
         # Headers of other types than text and whole numbers say so: {{\"$timestamp\": 1700000000}}.\n"
    );
    let body = resend.body();
    match readable(body) {
        Some(text) => format!("{notes}{head}\n{TEXT}\n{text}\n"),
        None => format!("{notes}{head}\n{BINARY}\n{}\n", folded(body)),
    }
}

/// Text that an editor leaves as it is.
fn readable(body: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(body).ok()?;
    let odd = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    // A mark of byte order is taken for the file's own, and a carriage return for half a line's end.
    (!text.contains(odd) && !text.starts_with('\u{feff}')).then_some(text)
}

fn folded(body: &[u8]) -> String {
    let text = BASE64_STANDARD.encode(body);
    let lines: Vec<_> = text
        .as_bytes()
        .chunks(76)
        .map(String::from_utf8_lossy)
        .collect();
    lines.join("\n")
}

/// Reads the file.
fn content_of(text: &str) -> Result<EditedContent, String> {
    let (mut head, mut rest) = (String::new(), None);
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        at += line.len();
        let trimmed = line.trim();
        if trimmed == TEXT || trimmed == BINARY {
            rest = Some((trimmed == BINARY, &text[at..]));
            break;
        }
        // A line stays one, so that a mistake is where we say it is.
        head.push_str(if line.starts_with('#') { "\n" } else { line });
    }
    let (is_binary, body) = rest
        .ok_or_else(|| format!("the line `{TEXT}` is missing, which says where the body begins"))?;
    let head: Value =
        serde_json::from_str(&head).map_err(|why| format!("what stands above the body: {why}"))?;
    for name in head
        .as_object()
        .into_iter()
        .flat_map(|entries| entries.keys())
    {
        if !matches!(name.as_str(), "properties" | "headers") {
            return Err(format!("`{name}` is neither `properties` nor `headers`"));
        }
    }
    let empty = json!({});
    let properties = amqp_json::to_properties(head.get("properties").unwrap_or(&empty))?;
    let headers = amqp_json::to_table(head.get("headers").unwrap_or(&empty))?;
    let body = if is_binary {
        let digits: String = body.chars().filter(|c| !c.is_whitespace()).collect();
        let decoded = BASE64_STANDARD.decode(digits);
        decoded.map_err(|why| format!("the body is no base64: {why}"))?
    } else {
        // The line's end that was put there, and that an editor puts there.
        body.strip_suffix('\n').unwrap_or(body).as_bytes().to_vec()
    };
    Ok(EditedContent {
        properties: properties.with_headers(headers),
        body,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(head: &str, mark: &str, body: &str) -> String {
        format!("# a note\n{head}\n{mark}\n{body}")
    }

    #[test]
    fn a_body_comes_back_as_it_was_and_says_when_it_is_binary() {
        for body in ["", "\n", "a", "a\n", "a\n\n# b\n", "{\"ü\": 1}\n--- body\n"] {
            let text = readable(body.as_bytes()).unwrap();
            let content = content_of(&file("{}", TEXT, &format!("{text}\n"))).unwrap();
            assert_eq!(content.body, body.as_bytes());
        }
        for body in [
            &b"\xff\0"[..],
            b"a\r\nb",
            b"\x1b[2J",
            "\u{feff}{}".as_bytes(),
        ] {
            assert_eq!(readable(body), None);
            let content = content_of(&file("{}", BINARY, &folded(&body.repeat(100)))).unwrap();
            assert_eq!(content.body, body.repeat(100));
        }
    }

    #[test]
    fn a_mistake_is_named_with_its_line() {
        for (text, words) in [
            ("# a\n{}\nbody".to_owned(), "is missing"),
            (file("{\n\"headers\": {,}\n}", TEXT, ""), "line 3 column 13"),
            (file("{\"body\": 1}", TEXT, ""), "`body` is neither"),
            (
                file("{\"headers\": {\"a\": {\"$int8\": 999}}}", TEXT, ""),
                "`a`: 999",
            ),
            (file("{}", BINARY, "%%"), "no base64"),
        ] {
            let why = content_of(&text).unwrap_err();
            assert!(why.contains(words), "{why}");
        }
    }
}
