//! The file that `parked export` writes, line by line.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read, Seek},
    path::Path,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use retryrmq::{BasicProperties, terminal_escape, types::FieldTable};
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::Value;

use super::amqp_json;
use crate::error::CliError;

/// One line.
#[derive(Debug, Deserialize)]
pub(super) struct ExportLine {
    #[serde(rename = "retryrmq", deserialize_with = "format")]
    _format: u64,
    #[serde(deserialize_with = "name")]
    pub(super) queue: String,
    #[serde(default)]
    pub(super) dlq: bool,
    #[serde(default)]
    pub(super) mark: Option<String>,
    #[serde(deserialize_with = "name")]
    pub(super) exchange: String,
    #[serde(deserialize_with = "name")]
    pub(super) routing_key: String,
    #[serde(deserialize_with = "properties")]
    pub(super) properties: BasicProperties,
    #[serde(deserialize_with = "headers")]
    pub(super) headers: FieldTable,
    #[serde(rename = "body_base64", deserialize_with = "body")]
    pub(super) body: Vec<u8>,
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
    amqp_json::to_properties(&Value::deserialize(from)?).map_err(D::Error::custom)
}

fn headers<'de, D: Deserializer<'de>>(from: D) -> Result<FieldTable, D::Error> {
    amqp_json::to_table(&Value::deserialize(from)?).map_err(D::Error::custom)
}

fn body<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(from)?;
    BASE64_STANDARD
        .decode(text)
        .map_err(|why| D::Error::custom(format!("body_base64 is no base64: {why}")))
}

/// The lines of a file, with their numbers.
pub(super) struct ExportReader {
    reader: BufReader<File>,
    name: String,
    number: u64,
    from: u64,
}

impl ExportReader {
    pub(super) fn open(path: &Path, from: u64) -> Result<Self, CliError> {
        let shown = path.to_string_lossy();
        let shown = terminal_escape::line(&shown).into_owned();
        let cannot = |why: io::Error| CliError::usage(format!("cannot read {shown}: {why}"));
        let file = if path.as_os_str() == "-" {
            // It is read twice.
            let mut copy = tempfile::tempfile().map_err(cannot)?;
            io::copy(&mut io::stdin().lock(), &mut copy).map_err(cannot)?;
            copy
        } else {
            File::open(path).map_err(cannot)?
        };
        let mut source = Self {
            reader: BufReader::new(file),
            name: shown.clone(),
            number: 0,
            from,
        };
        source.rewind()?;
        Ok(source)
    }

    pub(super) fn rewind(&mut self) -> Result<(), CliError> {
        self.number = 0;
        self.reader
            .rewind()
            .map_err(|why| CliError::usage(format!("cannot read {} twice: {why}", self.name)))
    }

    /// Longer than any message that a broker takes, in base64 and with its headers.
    const LONGEST: u64 = 800 * 1024 * 1024;

    pub(super) fn next(&mut self) -> Result<Option<(u64, ExportLine)>, CliError> {
        loop {
            let Some(text) = self.line()? else {
                return Ok(None);
            };
            if self.number < self.from || text.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let line = serde_json::from_slice(&text).map_err(|why| self.bad(&why))?;
            return Ok(Some((self.number, line)));
        }
    }

    /// Shows the lines before the one to begin with, as far as they can be read, and begins anew.
    pub(super) fn skipped(&mut self, mut see: impl FnMut(ExportLine)) -> Result<(), CliError> {
        while self.number + 1 < self.from {
            let Some(text) = self.line()? else {
                break;
            };
            if let Ok(line) = serde_json::from_slice(&text) {
                see(line);
            }
        }
        self.rewind()
    }

    fn line(&mut self) -> Result<Option<Vec<u8>>, CliError> {
        let mut text = Vec::new();
        let mut line = (&mut self.reader).take(Self::LONGEST);
        let count = line
            .read_until(b'\n', &mut text)
            .map_err(|why| CliError::usage(format!("cannot read {}: {why}", self.name)))?;
        if count == 0 {
            return Ok(None);
        }
        self.number += 1;
        Ok(Some(text))
    }

    fn bad(&self, why: &serde_json::Error) -> CliError {
        let text = why.to_string();
        // The line that it counts is always the first.
        let what = text.split(" at line ").next().unwrap_or(&text);
        CliError::usage(format!(
            "{} line {} column {}: {}",
            self.name,
            self.number,
            why.column(),
            terminal_escape::line(what)
        ))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(line: &str) -> Result<ExportLine, String> {
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
