//! The document and the tests must tell the same story.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// `docs/broker-facts.md` names each test, as `file::function`, and no other.
#[test]
fn the_document_names_every_test_and_no_other() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let document =
        fs::read_to_string(here.join("../../docs/broker-facts.md")).expect("the document");
    let named: BTreeSet<String> = document
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|code| code.contains("::") && !code.contains(['(', ' ', '<']))
        .map(ToOwned::to_owned)
        .collect();
    let mut written = BTreeSet::new();
    for folder in ["facts", "lapin", "nodes"] {
        for file in fs::read_dir(here.join("tests").join(folder)).expect("the tests") {
            let path = file.expect("a file").path();
            let module = path
                .file_stem()
                .expect("a name")
                .to_string_lossy()
                .into_owned();
            let source = fs::read_to_string(&path).expect("a source file");
            written.extend(tests(&source).map(|name| format!("{module}::{name}")));
        }
    }
    let missing: Vec<_> = written.difference(&named).collect();
    let unknown: Vec<_> = named.difference(&written).collect();
    assert!(
        missing.is_empty() && unknown.is_empty(),
        "not in the document: {missing:#?}\nno such test: {unknown:#?}"
    );
}

/// The names of the functions that are tests by themselves.
fn tests(source: &str) -> impl Iterator<Item = &str> {
    let mut is_test = false;
    source.lines().filter_map(move |line| {
        if line == "#[test]" || line == "#[tokio::test]" {
            is_test = true;
        } else if line.starts_with("#[ignore") {
            is_test = false;
        } else if let Some((_, rest)) = line.split_once("fn ").filter(|_| is_test) {
            is_test = false;
            return rest.split('(').next();
        }
        None
    })
}
