//! The tutorials and how-tos of the documentation, run as printed: every `console` block of a page, in order, in a folder and a virtual
//! host of the page's own. What is printed after a command it has to say. `# exits with 3` names an exit code other than 0, and
//! `<!-- file: NAME -->` above a block makes a file of it.

use std::{fmt::Write as _, fs, path::Path};

use futures_util::future::join_all;
use retryrmq_harness::{Broker, on_brokers};
use tokio::process::Command;

use crate::{
    fixture::{Fixture, finish, retryrmq},
    readme::says,
};

/// Where pages are.
const FOLDERS: [&str; 2] = ["tutorials", "howto"];

#[derive(Debug)]
enum Step {
    File { name: String, text: String },
    Command { line: String, said: Vec<String> },
}

/// What a page has the reader do.
fn steps(page: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut lines = page.lines();
    let mut above = "";
    while let Some(line) = lines.next() {
        let file = above
            .strip_prefix("<!-- file: ")
            .and_then(|rest| rest.strip_suffix(" -->"));
        above = line;
        let Some(language) = line.strip_prefix("```").filter(|word| !word.is_empty()) else {
            continue;
        };
        let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        if let Some(name) = file {
            let text = block.join("\n") + "\n";
            steps.push(Step::File {
                name: name.to_owned(),
                text,
            });
        } else if language == "console" {
            for line in block {
                match (line.strip_prefix("$ "), steps.last_mut()) {
                    (Some(command), _) => steps.push(Step::Command {
                        line: command.to_owned(),
                        said: Vec::new(),
                    }),
                    (None, Some(Step::Command { line: command, .. }))
                        if command.ends_with('\\') =>
                    {
                        let _ = write!(command, "\n{line}"); // a String takes it
                    }
                    (None, Some(Step::Command { said, .. })) => said.push(line.to_owned()),
                    (None, _) => panic!("output before a command: {line}"),
                }
            }
        }
    }
    steps
}

/// The exit code that a command has to have.
fn exit_code(command: &str) -> i32 {
    let said = command
        .split_once("# exits with ")
        .map(|(_, code)| code.trim());
    said.map_or(0, |code| code.parse().expect("an exit code"))
}

/// Does what a page says; what was wrong, if anything was.
async fn follow(broker: &Broker, page: &str, text: &str) -> Result<(), String> {
    let fixture = Fixture::of(broker).await;
    let folder = tempfile::tempdir().expect("a folder");
    let bin = Path::new(env!("CARGO_BIN_EXE_retryrmq"))
        .parent()
        .expect("its folder");
    let path = std::env::var("PATH").unwrap_or_default();
    for step in steps(text) {
        let (line, expected) = match step {
            Step::File { name, text } => {
                fs::write(folder.path().join(name), text).expect("it is written");
                continue;
            }
            Step::Command { line, said } => (line, said),
        };
        let mut command = Command::new("bash");
        command
            .args(["-c", &format!("set -o pipefail\n{line}")])
            .current_dir(folder.path())
            .env("PATH", format!("{}:{path}", bin.display()))
            .env("RETRYRMQ_URL", fixture.vhost.url())
            .env("RETRYRMQ_MANAGEMENT_URL", broker.management().url())
            .env("TZ", "UTC")
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .kill_on_drop(true);
        let done = finish(command, None).await;
        if done.status.code() != Some(exit_code(&line)) {
            return Err(format!("{page}: `{line}` ends with {done:?}"));
        }
        let said = format!("{}\n{}", done.out, done.err);
        for words in expected {
            if !said.lines().any(|said| says(said, &words)) {
                return Err(format!("{page}: `{line}` does not say `{words}`: {said}"));
            }
        }
    }
    Ok(())
}

/// Every page with commands, by its path.
fn pages() -> Vec<(String, String)> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let files = FOLDERS
        .iter()
        .flat_map(|folder| fs::read_dir(docs.join(folder)).expect("the folder"));
    files
        .map(|file| file.expect("a file").path())
        .map(|path| {
            (
                path.display().to_string(),
                fs::read_to_string(&path).expect("a page"),
            )
        })
        .filter(|(_, text)| text.contains("```console"))
        .collect()
}

#[tokio::test]
async fn every_command_of_the_pages_does_what_they_say() {
    let pages = pages();
    assert!(pages.len() >= 5, "{pages:?}");
    on_brokers(|broker| {
        let pages = pages.clone();
        async move {
            let done = join_all(pages.iter().map(|(page, text)| follow(&broker, page, text))).await;
            let faults: Vec<_> = done.into_iter().filter_map(Result::err).collect();
            assert!(faults.is_empty(), "{}", faults.join("\n"));
        }
    })
    .await;
}

/// The arguments of each call of the command in the blocks of a page, up to what a shell or another program reads.
fn calls(page: &str) -> Vec<Vec<String>> {
    let mut calls = Vec::new();
    let mut inside = None;
    for line in page.replace("\\\n", " ").lines() {
        if let Some(language) = line.strip_prefix("```") {
            inside = match inside {
                Some(_) => None,
                None => Some(["console", "sh"].contains(&language)),
            };
        } else if inside == Some(true)
            && let Ok(words) = shell_words::split(line.strip_prefix("$ ").unwrap_or(line))
        {
            for part in words.split(|word| ["&&", "|", ";"].contains(&&**word)) {
                let mut part = part.iter().skip_while(|word| word.contains('='));
                if part.next().is_some_and(|word| word == "retryrmq") {
                    let ours = part.take_while(|word| ![">", "&", "--"].contains(&&***word));
                    calls.push(ours.cloned().collect());
                }
            }
        }
    }
    calls
}

#[tokio::test]
async fn every_call_on_every_page_is_one_that_the_command_reads() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut pages = ["README.md", "service/README.md", "examples/http/README.md"]
        .map(|page| root.join(page))
        .to_vec();
    for folder in ["", "reference", "explanation", "howto", "tutorials"] {
        let files = fs::read_dir(root.join("docs").join(folder)).expect("the folder");
        let files = files.map(|file| file.expect("a file").path());
        pages.extend(files.filter(|path| path.extension().is_some_and(|kind| kind == "md")));
    }
    let mut count = 0;
    for page in pages {
        for call in calls(&fs::read_to_string(&page).expect("a page")) {
            let mut command = retryrmq();
            // Help is given once the options before it are read.
            command.args(&call).arg("--help");
            let done = finish(command, None).await;
            assert!(
                done.status.success(),
                "{}: {call:?}: {}",
                page.display(),
                done.err
            );
            count += 1;
        }
    }
    assert!(count > 80, "{count}");
}

#[test]
fn a_page_is_read_as_it_is_printed() {
    let page = "<!-- file: a.toml -->\n```toml\nx = 1\n```\n\n```console\n$ one \\\n    two\nsaid\n$ three # exits with 3\n```\n\n```toml\ny = 2\n```\n";
    let steps = steps(page);
    let [
        Step::File { name, text },
        Step::Command { line, said },
        Step::Command { line: last, .. },
    ] = &steps[..]
    else {
        panic!("{steps:?}");
    };
    assert_eq!((&**name, &**text), ("a.toml", "x = 1\n"));
    assert_eq!((&**line, said.len()), ("one \\\n    two", 1));
    assert_eq!((exit_code(line), exit_code(last)), (0, 3));
}
