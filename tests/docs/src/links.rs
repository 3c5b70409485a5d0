//! Every link leads to a file of the repository, and every anchor to a heading. What is elsewhere on the network is not asked.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use crate::{page, repository};

/// Whether a link leads out of the repository.
#[must_use]
pub fn is_elsewhere(to: &str) -> bool {
    to.contains("://") || to.starts_with("mailto:")
}

/// What is wrong with the links of all pages: a line for each.
#[must_use]
pub fn faults() -> Vec<String> {
    let paths = repository::pages();
    let mut faults = Vec::new();
    let mut pages = BTreeMap::new();
    for path in paths {
        match repository::read(&path) {
            Ok(text) => {
                let read = page::read(&text);
                pages.insert(path, (text, read));
            }
            Err(why) => faults.push(why),
        }
    }
    for (path, (text, page)) in &pages {
        for link in page.links.iter().filter(|link| !is_elsewhere(&link.to)) {
            let line = text[..link.range.start].matches('\n').count() + 1;
            if let Some(why) = fault(path, &link.to, |path| {
                pages.get(path).map(|(_, page)| page.anchors.as_slice())
            }) {
                faults.push(format!("{}:{line}: {why}", path.display()));
            }
        }
    }
    faults
}

/// What is wrong with a link in the page at `from`; `anchors` are those of a page, by its path.
fn fault<'a>(
    from: &Path,
    to: &str,
    anchors: impl Fn(&Path) -> Option<&'a [String]>,
) -> Option<String> {
    let (file, anchor) = to.split_once('#').unwrap_or((to, ""));
    let target: PathBuf = if file.is_empty() {
        from.to_owned()
    } else {
        repository::normal(&from.parent().unwrap_or(Path::new("")).join(file))
    };
    if !repository::root().join(&target).exists() {
        return Some(format!("there is no {}", target.display()));
    }
    // What a line of a source is called GitHub knows.
    if anchor.is_empty() || target.extension().is_none_or(|kind| kind != "md") {
        return None;
    }
    let known = anchors(&target).unwrap_or_default();
    (!known.iter().any(|known| known == anchor))
        .then(|| format!("{} has no heading #{anchor}", target.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_link_leads_somewhere() {
        let faults = faults();
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }

    #[test]
    fn a_link_to_nowhere_is_found() {
        let anchors = ["here".to_owned()];
        let of = |_: &Path| Some(anchors.as_slice());
        let from = Path::new("docs/SUMMARY.md");
        assert!(fault(from, "../README.md#here", of).is_none());
        assert!(fault(from, "../Makefile#any", of).is_none());
        assert!(fault(from, "../README.md#there", of).is_some());
        assert!(fault(from, "../missing.md", of).is_some());
    }
}
