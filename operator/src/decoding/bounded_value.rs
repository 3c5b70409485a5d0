//! A decoded value while it is being built: within its bounds at any moment, and sound wherever the bytes break off.

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Map, Value, json};

/// Values that a decoded body has at most, those within lists and maps counted.
pub(super) const MOST_VALUES: usize = 1 << 17;
/// Bytes that its texts and keys have at most, binary ones as base64.
const MOST_TEXT: usize = 16 << 20;
/// Levels of lists and maps in it.
pub(super) const DEEPEST: usize = 100;

/// Why nothing more goes in.
pub(super) type LimitReached = &'static str;

const TOO_MANY: LimitReached = "it has more than 131 072 values";
const TOO_LONG: LimitReached = "its texts have more than 16 MiB";
pub(super) const TOO_DEEP: LimitReached = "it is nested more than 100 levels deep";

/// What was decoded so far.
#[derive(Debug, Default)]
pub(super) struct BoundedValue {
    open: Vec<Open>,
    root: Option<Value>,
    values: usize,
    text: usize,
}

#[derive(Debug)]
enum Open {
    List(Vec<Value>),
    /// And the key whose value comes next.
    Map(Map<String, Value>, String),
}

impl BoundedValue {
    /// A number, a truth or nothing.
    pub(super) fn put(&mut self, value: Value) -> Result<(), LimitReached> {
        self.count()?;
        self.attach(value);
        Ok(())
    }

    pub(super) fn text(&mut self, text: &str) -> Result<(), LimitReached> {
        self.weigh(text.len())?;
        self.put(Value::String(text.to_owned()))
    }

    /// Bytes that are no text, as they are shown everywhere.
    pub(super) fn bytes(&mut self, bytes: &[u8]) -> Result<(), LimitReached> {
        self.weigh(bytes.len() / 3 * 4 + 4)?;
        self.put(json!({ "$bytes": BASE64_STANDARD.encode(bytes) }))
    }

    pub(super) fn list(&mut self) -> Result<(), LimitReached> {
        self.nest(Open::List(Vec::new()))
    }

    pub(super) fn map(&mut self) -> Result<(), LimitReached> {
        self.nest(Open::Map(Map::new(), String::new()))
    }

    /// The key of what comes next in the map that is open.
    pub(super) fn key(&mut self, key: &str) -> Result<(), LimitReached> {
        self.weigh(key.len())?;
        if let Some(Open::Map(_, next)) = self.open.last_mut() {
            key.clone_into(next);
        }
        Ok(())
    }

    /// The innermost list or map is whole.
    pub(super) fn end(&mut self) {
        let Some(open) = self.open.pop() else { return };
        self.attach(match open {
            Open::List(list) => Value::Array(list),
            Open::Map(map, _) => Value::Object(map),
        });
    }

    /// What was built, whatever is still open; nothing before the first value.
    pub(super) fn finish(mut self) -> Option<Value> {
        while !self.open.is_empty() {
            self.end();
        }
        self.root
    }

    fn nest(&mut self, open: Open) -> Result<(), LimitReached> {
        if self.open.len() >= DEEPEST {
            return Err(TOO_DEEP);
        }
        self.count()?;
        self.open.push(open);
        Ok(())
    }

    fn attach(&mut self, value: Value) {
        match self.open.last_mut() {
            Some(Open::List(list)) => list.push(value),
            Some(Open::Map(map, key)) => {
                map.insert(std::mem::take(key), value);
            }
            None => self.root = Some(value),
        }
    }

    fn count(&mut self) -> Result<(), LimitReached> {
        self.values += 1;
        if self.values > MOST_VALUES {
            return Err(TOO_MANY);
        }
        Ok(())
    }

    fn weigh(&mut self, bytes: usize) -> Result<(), LimitReached> {
        self.text = self.text.saturating_add(bytes);
        if self.text > MOST_TEXT {
            return Err(TOO_LONG);
        }
        Ok(())
    }
}
