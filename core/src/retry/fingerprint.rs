//! A short mark that equal failures share (`x-retry-fingerprint`), so that a thousand parked messages can be grouped into three problems.

/// Sixteen hexadecimal digits: FNV-1a 64 over the error's type, a line feed, and the error's text. In the text, each run of characters with
/// a digit in it becomes one `#`, and white space is folded.
///
/// Numbers, ids and addresses differ from message to message; what is left describes the problem.
pub(crate) fn fingerprint(error_type: &str, error: &str) -> String {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    let mut words = String::with_capacity(error.len());
    for word in error.split_whitespace() {
        if !words.is_empty() {
            words.push(' ');
        }
        for part in word.split_inclusive(|c: char| !c.is_alphanumeric() && c != '-') {
            let end = part.trim_end_matches(|c: char| !c.is_alphanumeric() && c != '-');
            words.push_str(if end.contains(|c: char| c.is_ascii_digit()) {
                "#"
            } else {
                end
            });
            words.push_str(&part[end.len()..]);
        }
    }
    let hash = error_type
        .bytes()
        .chain([b'\n'])
        .chain(words.bytes())
        .fold(OFFSET, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(PRIME)
        });
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_problems_share_it() {
        let same = [
            "customer 17 not found",
            "customer  18 not found",
            "customer a3f9-11e2 not found",
        ];
        let marks: Vec<_> = same
            .iter()
            .map(|error| fingerprint("Lookup", error))
            .collect();
        assert!(marks.iter().all(|mark| *mark == marks[0]), "{marks:?}");
        assert_ne!(fingerprint("Lookup", "customer 17 is gone"), marks[0]);
        assert_ne!(fingerprint("Timeout", same[0]), marks[0]);
    }

    #[test]
    fn the_algorithm_is_part_of_the_wire_contract() {
        assert_eq!(fingerprint("", ""), "af63c74c8601c8dd");
        assert_eq!(
            fingerprint("Timeout", "connect to 10.0.0.7:5432"),
            "36567b941ac2e6b8", // of "Timeout\nconnect to #.#.#.#:#"
        );
    }
}
