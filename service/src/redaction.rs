//! What is not shown to people: headers and fields whose names tell of secrets, and those that a rule names.

use retryrmq::glob::glob;
use serde_json::Value;

/// In the place of what is secret.
pub(crate) const HIDDEN: &str = "***";

/// Deeper than anybody reads.
const DEEPEST: usize = 32;

/// Names that are secret wherever they stand.
const USUAL: [&str; 6] = [
    "*authorization*",
    "*password*",
    "*secret*",
    "*token*",
    "*cookie*",
    "*api*key*",
];

/// The names that are secret unless somebody says others.
pub(crate) fn usual() -> Vec<String> {
    USUAL.map(str::to_owned).to_vec()
}

/// Names that are secret, without regard to case.
#[derive(Clone, Debug, Default)]
pub(crate) struct Redaction(Vec<String>);

impl Redaction {
    pub(crate) fn new(patterns: &[String]) -> Self {
        Self(
            patterns
                .iter()
                .map(|pattern| pattern.to_lowercase())
                .collect(),
        )
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn is_secret(&self, name: &str) -> bool {
        let name = name.to_lowercase();
        self.0.iter().any(|pattern| glob(pattern, &name))
    }

    /// Hides what is secret in a value, at any depth.
    pub(crate) fn hide(&self, value: &mut Value) {
        self.hide_at(value, 0);
    }

    fn hide_at(&self, value: &mut Value, depth: usize) {
        if depth > DEEPEST {
            *value = Value::Null;
            return;
        }
        match value {
            Value::Array(items) => items
                .iter_mut()
                .for_each(|item| self.hide_at(item, depth + 1)),
            Value::Object(map) => {
                for (name, value) in map {
                    match self.is_secret(name) {
                        true => *value = HIDDEN.into(),
                        false => self.hide_at(value, depth + 1),
                    }
                }
            }
            Value::String(text) if !self.is_empty() => {
                within_json(text, |inner| self.hide_at(inner, depth + 1));
            }
            _ => {}
        }
    }
}

/// The most bytes of JSON within a text that are looked into. Its values may take many times as much memory.
const MOST_INNER: usize = 64 << 10;

/// Masks what is in a text that is JSON itself. A text that only looks like JSON is hidden, and so is one that is too long to look into: nobody can
/// tell what is secret in it.
fn within_json(text: &mut String, mask: impl FnOnce(&mut Value)) {
    let is_space = |c: char| c.is_whitespace() || c == '\u{feff}';
    let start = text.trim_start_matches(is_space);
    let inside = start
        .get(1..)
        .unwrap_or_default()
        .trim_start_matches(is_space);
    // `[info] started` is no JSON, and has no names.
    let looks_so = start.starts_with('{')
        || start.starts_with('[') && inside.starts_with(['{', '[', '"', ']']);
    if !looks_so && !start.starts_with('"') {
        return;
    }
    if start.len() > MOST_INNER {
        HIDDEN.clone_into(text);
        return;
    }
    match serde_json::from_str::<Value>(start) {
        Ok(mut inner) => {
            mask(&mut inner);
            *text = inner.to_string();
        }
        Err(_) if looks_so && start.contains([':', '=']) => HIDDEN.clone_into(text),
        Err(_) => {}
    }
}

/// Hides what stands at a path, without regard to case: names between dots, `*` is any name or place in a list.
pub(crate) fn hide_path(value: &mut Value, path: &str) {
    let path = path.to_lowercase();
    let steps: Vec<&str> = path.split('.').collect();
    hide_steps(value, &steps);
}

fn hide_steps(value: &mut Value, steps: &[&str]) {
    let Some((step, rest)) = steps.split_first() else {
        *value = HIDDEN.into();
        return;
    };
    match value {
        Value::Array(items) => {
            for (place, item) in items.iter_mut().enumerate() {
                if glob(step, &place.to_string()) {
                    hide_steps(item, rest);
                }
            }
        }
        Value::Object(map) => {
            let whole = steps.join(".");
            for (name, value) in map {
                let name = name.to_lowercase();
                // A name may have dots itself.
                if glob(&whole, &name) {
                    *value = HIDDEN.into();
                } else if glob(step, &name) {
                    hide_steps(value, rest);
                }
            }
        }
        Value::String(text) => within_json(text, |inner| hide_steps(inner, steps)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_are_hidden_at_any_depth_and_paths_where_they_lead() {
        let mut value = json!({"a": [{"Api-Key": 1, "b": 2}], "card": {"number": 4711}, "items": [{"price": 1}, {"price": 2}], "a.b": 4711});
        Redaction::new(&usual()).hide(&mut value);
        for path in ["card", "items.*.price", "items.1.none", "a.b"] {
            hide_path(&mut value, path);
        }
        let expected = json!({"a": [{"Api-Key": "***", "b": 2}], "card": "***", "items": [{"price": "***"}, {"price": "***"}], "a.b": "***"});
        assert_eq!(value, expected);
    }

    #[test]
    fn json_within_a_text_is_masked_as_well() {
        let inner = json!({"password": "4711", "card": {"Number": "4711"}, "id": 7}).to_string();
        let deeper = json!({"event": inner}).to_string();
        let mut value = json!({"payload": inner, "deeper": deeper, "broken": "{\"password\": \"4711\"", "log": "[2026-01-01 12:00] started", "said": "\"yes\": he said", "id": 7});
        Redaction::new(&usual()).hide(&mut value);
        for path in ["payload.card.number", "deeper.EVENT.card.*"] {
            hide_path(&mut value, path);
        }
        let text = value.to_string();
        assert!(!text.contains("4711"), "{text}");
        assert_eq!(value["log"], "[2026-01-01 12:00] started");
        assert_eq!(value["said"], "\"yes\": he said");
        assert_eq!(value["id"], 7);
        let mut twice = json!(json!({"password": "4711"}).to_string());
        twice = json!(twice.to_string());
        Redaction::new(&usual()).hide(&mut twice);
        assert!(!twice.to_string().contains("4711"), "{twice}");
        // What is too long to look into.
        let mut long = json!({"a": format!("[\"{}\"]", "x".repeat(MOST_INNER))});
        Redaction::new(&usual()).hide(&mut long);
        assert_eq!(long["a"], HIDDEN);
        assert!(value["payload"].as_str().unwrap().contains("\"id\":7"));
        // Nothing is secret here.
        let mut open = json!({"payload": inner});
        Redaction::default().hide(&mut open);
        assert_eq!(open["payload"], inner);
    }
}
