//! The sources of the site: the pages that `docs/SUMMARY.md` names, in the folders that they have in the repository, so that links
//! between them are the same on GitHub and in the book. A link to anything else leads to the repository on the network.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use crate::{links::is_elsewhere, page, repository};

/// Where files are seen that are no pages of the book.
const REPOSITORY: &str = "https://github.com/retryrmq/retryrmq";

/// What lists the pages.
const SUMMARY: &str = "docs/SUMMARY.md";

/// `README.md` is the first page of its folder.
fn renamed(path: &Path) -> PathBuf {
    if path.file_name().is_some_and(|name| name == "README.md") {
        path.with_file_name("index.md")
    } else {
        path.to_owned()
    }
}

/// The way from the folder of one file to another.
fn way(from: &Path, to: &Path) -> String {
    let folder: Vec<_> = from
        .parent()
        .map(|folder| folder.components().collect())
        .unwrap_or_default();
    let target: Vec<_> = to.components().collect();
    let shared = folder
        .iter()
        .zip(&target)
        .take_while(|(a, b)| a == b)
        .count();
    let up = std::iter::repeat_n("..".to_owned(), folder.len() - shared);
    let down = target[shared..]
        .iter()
        .map(|part| part.as_os_str().to_string_lossy().into_owned());
    up.chain(down).collect::<Vec<_>>().join("/")
}

/// The text of a page with its links as the book has them, and the pictures that it shows.
fn translated(
    path: &Path,
    text: &str,
    pages: &BTreeSet<PathBuf>,
) -> Result<(String, Vec<PathBuf>), String> {
    let here = if path == Path::new(SUMMARY) {
        PathBuf::from("SUMMARY.md")
    } else {
        renamed(path)
    };
    let mut out = text.to_owned();
    let mut pictures = Vec::new();
    let mut links = page::read(text).links;
    links.sort_by_key(|link| link.range.start);
    for link in links.iter().rev().filter(|link| !is_elsewhere(&link.to)) {
        let (file, anchor) = link.to.split_once('#').unwrap_or((&link.to, ""));
        if file.is_empty() {
            continue;
        }
        let mut target = repository::normal(&path.parent().unwrap_or(Path::new("")).join(file));
        if pages.contains(&target.join("README.md")) {
            target.push("README.md");
        }
        let anchor = if anchor.is_empty() {
            String::new()
        } else {
            format!("#{anchor}")
        };
        let to = if pages.contains(&target) {
            way(&here, &renamed(&target)) + &anchor
        } else if link.is_image {
            pictures.push(target.clone());
            way(&here, &target)
        } else {
            let kind = if repository::root().join(&target).is_dir() {
                "tree"
            } else {
                "blob"
            };
            format!("{REPOSITORY}/{kind}/main/{}{anchor}", target.display())
        };
        let written = &text[link.range.clone()];
        let at = written.rfind(&link.to).ok_or_else(|| {
            format!(
                "{}: write the target of `{written}` beside its text",
                path.display()
            )
        })?;
        let at = link.range.start + at;
        out.replace_range(at..at + link.to.len(), &to);
    }
    Ok((drawn(&out), pictures))
}

/// Diagrams as elements that the script of Mermaid finds.
fn drawn(text: &str) -> String {
    let mut out = text.to_owned();
    for block in page::read(text)
        .blocks
        .iter()
        .rev()
        .filter(|block| block.language == "mermaid")
    {
        let code = block.code.replace('&', "&amp;").replace('<', "&lt;");
        out.replace_range(
            block.range.clone(),
            &format!("<pre class=\"mermaid\">\n{code}</pre>\n"),
        );
    }
    out
}

/// Writes the sources of the book into a folder, which is made anew.
///
/// # Errors
/// A sentence for what cannot be read, written or translated.
pub fn write(folder: &Path) -> Result<(), String> {
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |why: std::io::Error| format!("{path}: {why}")
    };
    let summary = Path::new(SUMMARY);
    let text = repository::read(summary)?;
    let pages: BTreeSet<PathBuf> = page::read(&text)
        .links
        .iter()
        .map(|link| repository::normal(&Path::new("docs").join(&link.to)))
        .collect();
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(failed(folder))?;
    }
    let put = |to: &Path, bytes: &[u8]| {
        let to = folder.join(to);
        fs::create_dir_all(to.parent().unwrap_or(folder)).map_err(failed(&to))?;
        fs::write(&to, bytes).map_err(failed(&to))
    };
    put(
        Path::new("SUMMARY.md"),
        translated(summary, &text, &pages)?.0.as_bytes(),
    )?;
    for path in &pages {
        let (text, pictures) = translated(path, &repository::read(path)?, &pages)?;
        put(&renamed(path), text.as_bytes())?;
        for picture in pictures {
            let from = repository::root().join(&picture);
            put(&picture, &fs::read(&from).map_err(failed(&from))?)?;
        }
    }
    Ok(())
}

/// Pages of the folder `docs` that the book lacks.
#[must_use]
pub fn faults() -> Vec<String> {
    let text = match repository::read(Path::new(SUMMARY)) {
        Ok(text) => text,
        Err(why) => return vec![why],
    };
    let named: BTreeSet<PathBuf> = page::read(&text)
        .links
        .iter()
        .map(|link| repository::normal(&Path::new("docs").join(&link.to)))
        .collect();
    repository::pages()
        .into_iter()
        .filter(|path| {
            path.starts_with("docs") && path != Path::new(SUMMARY) && !named.contains(path)
        })
        .map(|path| format!("{SUMMARY} lacks {}", path.display()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_page_is_left_out_of_the_book() {
        let faults = faults();
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }

    #[test]
    fn links_lead_to_pages_of_the_book_or_to_the_repository() {
        let pages: BTreeSet<PathBuf> = ["README.md", "docs/howto/a.md", "docs/decisions/README.md"]
            .map(PathBuf::from)
            .into();
        let text = "[a](../../README.md#x) [b](../decisions) [c](../../Makefile) [d](../../core) [e](https://e.org) [f](#f)";
        let (text, _) = translated(Path::new("docs/howto/a.md"), text, &pages).unwrap();
        let repository = "https://github.com/retryrmq/retryrmq";
        assert_eq!(
            text,
            format!(
                "[a](../../index.md#x) [b](../decisions/index.md) [c]({repository}/blob/main/Makefile) [d]({repository}/tree/main/core) \
                 [e](https://e.org) [f](#f)"
            )
        );
    }
}
