//! Numbers with the words that follow them.

/// `1 message`, `2 messages`.
#[must_use]
pub fn messages(count: u64) -> String {
    counted(count, "message")
}

/// A count with its noun: `1 queue`, `2 queues`.
#[must_use]
pub fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", word(count, "", "s"))
}

/// The word for one, or that for any other number.
#[must_use]
pub fn word(count: u64, one: &'static str, many: &'static str) -> &'static str {
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
        assert_eq!(
            [1, 2].map(|count| counted(count, "queue")),
            ["1 queue", "2 queues"]
        );
    }
}
