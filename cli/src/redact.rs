//! Passwords in what somebody typed in the wrong place, and names that tell of secrets.

/// The text with the user and password of every URL in it hidden, and what its parameters tell.
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
                shown.push_str(&parameters(&url[at..]));
            }
            None => shown.push_str(&parameters(url)),
        }
        rest = after;
    }
    shown.push_str(rest);
    shown
}

/// The rest of a URL, with the values of telling parameters hidden.
fn parameters(url: &str) -> String {
    let Some((path, query)) = url.split_once('?') else {
        return url.to_owned();
    };
    let parts = query.split('&').map(|part| match part.split_once('=') {
        Some((name, _)) if is_telling(name) => format!("{name}=***"),
        _ => part.to_owned(),
    });
    format!("{path}?{}", parts.collect::<Vec<_>>().join("&"))
}

/// Whether a header or a parameter of this name is likely to hold a secret.
pub(crate) fn is_telling(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    [
        "auth",
        "token",
        "key",
        "secret",
        "pass",
        "pwd",
        "cookie",
        "sig",
        "credential",
        "session",
    ]
    .iter()
    .any(|word| name.contains(word))
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
            (
                "'http://h/a?b=1&api_key=k3y' is odd",
                "'http://h/a?b=1&api_key=***' is odd",
            ),
        ] {
            assert_eq!(passwords(text), expected);
        }
    }
}
