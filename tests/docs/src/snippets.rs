//! Every snippet of the site's own pages is held by something.
//!
//! A comment above a block says by what:
//!
//! | comment | held by |
//! |---|---|
//! | `<!-- examples/python/howto.py#quit -->` | it is that part of that file, which a test runs: between `ANCHOR: quit` and `ANCHOR_END: quit`, or, without `#…`, the whole file |
//! | `<!-- held by FILE -->` | the test in that file, which reads this page |
//! | `<!-- file: NAME -->` | as without a comment; and the commands of this page find it under that name |
//! | none, `console` | `cli/tests/command/pages.rs` runs it; in the reference it asks whether the command reads its options |
//! | none, `toml`, `yaml`, `json`, `dockerfile` | it can be parsed |
//! | none, `text`, `mermaid` | nothing: a drawing, or words |
//!
//! Any other block is a fault. [`renew`] writes the parts into the pages.

use std::path::{Path, PathBuf};

use crate::{
    page::{self, Block},
    repository,
};

/// Folders whose pages are held whole.
const HELD: [&str; 5] = [
    "docs/tutorials",
    "docs/howto",
    "docs/explanation",
    "docs/reference",
    "docs/decisions",
];

/// Whether a page is one whose every block is held.
#[must_use]
pub fn is_held(path: &Path) -> bool {
    HELD.iter().any(|folder| path.starts_with(folder))
}

/// The file and the part that a comment names.
fn source(note: &str) -> Option<(&Path, Option<&str>)> {
    if note.contains(' ') || !note.contains('/') {
        return None;
    }
    let (file, part) = match note.split_once('#') {
        Some((file, part)) => (file, Some(part)),
        None => (note, None),
    };
    Some((Path::new(file), part))
}

/// The text of a part of a source, without the indentation that all of it has.
fn part(text: &str, name: Option<&str>) -> Option<String> {
    let is_mark = |line: &str| line.contains("ANCHOR: ") || line.contains("ANCHOR_END: ");
    let named = |line: &str, mark: &str, name: &str| {
        // In XML a comment has an end.
        line.split_once(mark)
            .is_some_and(|(_, rest)| rest.trim().trim_end_matches("-->").trim_end() == name)
    };
    let lines: Vec<&str> = match name {
        None => text.lines().filter(|line| !is_mark(line)).collect(),
        Some(name) => {
            let mut lines = text.lines();
            lines.by_ref().find(|line| named(line, "ANCHOR: ", name))?;
            let mut inner = Vec::new();
            loop {
                let line = lines.next()?;
                if named(line, "ANCHOR_END: ", name) {
                    break inner;
                }
                if !is_mark(line) {
                    inner.push(line);
                }
            }
        }
    };
    let indents = lines.iter().filter(|line| !line.trim().is_empty());
    let indent = indents
        .map(|line| line.len() - line.trim_start().len())
        .min()
        .unwrap_or(0);
    let lines = lines.iter().map(|line| line.get(indent..).unwrap_or(""));
    Some(
        lines
            .collect::<Vec<_>>()
            .join("\n")
            .trim_matches('\n')
            .to_owned()
            + "\n",
    )
}

/// What should stand in a block, if its comment names a source.
fn wanted(block: &Block) -> Option<Result<String, String>> {
    let note = block.note.as_deref()?;
    let (file, name) = source(note)?;
    let text = match repository::read(file) {
        Ok(text) => text,
        Err(why) => return Some(Err(why)),
    };
    Some(part(&text, name).ok_or_else(|| {
        format!(
            "{} has no part `{}`",
            file.display(),
            name.unwrap_or_default()
        )
    }))
}

/// What does not parse, or has nobody who looks at it.
fn unheld(block: &Block) -> Option<String> {
    let note = block.note.as_deref().unwrap_or_default();
    if let Some(file) = note.strip_prefix("held by ") {
        return (!repository::root().join(file).exists()).then(|| format!("there is no {file}"));
    }
    match &*block.language {
        "console" | "text" | "mermaid" => None,
        "toml" => toml::from_str::<toml::Table>(&block.code)
            .err()
            .map(|why| why.to_string()),
        "yaml" => yaml(&block.code).err(),
        "json" => serde_json::from_str::<serde_json::Value>(&block.code)
            .err()
            .map(|why| why.to_string()),
        "dockerfile" => parse_dockerfile::parse(&block.code)
            .err()
            .map(|why| why.to_string()),
        other => Some(format!(
            "nothing holds this block of `{other}`: write `<!-- FILE#PART -->` above it, with a file that a test runs"
        )),
    }
}

/// Documents with lines of `---` between them.
fn yaml(text: &str) -> Result<(), String> {
    for document in text.split("\n---\n") {
        serde_saphyr::from_str::<serde_json::Value>(document).map_err(|why| why.to_string())?;
    }
    Ok(())
}

/// What is wrong with the snippets of all pages: a line for each.
#[must_use]
pub fn faults() -> Vec<String> {
    let mut faults = Vec::new();
    for path in repository::pages() {
        let text = match repository::read(&path) {
            Ok(text) => text,
            Err(why) => {
                faults.push(why);
                continue;
            }
        };
        for block in page::read(&text).blocks {
            let why = match wanted(&block) {
                Some(Ok(code)) if code == block.code => None,
                Some(Ok(_)) => Some(
                    "this is not what its source says; `make docs-renew` writes it anew".to_owned(),
                ),
                Some(Err(why)) => Some(why),
                None if is_held(&path) => unheld(&block),
                None => None,
            };
            if let Some(why) = why {
                faults.push(format!("{}:{}: {why}", path.display(), block.line));
            }
        }
    }
    faults
}

/// Writes into all pages what their sources say; the paths of those that changed.
///
/// # Errors
/// A sentence for a page that cannot be read or written.
pub fn renew() -> Result<Vec<PathBuf>, String> {
    let mut changed = Vec::new();
    for path in repository::pages() {
        let text = repository::read(&path)?;
        let mut renewed = text.clone();
        for block in page::read(&text).blocks.iter().rev() {
            if let Some(Ok(code)) = wanted(block) {
                renewed.replace_range(
                    block.range.clone(),
                    &format!("```{}\n{code}```", block.language),
                );
            }
        }
        if renewed != text {
            std::fs::write(repository::root().join(&path), renewed)
                .map_err(|why| format!("{}: {why}", path.display()))?;
            changed.push(path);
        }
    }
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_snippet_is_held() {
        let faults = faults();
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }

    #[test]
    fn a_part_is_what_stands_between_its_marks() {
        let text = "a\n    # ANCHOR: x\n    b\n    # ANCHOR: y\n      c\n    # ANCHOR_END: y\n    # ANCHOR_END: x\n";
        assert_eq!(part(text, Some("x")).as_deref(), Some("b\n  c\n"));
        assert_eq!(part(text, Some("y")).as_deref(), Some("c\n"));
        assert_eq!(part(text, None).as_deref(), Some("a\n    b\n      c\n"));
        assert_eq!(part(text, Some("z")), None);
    }

    #[test]
    fn what_nothing_holds_is_a_fault() {
        let fault = |text: &str| unheld(&page::read(text).blocks[0]);
        assert!(fault("```python\n```\n").is_some());
        assert!(fault("```toml\nno\n```\n").is_some());
        assert!(fault("```yaml\na: [\n```\n").is_some());
        assert!(fault("```dockerfile\nNONSENSE\n```\n").is_some());
        assert!(fault("```dockerfile\nFROM scratch\nCOPY a b\n```\n").is_none());
        assert!(fault("```yaml\na: 1\n---\nb: 2\n```\n").is_none());
        assert!(fault("<!-- held by tests/nowhere.rs -->\n```python\n```\n").is_some());
        assert!(fault("<!-- file: a.toml -->\n```toml\na = 1\n```\n").is_none());
    }
}
