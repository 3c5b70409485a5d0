//! Folded sections, of which `docs/book/tabs.js` makes tabs on the site: GitHub reads their Markdown only after an empty line, and of
//! sections side by side it shows the first one alone.

use std::path::Path;

use crate::{page, repository, snippets::is_held};

/// Languages that a page shows side by side.
const LANGUAGES: [&str; 4] = ["## Python", "## Node", "## Go", "## Rust"];

/// What is wrong with the folded sections of all pages: a line for each.
#[must_use]
pub fn faults() -> Vec<String> {
    let mut faults = Vec::new();
    for path in repository::pages() {
        match repository::read(&path) {
            Ok(text) => faults.extend(
                faults_of(&path, &text)
                    .iter()
                    .map(|(line, why)| format!("{}:{line}: {why}", path.display())),
            ),
            Err(why) => faults.push(why),
        }
    }
    faults
}

/// The lines of a page that are not code, each with its number from 1.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let blocks = page::read(text).blocks;
    let mut at = 0;
    let mut lines = Vec::new();
    for (index, line) in text.split_inclusive('\n').enumerate() {
        if !blocks.iter().any(|block| block.range.contains(&at)) {
            lines.push((index + 1, line.trim_end()));
        }
        at += line.len();
    }
    lines
}

fn faults_of(path: &Path, text: &str) -> Vec<(usize, &'static str)> {
    let lines = prose(text);
    let mut faults = Vec::new();
    let mut opened = None;
    // Whether the section before is a neighbour.
    let mut is_beside = false;
    for (index, (number, line)) in lines.iter().enumerate() {
        let next = |by: usize| lines.get(index + by).map_or("", |(_, line)| *line);
        if line.starts_with("<details") {
            if opened.is_some() {
                faults.push((*number, "a section is folded within another"));
            }
            opened = Some(*number);
            if !(next(1).starts_with("<summary>") && next(1).ends_with("</summary>")) {
                faults.push((*number, "its summary is not the next line"));
            } else if !next(2).is_empty() {
                faults.push((
                    *number,
                    "an empty line after the summary lets Markdown begin",
                ));
            }
            let is_tab = next(1).starts_with("<summary><b>");
            if is_tab && line.contains(" open") == is_beside {
                faults.push((
                    *number,
                    "of sections side by side the first one is open, and no other",
                ));
            }
        } else if *line == "</details>" {
            if opened.take().is_none() {
                faults.push((*number, "no folded section ends here"));
            }
            is_beside = true;
            continue;
        } else if is_held(path) && LANGUAGES.contains(line) {
            faults.push((*number, "fold the languages of a page, side by side"));
        }
        if !line.is_empty() {
            is_beside = false;
        }
    }
    faults.extend(opened.map(|number| (number, "its `</details>` is missing")));
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_folded_section_is_whole() {
        let faults = faults();
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }

    #[test]
    fn what_github_would_not_show_is_found() {
        let of = |text: &str| {
            let faults = faults_of(Path::new("docs/howto/a.md"), text);
            faults.iter().map(|(line, _)| *line).collect::<Vec<_>>()
        };
        let fold = |open: &str, name: &str| {
            format!("<details{open}>\n<summary><b>{name}</b></summary>\n\ntext\n\n</details>\n")
        };
        let side_by_side = fold(" open", "Python") + "\n" + &fold(" id=\"node\"", "Node");
        let fine = format!("```text\n## Node\n```\n\n{side_by_side}");
        assert!(of(&side_by_side).is_empty() && of(&fine).is_empty());
        assert_eq!(of(&fold("", "Python")), [1]);
        assert_eq!(of(&(fold(" open", "Python") + &fold(" open", "Node"))), [7]);
        assert_eq!(of("<details>\ntext\n\n</details>\n"), [1]);
        assert_eq!(
            of("<details>\n<summary>more</summary>\ntext\n\n</details>\n"),
            [1]
        );
        assert_eq!(of("<details>\n<summary>more</summary>\n\ntext\n"), [1]);
        assert_eq!(of("text\n\n</details>\n"), [3]);
        assert_eq!(of("# A\n\n## Python\n"), [3]);
    }
}
