//! A counter that a library keeps in a JSON body instead of a header. It is set to zero in place: every other byte stays as it is.

use std::{borrow::Cow, collections::HashMap};

use serde_json::value::RawValue;

use super::raw_dead_letter::ReplayedMessage;

/// A replay whose counter, at this key of an object within the body, begins again.
pub(crate) fn replay(body: &[u8], object: &str, key: &str) -> ReplayedMessage {
    match reset(body, object, key) {
        Some(body) => ReplayedMessage::Recounted(body),
        None => ReplayedMessage::Without(Vec::new()),
    }
}

type Object<'a> = HashMap<Cow<'a, str>, &'a RawValue>;

/// `None` if there is no counter, or if it is zero.
fn reset(body: &[u8], object: &str, key: &str) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(body).ok()?;
    let within = serde_json::from_str::<Object<'_>>(text).ok()?;
    let within = serde_json::from_str::<Object<'_>>(within.get(object)?.get()).ok()?;
    let value = within.get(key)?.get();
    let digits = value.trim_matches('"');
    if digits.parse::<u32>().ok()? == 0 {
        return None;
    }
    // It is a part of the body.
    let start = digits.as_ptr().addr() - text.as_ptr().addr();
    Some(
        [&text[..start], "0", &text[start + digits.len()..]]
            .concat()
            .into_bytes(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_counter_is_reset() {
        let after = |body: &str| reset(body.as_bytes(), "options", "retries");
        let many = r#"{"args":[{"retries":3}],"kwargs":{"retries":5},"options":{"a":"\"retries\":1","retries":%}}"#;
        assert_eq!(
            after(&many.replace('%', "12")).unwrap(),
            many.replace('%', "0").into_bytes()
        );
        assert_eq!(
            after(&many.replace('%', "0")),
            None,
            "nothing else is zeroed"
        );
        for none in [
            "",
            "[]",
            "{}",
            r#"{"options":7}"#,
            r#"{"options":{}}"#,
            r#"{"options":{"retries":-1}}"#,
        ] {
            assert_eq!(after(none), None, "{none}");
        }
        let text = reset(br#"{"labels":{"_retries": "2"}}"#, "labels", "_retries");
        assert_eq!(text.unwrap(), br#"{"labels":{"_retries": "0"}}"#);
    }
}
