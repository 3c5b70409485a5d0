//! What the README and the page of the command print, run as printed.

use std::{path::Path, process::Stdio};

use retryrmq_harness::on_brokers;
use tokio::process::Command;

use crate::fixture::{Fixture, QUEUE, finish};

/// The first block of a language behind this text of a page.
fn block(page: &str, behind: &str, language: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(page);
    let page = std::fs::read_to_string(page).expect("the page is there");
    let (_, rest) = page.split_once(behind).expect("the text is in it");
    let (_, rest) = rest
        .split_once(&format!("\n```{language}\n"))
        .expect("a block");
    let (block, _) = rest.split_once("```").expect("its end");
    block.to_owned()
}

/// The commands of a block, each with what is printed after it.
fn printed() -> Vec<(String, Vec<String>)> {
    let block = block("docs/reference/command.md", "## Parked messages", "console");
    let mut all: Vec<(String, Vec<String>)> = Vec::new();
    for line in block.lines() {
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
pub(crate) fn says(said: &str, printed: &str) -> bool {
    let mut words = said.split_whitespace();
    let is_fixed = |word: &&str| *word != "…" && !word.contains(|c: char| c.is_ascii_digit());
    printed
        .split_whitespace()
        .filter(is_fixed)
        .all(|word| words.any(|said| said == word))
}

#[tokio::test]
async fn when_something_dies_the_page_is_right() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        let publish = ["publish", "--queue", QUEUE, "--message-id", "4711", "{}"];
        fixture.run(&publish).await.exits(0);
        let fails = "echo 'no such customer' >&2; exit 1";
        fixture
            .consume(2, &["--retry", "fixed(1s, retries=1)"], fails)
            .await
            .exits(0);
        let commands = printed();
        assert!(commands.len() >= 5, "{commands:?}");
        for (command, lines) in commands {
            let mut words = command.split_whitespace();
            assert_eq!(words.next(), Some("retryrmq"), "{command}");
            let words: Vec<_> = words.collect();
            let done = finish(fixture.command(&words), None).await.exits(0);
            let said = format!("{}\n{}", done.out, done.err);
            for line in lines {
                assert!(
                    said.lines().any(|said| says(said, &line)),
                    "`{command}` does not say `{line}`: {said}"
                );
            }
        }
        fixture.holds(QUEUE, 1).await;
    })
    .await;
}

#[tokio::test]
async fn the_readmes_consumer_in_any_language_prints_what_it_says() {
    let script = block("README.md", "<b>Any other language</b>", "sh");
    let expected = block("README.md", "## Use it", "text");
    on_brokers(|broker| {
        let (script, expected) = (script.clone(), expected.clone());
        async move {
            let fixture = Fixture::of(&broker).await;
            let folder = tempfile::tempdir().unwrap();
            let program = Path::new(env!("CARGO_BIN_EXE_retryrmq"));
            let mut path = program.parent().expect("a folder").as_os_str().to_owned();
            path.push(":");
            path.push(std::env::var_os("PATH").unwrap_or_default());
            let mut shell = Command::new("sh");
            shell
                .args(["-e", "-c", &script])
                .current_dir(folder.path())
                .env("PATH", path)
                .env("RETRYRMQ_URL", fixture.vhost.url())
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .kill_on_drop(true);
            let done = finish(shell, None).await.exits(0);
            let lines = done.out.lines().filter(|line| line.starts_with("attempt"));
            let lines: Vec<_> = lines.collect();
            assert_eq!(lines, expected.lines().collect::<Vec<_>>(), "{}", done.err);
        }
    })
    .await;
}
