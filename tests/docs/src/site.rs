//! The links and anchors of a site that was built.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use crate::{links::is_elsewhere, repository};

/// The values of an attribute.
fn values<'a>(html: &'a str, attribute: &'a str) -> impl Iterator<Item = &'a str> {
    html.match_indices(attribute)
        .filter_map(move |(at, _)| html[at + attribute.len()..].split('"').next())
}

fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
    for path in fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
    {
        if path.is_dir() {
            walk(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// What is wrong with the links of the site in this folder, and how many links there are.
#[must_use]
pub fn faults(folder: &Path) -> (usize, Vec<String>) {
    let mut files = Vec::new();
    walk(folder, &mut files);
    let pages: BTreeMap<&PathBuf, String> = files
        .iter()
        .filter(|path| path.extension().is_some_and(|kind| kind == "html"))
        // All pages in one, with links as they are in each; and a page that is shown at any address.
        .filter(|path| !path.ends_with("print.html") && !path.ends_with("404.html"))
        .map(|path| (path, fs::read_to_string(path).unwrap_or_default()))
        .collect();
    let anchors: BTreeMap<&PathBuf, BTreeSet<&str>> = pages
        .iter()
        .map(|(path, html)| (*path, values(html, " id=\"").collect()))
        .collect();
    let mut faults = BTreeSet::new();
    let mut count = 0;
    for (path, html) in &pages {
        for to in values(html, " href=\"").chain(values(html, " src=\"")) {
            if is_elsewhere(to) || to.starts_with("data:") || to.starts_with("javascript:") {
                continue;
            }
            count += 1;
            let (file, anchor) = to.split_once('#').unwrap_or((to, ""));
            let target = if file.is_empty() {
                (*path).clone()
            } else {
                repository::normal(&path.parent().unwrap_or(folder).join(file))
            };
            let is_there = target.exists();
            let has_anchor = anchor.is_empty()
                || anchors
                    .get(&target)
                    .is_none_or(|known| known.contains(anchor));
            if !is_there || !has_anchor {
                let page = path
                    .strip_prefix(folder)
                    .unwrap_or(path)
                    .display()
                    .to_string();
                faults.insert(format!("{page}: `{to}` leads nowhere"));
            }
        }
    }
    if pages.is_empty() {
        faults.insert(format!("there is no page in {}", folder.display()));
    }
    (count, faults.into_iter().collect())
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_site_without_pages_is_none() {
        let (count, faults) = super::faults(std::path::Path::new("/nowhere"));
        assert_eq!((count, faults.len()), (0, 1));
    }
}
