//! Passwords in what somebody typed in the wrong place.

/// The text with the user and password of every URL in it hidden.
///
/// A URL that was given to the wrong option is quoted by the complaint about it.
pub(crate) fn passwords(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (head, tail) = rest.split_at(at + 3);
        shown.push_str(head);
        let end = tail
            .find(|c: char| c.is_whitespace() || "'\"`".contains(c))
            .unwrap_or(tail.len());
        let (url, after) = tail.split_at(end);
        match url.rfind('@') {
            Some(at) => {
                shown.push_str("***");
                shown.push_str(&url[at..]);
            }
            None => shown.push_str(url),
        }
        rest = after;
    }
    shown.push_str(rest);
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hides_what_stands_before_the_host() {
        for (text, expected) in [
            ("no url", "no url"),
            ("'amqp://u:p@h/v' is odd", "'amqp://***@h/v' is odd"),
            (
                "amqp://u:p@ss@h and amqp://h2",
                "amqp://***@h and amqp://h2",
            ),
            ("amqp://u:p/x@h", "amqp://***@h"),
            ("http://", "http://"),
        ] {
            assert_eq!(passwords(text), expected);
        }
    }
}
