//! The names of all tests, in every language: the table in `tests/README.md` says where each of them runs, and the logs of a run
//! show whether it did.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::repository::{files, read};

const TABLE: &str = "tests/README.md";
/// Programs of others, which are observed and not tested.
const PEERS: &str = "tests/peers";
/// The first cell of the table's head.
const HEAD: &str = "| tests in |";

/// A test as its source has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Test {
    /// The file, from the root.
    pub file: PathBuf,
    /// Its name, without modules; of a computed name the part before what is computed.
    pub name: String,
    /// Whether it runs by hand alone (`#[ignore]`).
    pub by_hand: bool,
}

impl Test {
    fn named(&self) -> String {
        format!("{} {}", self.file.display(), self.name)
    }
}

/// Every test of the repository.
#[must_use]
pub fn all() -> Vec<Test> {
    let mut tests = Vec::new();
    for file in files() {
        if file.starts_with(PEERS) {
            continue;
        }
        let Ok(text) = read(&file) else { continue };
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let found = match &*name {
            name if name.ends_with(".rs") => in_rust(&text),
            name if name.starts_with("test_") && name.ends_with(".py") => in_python(&text),
            name if name.ends_with(".test.mjs") => in_node(&text),
            name if name.ends_with("_test.go") => in_go(&text),
            name if name.ends_with("Test.java") => in_java(&text),
            name if name.ends_with(".yaml") && file.starts_with("tests/scenarios") => {
                vec![(name.trim_end_matches(".yaml").to_owned(), false)]
            }
            _ => continue,
        };
        tests.extend(found.into_iter().map(|(name, by_hand)| Test {
            file: file.clone(),
            name,
            by_hand,
        }));
    }
    tests
}

/// What the table in `tests/README.md` lacks, and what it says of tests that do not exist.
#[must_use]
pub fn faults() -> Vec<String> {
    match read(Path::new(TABLE)) {
        Ok(text) => faults_of(&all(), &rows(&text)),
        Err(why) => vec![why],
    }
}

/// Languages, as parts of a run, and the folders with their tests.
const LANGUAGES: [(&str, &[&str]); 5] = [
    ("deploy", &["tests/deploy"]),
    ("go", &["bindings-go", "examples/go"]),
    ("node", &["bindings-node"]),
    ("python", &["bindings-python"]),
    ("spring", &["integrations/spring", "examples/java"]),
];

/// Which of the two runs, and so which cell of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run {
    /// `make test`
    Test,
    /// `make test-all`
    TestAll,
}

/// The tests that have to run without a hand and are in none of the logs. Of a language whose tool is missing there are none, and none of
/// those that the table leaves to the other run.
///
/// # Errors
/// When the folder has no logs.
pub fn not_run(logs: &Path, run: Run) -> Result<Vec<String>, String> {
    let rows = rows(&read(Path::new(TABLE))?);
    let unread = |why| format!("{}: {why}", logs.display());
    let says = |file: String, words: &str| {
        fs::read(logs.join(file)).is_ok_and(|text| String::from_utf8_lossy(&text).contains(words))
    };
    let is_missing = |language: &str| {
        says(format!("{language}.result"), "skipped")
            || says(
                format!("{language}.log"),
                &format!("{language}: not tested, because"),
            )
    };
    let missing: Vec<&str> = LANGUAGES
        .iter()
        .filter(|(language, _)| is_missing(language))
        .flat_map(|(_, folders)| *folders)
        .copied()
        .collect();
    let mut text = String::new();
    for entry in fs::read_dir(logs).map_err(unread)?.flatten() {
        if entry.path().extension().is_some_and(|kind| kind == "log") {
            let bytes = fs::read(entry.path()).map_err(unread)?;
            text.push_str(&String::from_utf8_lossy(&bytes));
        }
    }
    let silent = |test: &Test| {
        let is_missing = || {
            let is_rust = test.file.extension().is_some_and(|kind| kind == "rs");
            !is_rust && missing.iter().any(|folder| test.file.starts_with(folder))
        };
        !test.by_hand
            && !text.contains(&test.name)
            && !is_missing()
            && !is_left_out(test, &rows, run)
    };
    Ok(all()
        .into_iter()
        .filter(silent)
        .map(|test| format!("{}: {} did not run", test.file.display(), test.name))
        .collect())
}

/// A row of the table: where tests are, and where they run.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    /// Folders or files, or `FILE NAME` for a test that runs by hand.
    places: Vec<String>,
    /// The cells for `make test` and `make test-all`.
    runs: Vec<String>,
}

fn rows(text: &str) -> Vec<Row> {
    text.lines()
        .skip_while(|line| !line.starts_with(HEAD))
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(|line| {
            let mut cells = line.trim_matches('|').split('|').map(str::trim);
            let places = cells.next().unwrap_or_default().split('`');
            Row {
                places: places.skip(1).step_by(2).map(str::to_owned).collect(),
                runs: cells.take(2).map(str::to_owned).collect(),
            }
        })
        .collect()
}

/// The row of a test: that of the longest place that it is in.
fn row_of(test: &Test, rows: &[Row]) -> Option<usize> {
    let named = test.named();
    let fits = |place: &&String| {
        **place == named || !test.by_hand && test.file.starts_with(place.as_str())
    };
    let best = rows.iter().enumerate().filter_map(|(at, row)| {
        let longest = row.places.iter().filter(fits).map(String::len).max()?;
        Some((longest, at))
    });
    best.max().map(|(_, at)| at)
}

/// Whether the table leaves a test to the other run.
fn is_left_out(test: &Test, rows: &[Row], run: Run) -> bool {
    let cell = match run {
        Run::Test => 0,
        Run::TestAll => 1,
    };
    row_of(test, rows).is_some_and(|at| rows[at].runs.get(cell).is_some_and(|cell| cell == "-"))
}

fn faults_of(tests: &[Test], rows: &[Row]) -> Vec<String> {
    let mut faults = Vec::new();
    let mut used = vec![false; rows.len()];
    for test in tests {
        let named = test.named();
        match row_of(test, rows) {
            None if test.by_hand => faults.push(format!(
                "{TABLE}: no row says who runs `{named}`, which is ignored"
            )),
            None => faults.push(format!(
                "{TABLE}: no row says where {named} runs: add its folder to the table"
            )),
            Some(at) => {
                used[at] = true;
                if rows[at]
                    .runs
                    .iter()
                    .all(|cell| matches!(cell.as_str(), "" | "-"))
                {
                    faults.push(format!("{TABLE}: {named} runs nowhere"));
                }
            }
        }
    }
    for (row, used) in rows.iter().zip(used) {
        if !used {
            let places = row.places.join(", ");
            faults.push(format!("{TABLE}: there is no test in {places}"));
        }
    }
    if rows.is_empty() {
        faults.push(format!("{TABLE}: there is no table with `{HEAD}`"));
    }
    faults
}

/// Functions with a `test` attribute.
fn in_rust(text: &str) -> Vec<(String, bool)> {
    let mut tests = Vec::new();
    let (mut test, mut by_hand) = (false, false);
    for line in text.lines().map(str::trim) {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            (test, by_hand) = (true, false);
        } else if line.starts_with("#[ignore") {
            by_hand = true;
        } else if test && !line.starts_with("#[") {
            let name = between(line, "fn ", "(");
            tests.extend(name.map(|name| (name.to_owned(), by_hand)));
            // A macro's parameter is no name, and an attribute may go on over lines.
            test = name.is_none() && !line.starts_with("fn ");
        }
    }
    tests.retain(|(name, _)| !name.starts_with('$'));
    tests
}

fn in_python(text: &str) -> Vec<(String, bool)> {
    let functions = text.lines().filter_map(|line| {
        let line = line.trim_start();
        let line = line.strip_prefix("async ").unwrap_or(line);
        line.strip_prefix("def ")
            .filter(|line| line.starts_with("test_"))
    });
    functions
        .filter_map(|line| Some((line.split_once('(')?.0.to_owned(), false)))
        .collect()
}

fn in_node(text: &str) -> Vec<(String, bool)> {
    let calls = text.lines().filter_map(|line| {
        let line = line.trim_start();
        line.strip_prefix("test(")
            .or_else(|| line.strip_prefix("test.everywhere("))
    });
    calls
        .filter_map(|rest| {
            let quote = rest
                .chars()
                .next()
                .filter(|quote| "'\"`".contains(*quote))?;
            let name = rest[1..].split(quote).next()?;
            let name = name.split("${").next()?;
            // A name that begins with what is computed says nothing here.
            (!name.is_empty()).then(|| (name.to_owned(), false))
        })
        .collect()
}

fn in_go(text: &str) -> Vec<(String, bool)> {
    text.lines()
        .filter_map(|line| between(line, "func Test", "(t *testing.T)"))
        .map(|name| (format!("Test{name}"), false))
        .collect()
}

/// Methods with an annotation for tests.
fn in_java(text: &str) -> Vec<(String, bool)> {
    let mut tests = Vec::new();
    let mut test = false;
    for line in text.lines().map(str::trim) {
        if line == "@Test" || line.starts_with("@ParameterizedTest") {
            test = true;
        } else if test && !line.starts_with('@') {
            tests.extend(between(line, "void ", "(").map(|name| (name.to_owned(), false)));
            test = false;
        }
    }
    tests
}

fn between<'a>(line: &'a str, before: &str, after: &str) -> Option<&'a str> {
    let at = line.find(before)? + before.len();
    line[at..].split_once(after).map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(found: Vec<(String, bool)>) -> Vec<String> {
        found.into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn tests_are_found_in_every_language() {
        let rust = "#[test]\nfn one() {}\n#[tokio::test(flavor = \"x\")]\n#[ignore = \"long\"]\nasync fn two() {}\nfn three() {}\n";
        assert_eq!(in_rust(rust), [("one".into(), false), ("two".into(), true)]);
        let python = "def test_a() -> None:\nasync def test_b(x):\ndef helper():\n";
        assert_eq!(names(in_python(python)), ["test_a", "test_b"]);
        let node = "test('a b', async (t) => {\n  test(`of ${method}`, x)\ntest.everywhere('c', y)\nattest('d')\n";
        assert_eq!(names(in_node(node)), ["a b", "of ", "c"]);
        let go = "func TestA(t *testing.T) {\nfunc TestMain(m *testing.M) {\n";
        assert_eq!(names(in_go(go)), ["TestA"]);
        let java = "@Test\nvoid a() {\n@ParameterizedTest\n@MethodSource(\"b\")\nvoid c(Broker broker) {\nvoid d() {\n";
        assert_eq!(names(in_java(java)), ["a", "c"]);
    }

    #[test]
    fn a_test_without_a_row_and_a_row_without_a_test_are_faults() {
        let test = |file: &str, name: &str, by_hand| Test {
            file: file.into(),
            name: name.into(),
            by_hand,
        };
        let table = "| tests in | `make test` | `make test-all` |\n|---|---|---|\n\
            | `core/src` | all | all |\n| `core/tests` | one cell | every cell |\n| `core/tests/x.rs by_hand` | - | `make soak` |\n\nmore";
        let rows = rows(table);
        assert_eq!(rows.len(), 3);
        let fine = [
            test("core/src/a.rs", "a", false),
            test("core/tests/x.rs", "x", false),
            test("core/tests/x.rs", "by_hand", true),
        ];
        assert_eq!(faults_of(&fine, &rows), Vec::<String>::new());
        let more = [
            &fine[..],
            &[
                test("cli/src/b.rs", "b", false),
                test("core/src/a.rs", "c", true),
            ],
        ]
        .concat();
        assert_eq!(faults_of(&more, &rows).len(), 2);
        assert_eq!(faults_of(&fine[..2], &rows).len(), 1);
        let nowhere = [Row {
            places: vec!["core".into()],
            runs: vec!["-".into(), "-".into()],
        }];
        assert!(faults_of(&fine[..1], &nowhere)[0].contains("runs nowhere"));
        let nightly = [Row {
            places: vec!["core".into()],
            runs: vec!["-".into(), "all".into()],
        }];
        assert!(is_left_out(&fine[0], &nightly, Run::Test));
        assert!(!is_left_out(&fine[0], &nightly, Run::TestAll));
        assert!(!is_left_out(&fine[0], &rows, Run::Test));
    }
}
