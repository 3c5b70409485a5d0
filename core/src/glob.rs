//! Patterns in rules, options and configuration files: of routing keys as in topic exchanges, of other text with `*`.

/// Whether a routing key matches: words between dots, `*` is one word, `#` any number of words.
#[must_use]
pub fn topic(pattern: &str, key: &str) -> bool {
    /// As in RabbitMQ, an empty key has no words, not one empty word.
    fn words(text: &str) -> Vec<&str> {
        if text.is_empty() {
            return Vec::new();
        }
        text.split('.').collect()
    }
    wildcard_match(
        &words(pattern),
        &words(key),
        |word| *word == "#",
        |word, with| *word == "*" || word == with,
    )
}

/// Whether a text matches: `*` is any text, also none.
#[must_use]
pub fn glob(pattern: &str, text: &str) -> bool {
    wildcard_match(
        pattern.as_bytes(),
        text.as_bytes(),
        |sign| *sign == b'*',
        |sign, with| sign == with,
    )
}

/// Matches with one kind of "any number" wildcard, in at most `pattern × text` steps and without recursion: after a mismatch only the last wildcard takes
/// one more.
fn wildcard_match<T>(
    pattern: &[T],
    text: &[T],
    any: impl Fn(&T) -> bool,
    one: impl Fn(&T, &T) -> bool,
) -> bool {
    let (mut at, mut taken, mut again) = (0, 0, None);
    while taken < text.len() {
        match pattern.get(at) {
            Some(sign) if any(sign) => {
                again = Some((at + 1, taken));
                at += 1;
            }
            Some(sign) if one(sign, &text[taken]) => {
                at += 1;
                taken += 1;
            }
            _ => {
                let Some((after, from)) = again else {
                    return false;
                };
                (at, taken, again) = (after, from + 1, Some((after, from + 1)));
            }
        }
    }
    pattern[at..].iter().all(any)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn routing_keys_match_as_in_bindings() {
        for (pattern, key, expected) in [
            ("eu.#", "eu", true),
            ("eu.#", "eu.orders.new", true),
            ("eu.*", "eu", false),
            ("#.new", "eu.orders.new", true),
            ("eu.*.new", "eu.orders.new", true),
            ("eu.*.new", "eu.a.b.new", false),
            ("#", "", true),
            ("*", "", false),
            ("", "", true),
            ("a.#.b.#.c", "a.b.b.c.c", true),
            ("", "a", false),
            ("a.", "a", false),
            ("#", "a.b", true),
            ("*", "a", true),
            ("*", "a.b", false),
            ("eu.#", "eu.de.berlin", true),
            ("eu.#", "us.ny", false),
            ("#.error", "a.b.error", true),
            ("a.*.c", "a.b.c", true),
            ("a.*.c", "a.c", false),
            ("#.a.#", "x.a.y.z", true),
            ("eu", "eu", true),
        ] {
            assert_eq!(topic(pattern, key), expected, "{pattern} {key}");
        }
    }

    #[test]
    fn a_star_is_any_text() {
        for (pattern, text, expected) in [
            ("orders*", "orders", true),
            ("*.eu", "orders.eu", true),
            ("a*b*c", "abxbc", true),
            ("a*b", "ac", false),
            ("", "", true),
            ("*", "ü", true),
        ] {
            assert_eq!(glob(pattern, text), expected, "{pattern} {text}");
        }
    }

    proptest! {
        #[test]
        fn matching_always_ends(pattern in "[a*#.]{0,30}", text in "[a.]{0,60}") {
            let _ = topic(&pattern, &text);
            let _ = glob(&pattern, &text);
        }
    }
}
