//! Modules of a crate that use each other in a circle. The modules at the top of a crate are looked at, each with all files below it: none of
//! them may need another one that needs it in turn. Tests do not count, nor does `lib.rs`, which only gathers what is public.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use syn::{
    Attribute, File, Item, ItemMod, ItemUse, UseTree, Visibility,
    visit::{self, Visit},
};

use crate::repository::{files, read};

/// The crates without circles, by the folder of their sources.
const CRATES: [&str; 5] = [
    "bindings-common/src",
    "cli/src",
    "core/src",
    "operator/src",
    "service/src",
];

/// The modules at the top, and which others each of them uses, with a file that does.
type Uses = BTreeMap<String, BTreeMap<String, String>>;

/// Each circle of modules, with the uses that it consists of.
#[must_use]
pub fn faults() -> Vec<String> {
    let mut faults = Vec::new();
    for sources in CRATES {
        match uses_of(sources) {
            Ok(uses) => {
                faults.extend(circles(&uses).into_iter().map(|circle| {
                    format!("{sources}: modules use each other in a circle: {circle}")
                }))
            }
            Err(why) => faults.push(why),
        }
    }
    faults
}

fn uses_of(sources: &str) -> Result<Uses, String> {
    let mut parsed = Vec::new();
    for path in files() {
        let is_rust = path.extension().is_some_and(|kind| kind == "rs");
        if let Ok(inner) = path.strip_prefix(sources)
            && is_rust
        {
            let file = syn::parse_file(&read(&path)?)
                .map_err(|why| format!("{}: {why}", path.display()))?;
            parsed.push((module_of(inner), path.display().to_string(), file));
        }
    }
    Ok(gather(&parsed))
}

/// `parking/browse.rs` is `["parking", "browse"]`; the root is `[]`.
fn module_of(path: &Path) -> Vec<String> {
    let mut module: Vec<String> = path
        .with_extension("")
        .iter()
        .map(|part| part.to_string_lossy().into_owned())
        .collect();
    let last = module.last().map(String::as_str);
    if matches!(last, Some("mod" | "lib" | "main")) {
        module.pop();
    }
    module
}

fn gather(parsed: &[(Vec<String>, String, File)]) -> Uses {
    let mut tests = BTreeSet::new();
    let mut exports = BTreeMap::new();
    for (module, _, file) in parsed {
        for item in &file.items {
            match item {
                Item::Mod(inner) if inner.content.is_none() && is_test(&inner.attrs) => {
                    tests.insert([&module[..], &[inner.ident.to_string()]].concat());
                }
                Item::Use(exported) if module.is_empty() && is_public(exported) => {
                    each_path(&exported.tree, &mut Vec::new(), &mut |path, name| {
                        let from = path.iter().find(|part| !is_relative(part));
                        if let (Some(from), Some(name)) = (from, name) {
                            exports.insert(name.to_owned(), from.clone());
                        }
                    });
                }
                _ => {}
            }
        }
    }
    let tops: BTreeSet<&str> = parsed
        .iter()
        .filter_map(|(module, ..)| Some(module.first()?.as_str()))
        .collect();
    let mut uses = Uses::new();
    for (module, path, file) in parsed {
        let is_of_a_test = (1..=module.len()).any(|length| tests.contains(&module[..length]));
        let Some(top) = module.first().filter(|_| !is_of_a_test) else {
            continue;
        };
        let mut used = Used {
            module: module.clone(),
            found: BTreeSet::new(),
        };
        used.visit_file(file);
        for name in used.found {
            let target = exports.get(&name).unwrap_or(&name);
            if target != top && tops.contains(target.as_str()) {
                let of = uses.entry(top.clone()).or_default();
                of.entry(target.clone()).or_insert_with(|| path.clone());
            }
        }
    }
    uses
}

fn is_relative(part: &str) -> bool {
    matches!(part, "crate" | "self" | "super")
}

fn is_public(item: &ItemUse) -> bool {
    !matches!(item.vis, Visibility::Inherited)
}

/// `#[cfg(test)]`, also among other conditions.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let tokens = match &attribute.meta {
            syn::Meta::List(list) if attribute.path().is_ident("cfg") => list.tokens.to_string(),
            _ => return false,
        };
        let words: Vec<&str> = tokens
            .split(|character: char| !character.is_alphanumeric())
            .collect();
        words.contains(&"test") && !words.contains(&"not") && !words.contains(&"any")
    })
}

/// What a file uses from the root of its crate: the first name behind `crate`.
struct Used {
    module: Vec<String>,
    found: BTreeSet<String>,
}

impl Used {
    fn note(&mut self, path: &[String]) {
        let mut place = self.module.clone();
        let mut rest = path;
        match rest.first().map(String::as_str) {
            Some("crate") => (place, rest) = (Vec::new(), &rest[1..]),
            Some("super") => {
                while rest.first().is_some_and(|part| part == "super") {
                    place.pop();
                    rest = &rest[1..];
                }
            }
            _ => return,
        }
        if let Some(name) = place.first().or(rest.first()) {
            self.found.insert(name.clone());
        }
    }
}

impl<'ast> Visit<'ast> for Used {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Const(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Mod(item) => &item.attrs,
            Item::Struct(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            _ => return visit::visit_item(self, item),
        };
        if !is_test(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, inner: &'ast ItemMod) {
        self.module.push(inner.ident.to_string());
        visit::visit_item_mod(self, inner);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        // What a module passes on is its table of contents.
        if !is_public(item) {
            each_path(&item.tree, &mut Vec::new(), &mut |path, _| self.note(path));
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let parts: Vec<String> = path
            .segments
            .iter()
            .map(|one| one.ident.to_string())
            .collect();
        self.note(&parts);
        visit::visit_path(self, path);
    }
}

/// Each path of a tree, and the name under which it is known.
fn each_path(
    tree: &UseTree,
    before: &mut Vec<String>,
    note: &mut impl FnMut(&[String], Option<&str>),
) {
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            each_path(&path.tree, before, note);
            before.pop();
        }
        UseTree::Group(group) => {
            for tree in &group.items {
                each_path(tree, before, note);
            }
        }
        UseTree::Glob(_) => note(before, None),
        UseTree::Name(name) => {
            let name = name.ident.to_string();
            before.push(name.clone());
            note(before, Some(&name));
            before.pop();
        }
        UseTree::Rename(renamed) => {
            before.push(renamed.ident.to_string());
            note(before, Some(&renamed.rename.to_string()));
            before.pop();
        }
    }
}

/// One circle for each set of modules that reach each other.
fn circles(uses: &Uses) -> Vec<String> {
    let reached: BTreeMap<&String, BTreeSet<&String>> = uses
        .keys()
        .map(|module| (module, reached_from(uses, module)))
        .collect();
    let mut seen: BTreeSet<&String> = BTreeSet::new();
    let mut circles = Vec::new();
    for (module, others) in &reached {
        if !others.contains(module) || seen.contains(module) {
            continue;
        }
        let circle: BTreeSet<&String> = others
            .iter()
            .copied()
            .filter(|other| reached.get(other).is_some_and(|back| back.contains(module)))
            .collect();
        seen.extend(&circle);
        let steps: Vec<String> = circle
            .iter()
            .flat_map(|from| uses[*from].iter().map(move |(to, file)| (from, to, file)))
            .filter(|(_, to, _)| circle.contains(to))
            .map(|(from, to, file)| format!("{from} uses {to} in {file}"))
            .collect();
        circles.push(steps.join("; "));
    }
    circles
}

fn reached_from<'a>(uses: &'a Uses, module: &String) -> BTreeSet<&'a String> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&String> = uses
        .get(module)
        .into_iter()
        .flat_map(|to| to.keys())
        .collect();
    while let Some(module) = next.pop() {
        if reached.insert(module) {
            next.extend(uses.get(module).into_iter().flat_map(|to| to.keys()));
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(sources: &[(&str, &str)]) -> Vec<String> {
        let parsed: Vec<_> = sources
            .iter()
            .map(|(path, text)| {
                let file = syn::parse_file(text).unwrap();
                (module_of(Path::new(path)), (*path).to_owned(), file)
            })
            .collect();
        circles(&gather(&parsed))
    }

    #[test]
    fn a_circle_is_found_through_files_re_exports_and_paths() {
        let root = ("lib.rs", "mod a; mod b; mod c; pub use b::B;");
        let c = ("c.rs", "fn c() { super::a::deep::begin() }");
        let b = ("b/mod.rs", "use crate::c::C; pub struct B;");
        let circle = found(&[root, b, c, ("a/deep.rs", "use crate::{B, Other};")]);
        assert_eq!(
            circle,
            ["a uses b in a/deep.rs; b uses c in b/mod.rs; c uses a in c.rs"]
        );
    }

    #[test]
    fn neither_tests_nor_tables_of_contents_make_a_circle() {
        let root = ("lib.rs", "mod a; mod b; #[cfg(test)] mod checks;");
        let a = (
            "a/mod.rs",
            "pub(crate) use crate::b::B; #[cfg(test)] mod tests { use crate::b::B; } #[cfg(test)] use crate::b::C;",
        );
        let tests = ("a/tests.rs", "use crate::b::B;");
        let checks = ("checks.rs", "use crate::{a::A, b::B};");
        let with_tests = ("a/sub.rs", "use super::B; use super::super::a::A;");
        let b = ("b.rs", "use crate::a::A;");
        let declared = ("a/mod.rs", "#[cfg(test)] mod tests;");
        assert!(found(&[root, a, with_tests, checks, b]).is_empty());
        assert!(found(&[root, declared, tests, b]).is_empty());
    }

    #[test]
    fn the_crates_have_none() {
        assert_eq!(faults(), Vec::<String>::new());
    }
}
