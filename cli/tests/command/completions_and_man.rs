//! Completions and manual pages: loaded and rendered by those that they are for, where these are there.

use std::process::{Command, Stdio};

use crate::{
    fixture::{finish, retryrmq},
    http::tempfile,
};

async fn run(arguments: &[&str]) -> crate::fixture::CommandOutput {
    let mut command = retryrmq();
    command.args(arguments);
    finish(command, None).await
}

fn is_there(program: &str) -> bool {
    let found = Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if found.is_err() {
        eprintln!("skipped in part: there is no {program}");
    }
    found.is_ok()
}

/// What bash offers for the last of these words.
fn bash(script: &str, words: &[&str]) -> Vec<String> {
    let line = words
        .iter()
        .map(|word| format!("'{word}'"))
        .collect::<Vec<_>>()
        .join(" ");
    let last = words.len() - 1;
    let asked = format!(
        "{script}\nCOMP_WORDS=({line}); COMP_CWORD={last}\n_retryrmq retryrmq '{}' '{}'\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"",
        words[last],
        words[last - 1]
    );
    let done = Command::new("bash")
        .args(["--norc", "-c", &asked])
        .output()
        .unwrap();
    assert!(done.status.success() && done.stderr.is_empty(), "{done:?}");
    String::from_utf8(done.stdout)
        .unwrap()
        .split_whitespace()
        .map(str::to_owned)
        .collect()
}

#[tokio::test]
async fn bash_completes_what_there_is() {
    let script = run(&["completions", "bash"]).await.exits(0).out;
    assert!(!script.contains("__orphan-reaper"));
    if !is_there("bash") {
        return;
    }
    let offers = bash(&script, &["retryrmq", ""]);
    for word in ["consume", "parked", "man", "--url"] {
        assert!(
            offers.iter().any(|offer| offer == word),
            "{word}: {offers:?}"
        );
    }
    assert_eq!(bash(&script, &["retryrmq", "cons"]), ["consume"]);
    assert_eq!(bash(&script, &["retryrmq", "parked", "rep"]), ["replay"]);
    assert_eq!(
        bash(&script, &["retryrmq", "consume", "orders", "--bear"]),
        ["--bearer-file"]
    );
    assert_eq!(bash(&script, &["retryrmq", "completions", "z"]), ["zsh"]);
}

#[tokio::test]
async fn other_shells_have_their_scripts() {
    for (shell, words) in [
        ("zsh", "#compdef retryrmq"),
        ("fish", "complete -c retryrmq"),
    ] {
        let script = run(&["completions", shell]).await.exits(0).out;
        assert!(
            script.contains(words) && script.contains("bearer-file"),
            "{shell}"
        );
        assert!(!script.contains("__orphan-reaper"), "{shell}");
        if is_there(shell) {
            let folder = tempfile();
            let file = folder.join("script");
            std::fs::write(&file, &script).unwrap();
            let done = Command::new(shell).arg("-n").arg(&file).output().unwrap();
            assert!(done.status.success(), "{done:?}");
            std::fs::remove_dir_all(&folder).unwrap();
        }
    }
    run(&["completions", "tcsh"]).await.exits(2);
}

#[tokio::test]
async fn pages_are_written_and_read() {
    let folder = tempfile();
    let pages = folder.join("share/man1");
    let done = run(&["man", pages.to_str().unwrap()]).await.exits(0);
    for name in [
        "retryrmq.1",
        "retryrmq-consume.1",
        "retryrmq-parked-replay.1",
    ] {
        assert!(
            done.out.contains(name) && pages.join(name).exists(),
            "{done:#?}"
        );
    }
    assert!(
        !done.out.contains("orphan-reaper") && !done.out.contains("help"),
        "{done:#?}"
    );
    let again = run(&["--json", "man", pages.to_str().unwrap()])
        .await
        .exits(0)
        .json();
    assert_eq!(
        again["written"].as_array().unwrap().len(),
        done.out.lines().count()
    );
    let main = run(&["man"]).await.exits(0);
    assert_eq!(main.bytes, std::fs::read(pages.join("retryrmq.1")).unwrap());
    if is_there("man") {
        for page in std::fs::read_dir(&pages).unwrap() {
            let path = page.unwrap().path();
            let mut man = Command::new("man");
            man.args(["--warnings", "-l"])
                .arg(&path)
                .env("MANWIDTH", "80")
                .env("LC_ALL", "C.UTF-8");
            let done = man.output().unwrap();
            assert!(
                done.status.success() && done.stderr.is_empty(),
                "{path:?}: {done:?}"
            );
            let text = String::from_utf8(done.stdout).unwrap();
            assert!(text.contains("SYNOPSIS"), "{text}");
            if path.ends_with("retryrmq-consume.1") {
                // Lines stay as they are written.
                assert!(
                    text.contains("  2xx                  done: the message is acknowledged\n"),
                    "{text}"
                );
            }
        }
    }
    let file = pages.join("retryrmq.1");
    let refused = run(&["man", file.to_str().unwrap()]).await.exits(1);
    assert!(refused.err.contains("cannot write"), "{refused:#?}");
    std::fs::remove_dir_all(&folder).unwrap();
}
