//! A message as people may see it: its body decoded and masked, its headers without secrets.

use std::{collections::HashMap, sync::Arc};

use retryrmq::{BasicProperties, glob::glob, headers, terminal_escape, types::FieldTable};
use retryrmq_operator::decoding::{Decoded, Format, Hints, decode};
use serde_json::Value;

use super::configuration::{Configuration, Mask};
use crate::{
    intake::value,
    redaction::{HIDDEN, Redaction, hide_path},
};

/// Characters of a body that are shown.
const MOST: usize = 64 * 1024;
/// Queues of the service begin so.
const SERVICE: &str = "retryrmq.";
/// For more queues than this masks are forgotten, and made again.
const MOST_HOMES: usize = 256;
/// Characters of a header's value.
const MOST_VALUE: usize = 2_000;

/// What is hidden of the messages of a queue.
#[derive(Clone, Debug)]
pub(super) struct QueueMasks {
    names: Redaction,
    fields: Vec<String>,
    headers: Redaction,
    body: bool,
}

/// What is hidden of the messages that stand with those of one queue. Made once for each queue that they belong to, not for each message.
pub(super) struct MaskCache<'a> {
    page: &'a Configuration,
    queue: &'a str,
    by_home: HashMap<String, Arc<QueueMasks>>,
}

impl<'a> MaskCache<'a> {
    pub(super) fn new(page: &'a Configuration, queue: &'a str) -> Self {
        Self {
            page,
            queue,
            by_home: HashMap::new(),
        }
    }

    /// Those of a message that belongs to `home`.
    pub(super) fn of(&mut self, home: &str) -> Arc<QueueMasks> {
        if let Some(masks) = self.by_home.get(home) {
            return Arc::clone(masks);
        }
        if self.by_home.len() >= MOST_HOMES {
            self.by_home.clear(); // names are anybody's word
        }
        let masks = Arc::new(QueueMasks::of(self.page, self.queue, home));
        self.by_home.insert(home.to_owned(), Arc::clone(&masks));
        masks
    }
}

/// A body as people see it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ShownBody {
    /// What it is, as `JSON`; nothing of a body that is hidden altogether.
    pub(super) format: Option<&'static str>,
    /// Its bytes.
    pub(super) size: usize,
    pub(super) text: String,
    /// What to know of it.
    pub(super) remark: String,
}

impl ShownBody {
    /// What it is, and its size.
    pub(super) fn what(&self) -> String {
        let size = format!("{} bytes", self.size);
        self.format
            .map_or_else(|| size.clone(), |format| format!("{format}, {size}"))
    }
}

impl QueueMasks {
    /// Those of the policy file for a message that stands with those of `queue`, and belongs to `home`. In a queue of the service may be messages of
    /// any queue, and not all say of which: there every rule holds.
    pub(super) fn of(page: &Configuration, queue: &str, home: &str) -> Self {
        let fits = |mask: &&Mask| {
            queue.starts_with(SERVICE) || [queue, home].iter().any(|name| glob(&mask.queue, name))
        };
        let masks = page.masks.iter().filter(fits);
        let mut all = Self {
            names: Redaction::new(&page.redact),
            fields: Vec::new(),
            headers: Redaction::default(),
            body: false,
        };
        let mut headers = page.redact.clone();
        for mask in masks {
            all.fields.extend(mask.fields.iter().cloned());
            headers.extend(mask.headers.iter().cloned());
            all.body |= mask.body;
        }
        all.headers = Redaction::new(&headers);
        all
    }

    /// The body, decoded as its properties say or as it looks.
    pub(super) fn body(&self, body: &[u8], properties: &BasicProperties) -> ShownBody {
        if self.body {
            return ShownBody {
                size: body.len(),
                remark: "The policy file hides the bodies of this queue.".to_owned(),
                ..ShownBody::default()
            };
        }
        let text = |field: &'_ Option<retryrmq::types::ShortString>| {
            field.as_ref().map(|text| text.as_str().to_owned())
        };
        let (kind, encoding) = (
            text(properties.content_type()),
            text(properties.content_encoding()),
        );
        let hints = Hints {
            content_type: kind.as_deref(),
            content_encoding: encoding.as_deref(),
        };
        let decoded = decode(body, hints, None);
        let format = Some(decoded.format.name());
        let mut remark = match &decoded.truncation {
            Some(end) => format!(
                "Decoded only up to byte {} of the {}: {}",
                end.byte,
                end.within,
                terminal_escape::line(&end.why)
            ),
            None => String::new(),
        };
        let text = match (&decoded.value, decoded.format) {
            (_, Format::ProtobufWire | Format::Binary)
                if !self.names.is_empty() || !self.fields.is_empty() =>
            {
                remark = "Hidden: without a schema its fields have no names, so secrets in it cannot be masked. `retryrmq parked show` shows it.".to_owned();
                String::new()
            }
            (Some(structured @ (Value::Object(_) | Value::Array(_))), _)
                if self.fields.is_empty() || has_fields(structured) =>
            {
                let mut structured = structured.clone();
                self.names.hide(&mut structured);
                for path in &self.fields {
                    hide_path(&mut structured, path);
                }
                terminal_escape::block(&format!("{structured:#}")).into_owned()
            }
            // A rule names fields, and here are none: what it means to hide may stand anywhere.
            _ if !self.fields.is_empty() => {
                remark = "Hidden: the policy file masks fields of this queue, and this body has no fields.".to_owned();
                String::new()
            }
            _ if !self.names.is_empty() && is_almost_json(&decoded) => {
                remark = format!(
                    "Hidden: it looks like JSON but is not valid{}, so secrets in it cannot be masked. `retryrmq parked show` shows it.",
                    match &decoded.truncation {
                        Some(end) => format!(" (byte {})", end.byte),
                        None => String::new(),
                    }
                );
                String::new()
            }
            (_, Format::Empty) => String::new(),
            (Some(Value::String(text)), _) => {
                let mut text = Value::String(text.clone());
                self.names.hide(&mut text);
                terminal_escape::block(text.as_str().unwrap_or_default()).into_owned()
            }
            (Some(other), _) => other.to_string(),
            (None, _) => match std::str::from_utf8(&decoded.bytes) {
                Ok(text) => terminal_escape::block(text).into_owned(),
                Err(_) => {
                    remark = "Unknown format. `retryrmq parked show` shows the bytes, or decodes them with a schema.".to_owned();
                    String::new()
                }
            },
        };
        ShownBody {
            format,
            size: body.len(),
            text: cut(&text, MOST),
            remark,
        }
    }

    /// The publisher's headers; ours are told in words.
    pub(super) fn headers(&self, headers: Option<&FieldTable>) -> Vec<(String, String)> {
        let all = headers.into_iter().flat_map(|table| table.inner().iter());
        all.filter(|(name, _)| !is_ours(name.as_str()))
            .map(|(name, entry)| {
                let shown = match self.headers.is_secret(name.as_str()) {
                    true => HIDDEN.to_owned(),
                    false => {
                        let mut shown = value(entry);
                        self.headers.hide(&mut shown);
                        match shown {
                            Value::String(text) => text,
                            other => other.to_string(),
                        }
                    }
                };
                let name = terminal_escape::line(name.as_str()).into_owned();
                (name, cut(&terminal_escape::line(&shown), MOST_VALUE))
            })
            .collect()
    }
}

/// Whether there is an object anywhere; not deep, because depths were bounded when it was decoded.
fn has_fields(value: &Value) -> bool {
    match value {
        Value::Object(_) => true,
        Value::Array(items) => items.iter().any(has_fields),
        _ => false,
    }
}

/// Whether its fields are there for whoever reads it, and were not for the decoder.
fn is_almost_json(decoded: &Decoded<'_>) -> bool {
    let Some(Value::String(text)) = &decoded.value else {
        return false;
    };
    let text = text.trim_start_matches(|c: char| c.is_whitespace() || c == '\u{feff}');
    let end = decoded.truncation.as_ref();
    decoded.format == Format::Text
        && (text.starts_with(['{', '['])
            || end.is_some_and(|end| end.within == Format::Json.name()))
}

fn is_ours(name: &str) -> bool {
    headers::has_our_prefix(name) || headers::is_of_death(name) || headers::is_count(name)
}

fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use retryrmq::types::AMQPValue;

    use super::*;

    fn page() -> Configuration {
        let text = "[[masks]]\nqueue = \"pay*\"\nfields = [\"card.*\"]\nheaders = [\"x-user\"]\n[[masks]]\nqueue = \"secret\"\nbody = true";
        toml::from_str(text).unwrap()
    }

    #[test]
    fn masks_are_made_once_for_each_queue_and_are_those_of_that_queue() {
        let page = page();
        let mut mask_cache = MaskCache::new(&page, "dead");
        let secret = mask_cache.of("secret");
        assert!(Arc::ptr_eq(&secret, &mask_cache.of("secret")));
        let shown = |masks: &QueueMasks| masks.body(b"card 4711", &BasicProperties::default()).text;
        assert_eq!(shown(&secret), "");
        for number in 0..1_000 {
            assert_eq!(shown(&mask_cache.of(&format!("q{number}"))), "card 4711");
            assert!(mask_cache.by_home.len() <= MOST_HOMES);
        }
        assert_eq!(shown(&mask_cache.of("payments")), "");
    }

    #[test]
    fn what_a_rule_names_is_hidden_and_what_has_no_fields_where_it_names_some() {
        let page = page();
        let plain = BasicProperties::default();
        let body = br#"{"card": {"number": 4711}, "db_password": "p", "id": 7}"#;
        let shown =
            |queue: &str, body: &[u8]| QueueMasks::of(&page, queue, queue).body(body, &plain);
        let masked = shown("payments", body).text;
        for (text, there) in [("4711", false), ("\"p\"", false), ("7", true)] {
            assert_eq!(masked.contains(text), there, "{text}: {masked}");
        }
        assert!(shown("orders", body).text.contains("4711"));
        assert_eq!(shown("secret", body).text, "");
        assert_eq!(shown("payments", b"card 4711").text, "");
        assert_eq!(shown("payments", b"[[\"card 4711\"]]").text, "");
        assert_eq!(shown("orders", b"card 4711").text, "card 4711");
        assert_eq!(shown("orders", b"\x1b[31m\xff").text, "");
        // Fields without names, and characters that change what people see.
        let wire = b"\x0a\x044711\x12\x05\x0a\x034711";
        let hidden = shown("orders", &[&wire[..], &[0x10, 7]].concat());
        assert!(!hidden.text.contains("4711"), "{hidden:?}");
        let odd = shown("orders", "{\"id\": \"\u{202e}4711\u{85}\"}".as_bytes()).text;
        assert!(
            !odd.contains(['\u{202e}', '\u{85}']) && odd.contains("4711"),
            "{odd}"
        );
        assert!(
            !shown("payments", b"{\"Card\": {\"NUMBER\": 4711}}")
                .text
                .contains("4711")
        );
        let twice = serde_json::Value::from("{\"password\":\"4711\"}").to_string();
        assert!(!shown("orders", twice.as_bytes()).text.contains("4711"));
        // What only people can read as JSON.
        for body in [
            "{\"password\": \"4711\", \"score\": NaN}",
            "{\"password\": \"4711\"}\n{\"id\": 7}",
            " {\"password\": \"4711\",}",
            "[{'password': '4711'}]",
            "\u{feff}{\"password\": \"4711\"}",
        ] {
            let hidden = shown("orders", body.as_bytes());
            assert_eq!(hidden.text, "", "{body}");
            assert!(hidden.remark.contains("not valid"), "{body}: {hidden:?}");
        }
        let said = plain.clone().with_content_type("application/json".into());
        let open = QueueMasks::of(&page, "orders", "orders");
        assert_eq!(open.body(b"password=4711", &said).text, "");
        let all: Configuration = toml::from_str("redact = []").unwrap();
        let nothing = QueueMasks::of(&all, "orders", "orders");
        assert_eq!(nothing.body(b"{4711}", &plain).text, "{4711}");
        // What was parked elsewhere is masked as where it belongs, and where that is not known by every rule.
        let elsewhere = |queue: &str, home: &str| {
            let masks = QueueMasks::of(&page, queue, home);
            masks.body(body, &plain).text
        };
        assert!(elsewhere("dead", "orders").contains("4711"));
        let masked = elsewhere("dead", "payments");
        assert!(masked.contains('7') && !masked.contains("4711"), "{masked}");
        assert_eq!(elsewhere("dead", "secret"), "");
        assert_eq!(elsewhere("retryrmq.intake", "retryrmq.intake"), "");
        let mut table = FieldTable::default();
        for name in ["x-user", "Authorization", "x-tenant", "x-retry-error"] {
            table.insert(name.into(), AMQPValue::LongString("value".into()));
        }
        let headers = QueueMasks::of(&page, "payments", "payments").headers(Some(&table));
        let said: Vec<_> = headers
            .iter()
            .map(|(n, v)| (n.as_str(), v.as_str()))
            .collect();
        assert_eq!(
            said,
            [
                ("Authorization", "***"),
                ("x-tenant", "value"),
                ("x-user", "***")
            ]
        );
    }
}
