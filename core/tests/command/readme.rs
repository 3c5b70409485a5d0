//! What the README prints of an operator's night, run as printed.

use retryrmq_harness::on_every_broker;

use crate::stage::{Desk, QUEUE, finish};

/// The commands under the heading, each with what is printed after it.
fn printed() -> Vec<(String, Vec<String>)> {
    let readme = concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md");
    let readme = std::fs::read_to_string(readme).expect("the README is there");
    let section = readme
        .split("### When something dies")
        .nth(1)
        .expect("the section");
    let block = section.split("```").nth(1).expect("a block");
    let mut all: Vec<(String, Vec<String>)> = Vec::new();
    for line in block.lines().skip(1) {
        match (line.strip_prefix("$ "), all.last_mut()) {
            (Some(command), _) => all.push((command.to_owned(), Vec::new())),
            (None, Some((_, lines))) => lines.push(line.to_owned()),
            (None, None) => panic!("output before a command: {line}"),
        }
    }
    all
}

/// Whether the words of `printed` come in this order in `said`, which has more columns where nobody looks at a terminal. Times and marks
/// are others each time.
fn says(said: &str, printed: &str) -> bool {
    let mut words = said.split_whitespace();
    let is_fixed = |word: &&str| *word != "…" && !word.contains(|c: char| c.is_ascii_digit());
    printed
        .split_whitespace()
        .filter(is_fixed)
        .all(|word| words.any(|said| said == word))
}

#[tokio::test]
async fn when_something_dies_the_readme_is_right() {
    on_every_broker(|broker| async move {
        let desk = Desk::with_queue(&broker).await;
        let publish = ["publish", "--queue", QUEUE, "--message-id", "4711", "{}"];
        desk.run(&publish).await.exits(0);
        let fails = "echo 'no such customer' >&2; exit 1";
        desk.consume(2, &["--retry", "fixed(1s, retries=1)"], fails)
            .await
            .exits(0);
        let commands = printed();
        assert!(commands.len() >= 5, "{commands:?}");
        for (command, lines) in commands {
            let mut words = command.split_whitespace();
            assert_eq!(words.next(), Some("retryrmq"), "{command}");
            let words: Vec<_> = words.collect();
            let done = finish(desk.command(&words), None).await.exits(0);
            let said = format!("{}\n{}", done.out, done.err);
            for line in lines {
                assert!(
                    said.lines().any(|said| says(said, &line)),
                    "`{command}` does not say `{line}`: {said}"
                );
            }
        }
        desk.holds(QUEUE, 1).await;
    })
    .await;
}
