//! Numbers with the words that follow them.

/// `1 message`, `2 messages`.
pub(crate) fn messages(count: u64) -> String {
    format!("{count} message{}", word(count, "", "s"))
}

/// The word for one, or that for any other number.
pub(crate) fn word(count: u64, one: &'static str, many: &'static str) -> &'static str {
    if count == 1 { one } else { many }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_not_many() {
        assert_eq!(
            [0, 1, 2].map(messages),
            ["0 messages", "1 message", "2 messages"]
        );
    }
}
