//! Fuzzing on a plain stable toolchain: a target, a corpus, and as much time as there is.
//!
//! Inputs are mutations of the corpus, not noise: noise never gets past the first letter of a parser. There is no coverage to
//! steer by, so a target says what an input led to, and an input that led to something new joins the corpus: a parser's
//! sentences tell its branches apart. `core/fuzz` has a target for libFuzzer, which sees coverage and needs a nightly compiler.

use std::{
    any::Any,
    collections::HashSet,
    env,
    hash::{DefaultHasher, Hash, Hasher},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    time::{Duration, Instant},
};

/// How many inputs each target gets where nobody says for how long: all of them together must stay below a minute.
const RUNS: u64 = 10_000;
/// Inputs are cut to this. Parsers meet nothing new in longer ones, and the longer the fewer.
const LONGEST: usize = 4 * 1024;
/// The corpus grows to this at most.
const MOST: usize = 4_000;

/// Numbers at which something may begin or end.
const NUMBERS: [&str; 12] = [
    "0",
    "-1",
    "1e999",
    "NaN",
    "0.9",
    "255",
    "65536",
    "1000001",
    "4294967296",
    "9223372036854775807",
    "18446744073709551616",
    "00000000000000000000000001",
];

/// Runs `target` on each of `corpus` and on mutations of it. `words` are pieces that inputs of this kind are made of. What the target
/// returns says what the input led to: an outcome that was not seen before makes the input part of the corpus.
///
/// With `RETRYRMQ_FUZZ_SECONDS` it goes on for so long with inputs that nobody has tried. Without it the inputs are the same
/// each time: what `make check` says of a change depends on the change alone, and `make fuzz` looks for what is new.
///
/// # Panics
/// As the target does, after the input is printed: put it into the corpus when the fault is mended.
pub fn fuzz<O: Hash>(corpus: &[&[u8]], words: &[&str], target: impl Fn(&[u8]) -> O) {
    let Ok(seconds) = env::var("RETRYRMQ_FUZZ_SECONDS") else {
        let same = fastrand::Rng::with_seed(0);
        return search(corpus, words, target, same, |runs| runs < RUNS);
    };
    let seconds = seconds.parse().expect("RETRYRMQ_FUZZ_SECONDS is a number");
    let end = Instant::now() + Duration::from_secs(seconds);
    search(corpus, words, target, fastrand::Rng::new(), |_| {
        Instant::now() < end
    });
}

fn search<O: Hash>(
    corpus: &[&[u8]],
    words: &[&str],
    target: impl Fn(&[u8]) -> O,
    mut random: fastrand::Rng,
    goes_on: impl Fn(u64) -> bool,
) {
    let mut pool: Vec<Vec<u8>> = Vec::new();
    let mut seen = HashSet::new();
    for seed in corpus {
        seen.insert(outcome(seed, &target));
        pool.push(seed.to_vec());
    }
    assert!(!pool.is_empty(), "a corpus has at least one input");
    let mut runs = 0_u64;
    while goes_on(runs) {
        let mut input = random.choice(&pool).cloned().unwrap_or_default();
        for _ in 0..random.usize(1..=4) {
            mutate(&mut input, &pool, words, &mut random);
        }
        input.truncate(LONGEST);
        if seen.insert(outcome(&input, &target)) && pool.len() < MOST {
            pool.push(input);
        }
        runs += 1;
    }
    println!("{runs} inputs led to {} outcomes", seen.len());
}

fn outcome<O: Hash>(input: &[u8], target: &impl Fn(&[u8]) -> O) -> u64 {
    let outcome = catch_unwind(AssertUnwindSafe(|| target(input))).unwrap_or_else(|panic| {
        fail(input, panic);
    });
    let mut hasher = DefaultHasher::new();
    outcome.hash(&mut hasher);
    hasher.finish()
}

fn fail(input: &[u8], panic: Box<dyn Any + Send>) -> ! {
    println!("this input: b\"{}\"", input.escape_ascii());
    resume_unwind(panic)
}

fn mutate(input: &mut Vec<u8>, pool: &[Vec<u8>], words: &[&str], random: &mut fastrand::Rng) {
    let at = random.usize(..=input.len());
    let until = at + random.usize(..=(input.len() - at).min(16));
    match random.u8(..10) {
        0 if at < input.len() => input[at] ^= 1 << random.u8(..8),
        1 if at < input.len() => input[at] = random.u8(..),
        2 => drop(input.drain(at..until)),
        3 => input.insert(at, random.u8(..)),
        4 => {
            let again = input[at..until].to_vec();
            drop(input.splice(at..at, again));
        }
        5 => {
            let number = random.choice(NUMBERS).unwrap_or_default();
            drop(input.splice(at..until, number.bytes()));
        }
        6 | 7 => {
            let word = random.choice(words.iter().copied()).unwrap_or_default();
            drop(input.splice(at..until, word.bytes()));
        }
        8 => {
            let other = random.choice(pool).cloned().unwrap_or_default();
            let from = random.usize(..=other.len());
            drop(input.splice(at.., other[from..].iter().copied()));
        }
        // Lengths and counts on the wire.
        _ => {
            let number = random.choice([
                0,
                1,
                0x7f,
                0x80,
                0xff,
                0xffff_u32,
                u32::MAX,
                i32::MAX as u32,
            ]);
            let bytes = number.unwrap_or_default().to_be_bytes();
            let width = random.usize(1..=4);
            let until = (at + width).min(input.len());
            drop(input.splice(at..until, bytes[4 - width..].iter().copied()));
        }
    }
}

/// The words of a sentence without its numbers and quotations: what tells one refusal from another.
#[must_use]
pub fn gist(sentence: &str) -> String {
    let quoted = sentence.split('`').step_by(2);
    quoted
        .flat_map(str::chars)
        .filter(|c| !c.is_ascii_digit())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Each letter alone is one step towards the fault, and no step shows without the one before.
    #[test]
    fn a_fault_behind_several_branches_is_found() {
        let deepest = AtomicUsize::new(0);
        let found = catch_unwind(AssertUnwindSafe(|| {
            let letters = |input: &[u8]| {
                let depth = input
                    .iter()
                    .zip(b"bug!")
                    .take_while(|(a, b)| a == b)
                    .count();
                deepest.fetch_max(depth, Ordering::Relaxed);
                assert!(depth < 4, "the fault");
                depth
            };
            let same = fastrand::Rng::with_seed(0);
            search(&[b"x"], &[], letters, same, |runs| runs < 1_000_000);
        }));
        assert!(found.is_err(), "got as far as {deepest:?}");
    }

    #[test]
    fn sentences_are_alike_whatever_they_quote() {
        assert_eq!(gist("`a` is 12 long"), gist("`bc` is 3 long"));
        assert_ne!(gist("`a` is long"), gist("`a` is short"));
    }
}
