//! The programs, policies and rules that the README and the page of policies print: the programs are those of files that run in tests, and the policies
//! and rules are read.

use std::path::Path;

use retryrmq::{Policy, Rule, format_duration};

use crate::repository::read;

fn repository(path: &str) -> String {
    read(Path::new(path)).unwrap()
}

/// The blocks of that language.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("\n```{language}\n");
    let behind = page.split(&fence).skip(1);
    behind
        .map(|rest| rest.split("\n```").next().unwrap_or_default())
        .collect()
}

#[test]
fn the_readmes_programs_run_in_tests() {
    let readme = repository("README.md");
    // The READMEs of the packages run their first program as printed; the example is judged by its own test.
    for (language, tested) in [
        ("python", "bindings-python/README.md"),
        ("ts", "bindings-node/README.md"),
        ("go", "bindings-go/README.md"),
        ("rust", "examples/rust/src/bin/first-consumer.rs"),
    ] {
        let programs = blocks(&readme, language);
        let tested_text = repository(tested);
        let first = blocks(&tested_text, language).first().copied();
        let first = first.unwrap_or(&tested_text);
        assert_eq!(programs.len(), 1, "one program in {language}");
        assert!(
            first.contains(programs[0]),
            "the program in {language} is not the first one of {tested}"
        );
    }
}

#[test]
fn the_policies_and_rules_of_the_page_are_read_and_wait_as_it_says() {
    let page = repository("docs/reference/policies.md");
    let rules = blocks(&page, "text");
    let rules: Vec<_> = rules.iter().flat_map(|block| block.lines()).collect();
    assert!(rules.len() >= 3, "{rules:?}");
    for rule in rules {
        rule.parse::<Rule>().expect(rule);
    }
    let rows = page
        .lines()
        .filter(|line| line.contains("(1s") || line.contains("(5s"));
    let mut said = 0;
    for row in rows.filter(|row| row.starts_with("| `")) {
        let mut cells = row.split('|').map(str::trim).skip(1);
        let (Some(policy), Some(delays)) = (cells.next(), cells.next()) else {
            continue;
        };
        let policy = policy.split('`').nth(1).expect(row);
        let policy: Policy = policy.parse().expect(row);
        let waits = (1..=policy.max_retries()).map(|retry| format_duration(policy.delay(retry, 2)));
        let waits: Vec<_> = waits.collect();
        assert_eq!(delays, waits.join(", "), "{row}");
        said += 1;
    }
    assert!(said >= 4, "the table is there");
}
