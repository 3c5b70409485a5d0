//! The table of changes in ARCHITECTURE.md: the files that it names must exist.

use std::path::{Path, PathBuf};

use crate::repository::{files, read};

const PAGE: &str = "ARCHITECTURE.md";
const HEADING: &str = "\n## Ten changes\n";
/// Stands for the name of a language.
const PLACEHOLDER: &str = "LANGUAGE";
const LANGUAGES: [&str; 4] = ["python", "node", "go", "rust"];
/// What a word without a slash ends with if it is a file.
const ENDINGS: [&str; 7] = [".rs", ".py", ".ts", ".go", ".json", ".md", ".toml"];

/// Each file or folder in the table that does not exist.
#[must_use]
pub fn faults() -> Vec<String> {
    match read(Path::new(PAGE)) {
        Ok(page) => faults_in(&page, &files()),
        Err(why) => vec![why],
    }
}

fn faults_in(page: &str, files: &[PathBuf]) -> Vec<String> {
    let Some((_, section)) = page.split_once(HEADING) else {
        return vec![format!("{PAGE}: there is no section `{}`", HEADING.trim())];
    };
    let rows = section
        .lines()
        .skip_while(|line| !line.starts_with('|'))
        .take_while(|line| line.starts_with('|'));
    let named: Vec<&str> = rows.flat_map(paths).collect();
    if named.is_empty() {
        return vec![format!("{PAGE}: the table of changes names no file")];
    }
    let missing = named.into_iter().filter(|named| !exists(named, files));
    missing
        .map(|named| format!("{PAGE}: the table of changes names `{named}`, which does not exist"))
        .collect()
}

/// The words in code quotes that are paths.
fn paths(row: &str) -> impl Iterator<Item = &str> {
    row.split('`').skip(1).step_by(2).filter(|word| {
        let is_name = word
            .chars()
            .all(|letter| letter.is_ascii_alphanumeric() || "._/-".contains(letter));
        is_name && (word.contains('/') || ENDINGS.iter().any(|ending| word.ends_with(ending)))
    })
}

/// A path may begin anywhere, as `exit.rs` or `topology/native.rs` does.
fn exists(named: &str, files: &[PathBuf]) -> bool {
    if named.contains(PLACEHOLDER) {
        return LANGUAGES
            .iter()
            .any(|language| exists(&named.replace(PLACEHOLDER, language), files));
    }
    let named = Path::new(named.trim_end_matches('/'));
    files
        .iter()
        .any(|file| file.ancestors().any(|part| part.ends_with(named)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(rows: &str) -> Vec<String> {
        let files = ["core/src/retry/backoff.rs", "bindings-go/test", "README.md"];
        faults_in(
            &format!(
                "# A\n\n## Ten changes\n\nText with `no/such.rs`.\n\n{rows}\n\n`nor/such.rs`\n"
            ),
            &files.map(PathBuf::from),
        )
    }

    #[test]
    fn files_and_folders_that_exist_are_found_however_they_begin() {
        let rows = "| change | where |\n|---|---|\n| `backoff.rs`, `retry/backoff.rs` (`Route`) | `core/src/retry/`, `bindings-LANGUAGE/`, `README.md` |";
        assert_eq!(of(rows), [""; 0]);
    }

    #[test]
    fn what_does_not_exist_is_named() {
        let faults =
            of("| a | `retry/off.rs` |\n| b | `bindings-go/header`, `off.rs`, `make test` |");
        assert_eq!(faults.len(), 3, "{faults:?}");
        assert!(faults[0].contains("`retry/off.rs`"), "{faults:?}");
    }

    #[test]
    fn a_page_without_the_table_is_a_fault() {
        assert_eq!(faults_in("# A\n", &[]).len(), 1);
        assert_eq!(of("| a | nothing |").len(), 1);
    }
}
