//! Words that this project no longer uses: `retired_words.tsv` lists each with its replacement, and `retired_words_allowed.tsv` the
//! places where such a word is right. Identifiers of all languages are checked, and the prose of pages.

use std::{fmt::Write, path::Path};

use pulldown_cmark::{Event, Parser, Tag, TagEnd};

use crate::repository::{files, read};

const WORDS: &str = include_str!("retired_words.tsv");
const ALLOWED: &str = include_str!("retired_words_allowed.tsv");
/// It names what was renamed.
const CHANGELOG: &str = "CHANGELOG.md";
/// Programs of others, which are observed and not named by us.
const PEERS: &str = "tests/peers";

/// A word that is no longer used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Retired<'a> {
    word: &'a str,
    instead: &'a str,
    in_identifiers: bool,
    in_prose: bool,
}

/// A retired word that is right in these files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Allowed<'a> {
    word: &'a str,
    path: &'a str,
}

/// How a language writes comments and texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Language {
    Rust,
    Python,
    /// TypeScript, JavaScript, Go and Java.
    Braces,
}

/// Every use of a retired word that is not allowed, and every mistake in the two lists.
#[must_use]
pub fn faults() -> Vec<String> {
    let (retired, allowed) = match (retired(WORDS), allowed(ALLOWED)) {
        (Ok(retired), Ok(allowed)) => (retired, allowed),
        (retired, allowed) => return retired.err().into_iter().chain(allowed.err()).collect(),
    };
    let mut faults = Vec::new();
    let mut is_used = vec![false; allowed.len()];
    for file in files() {
        if file.starts_with(PEERS) || file == Path::new(CHANGELOG) {
            continue;
        }
        let extension = file.extension().and_then(|kind| kind.to_str());
        let language = match extension.unwrap_or_default() {
            "rs" => Some(Language::Rust),
            "py" | "pyi" => Some(Language::Python),
            "ts" | "mts" | "js" | "mjs" | "go" | "java" => Some(Language::Braces),
            "md" => None,
            _ => continue,
        };
        let Ok(text) = read(&file) else { continue };
        let found = match language {
            Some(language) => in_code(&text, language, &retired),
            None => in_prose(&text, &retired),
        };
        for (line, word) in found {
            let excuse = allowed
                .iter()
                .position(|allowed| allowed.word == word.word && file.starts_with(allowed.path));
            match excuse {
                Some(excuse) => is_used[excuse] = true,
                None => faults.push(format!(
                    "{}:{line}: \"{}\" is retired: use {}",
                    file.display(),
                    word.word,
                    word.instead
                )),
            }
        }
    }
    for (allowed, is_used) in allowed.iter().zip(is_used) {
        if !is_used {
            faults.push(format!(
                "retired_words_allowed.tsv: nothing in {} uses \"{}\"",
                allowed.path, allowed.word
            ));
        }
    }
    faults
}

fn rows(list: &str) -> impl Iterator<Item = Vec<&str>> {
    list.lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| line.split('\t').collect())
}

fn retired(list: &str) -> Result<Vec<Retired<'_>>, String> {
    let mut words: Vec<Retired<'_>> = Vec::new();
    for row in rows(list) {
        let &[word, instead, place] = &row[..] else {
            return Err(format!(
                "retired_words.tsv: {row:?} has not three columns with tabs between them"
            ));
        };
        let is_plain = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase());
        if !is_plain || words.iter().any(|known| known.word == word) {
            return Err(format!(
                "retired_words.tsv: {word:?} is there twice, or is not a word in lower case"
            ));
        }
        let (in_identifiers, in_prose) = match place {
            "identifiers" => (true, false),
            "prose" => (false, true),
            "both" => (true, true),
            _ => {
                return Err(format!(
                    "retired_words.tsv: {place:?} of {word} is not `identifiers`, `prose` or `both`"
                ));
            }
        };
        words.push(Retired {
            word,
            instead,
            in_identifiers,
            in_prose,
        });
    }
    Ok(words)
}

fn allowed(list: &str) -> Result<Vec<Allowed<'_>>, String> {
    rows(list)
        .map(|row| match row[..] {
            [word, path, why] if !why.is_empty() => Ok(Allowed { word, path }),
            _ => Err(format!(
                "retired_words_allowed.tsv: {row:?} is not a word, a path and a reason"
            )),
        })
        .collect()
}

/// Retired words in the identifiers of a source file, each with its line.
fn in_code<'r, 'a>(
    text: &str,
    language: Language,
    retired: &'r [Retired<'a>],
) -> Vec<(usize, &'r Retired<'a>)> {
    let code = without_texts(text, language);
    let mut found = Vec::new();
    for (number, line) in code.lines().enumerate() {
        let identifiers = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        for part in identifiers.flat_map(parts) {
            let word = retired
                .iter()
                .find(|retired| retired.in_identifiers && retired.word == part);
            found.extend(word.map(|word| (number + 1, word)));
        }
    }
    found
}

/// The words of an identifier in lower case: `HTTPRequest_id2` has `http`, `request` and `id2`.
fn parts(identifier: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    for section in identifier.split('_') {
        let letters: Vec<char> = section.chars().collect();
        let mut part = String::new();
        for (at, letter) in letters.iter().enumerate() {
            let follows_lower = at > 0 && !letters[at - 1].is_ascii_uppercase();
            let precedes_lower = letters.get(at + 1).is_some_and(char::is_ascii_lowercase);
            if letter.is_ascii_uppercase() && (follows_lower || precedes_lower) && !part.is_empty()
            {
                parts.push(std::mem::take(&mut part));
            }
            part.push(letter.to_ascii_lowercase());
        }
        if !part.is_empty() {
            parts.push(part);
        }
    }
    parts
}

/// The source with blanks in the place of comments and texts; the lines stay.
fn without_texts(text: &str, language: Language) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = skipped(rest, language);
        if length == 0 {
            code.push(first);
            rest = &rest[first.len_utf8()..];
        } else {
            let (skipped, left) = rest.split_at(length);
            let _ = write!(code, " {}", "\n".repeat(skipped.matches('\n').count()));
            rest = left;
        }
    }
    code
}

/// How many bytes the comment or text takes that begins here; 0 where none does.
fn skipped(rest: &str, language: Language) -> usize {
    let through = |start: usize, end: &str| {
        rest[start..]
            .find(end)
            .map_or(rest.len(), |at| start + at + end.len())
    };
    let to_the_end_of_the_line = || rest.find('\n').unwrap_or(rest.len());
    match language {
        Language::Rust if rest.starts_with("r\"") => through(2, "\""),
        Language::Rust if rest.starts_with("r#\"") => through(3, "\"#"),
        Language::Rust if rest.starts_with("'\"'") => 3,
        Language::Rust | Language::Braces if rest.starts_with("//") => to_the_end_of_the_line(),
        Language::Rust | Language::Braces if rest.starts_with("/*") => through(2, "*/"),
        Language::Python if rest.starts_with('#') => to_the_end_of_the_line(),
        Language::Python if rest.starts_with("\"\"\"") => through(3, "\"\"\""),
        Language::Python if rest.starts_with("'''") => through(3, "'''"),
        Language::Python | Language::Braces if rest.starts_with('\'') => quoted(rest, '\'', false),
        Language::Braces if rest.starts_with('`') => through(1, "`"),
        _ if rest.starts_with('"') => quoted(rest, '"', language == Language::Rust),
        _ => 0,
    }
}

/// The length of a text with its quotes. A quote that is not closed where it has to be is taken for something else.
fn quoted(rest: &str, quote: char, may_span_lines: bool) -> usize {
    let mut is_escaped = false;
    for (at, letter) in rest.char_indices().skip(1) {
        match letter {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            _ if letter == quote => return at + 1,
            '\n' if !may_span_lines => return 0,
            _ => {}
        }
    }
    0
}

/// Retired words in the prose of a page, without what it shows as code, each with its line.
fn in_prose<'r, 'a>(text: &str, retired: &'r [Retired<'a>]) -> Vec<(usize, &'r Retired<'a>)> {
    let mut found = Vec::new();
    let mut is_code = false;
    for (event, range) in Parser::new(text).into_offset_iter() {
        match event {
            Event::Start(Tag::CodeBlock(_)) => is_code = true,
            Event::End(TagEnd::CodeBlock) => is_code = false,
            Event::Text(words) if !is_code => {
                let line = text[..range.start].matches('\n').count() + 1;
                for word in words.split(|c: char| !c.is_alphabetic()) {
                    let word = retired.iter().find(|retired| {
                        retired.in_prose && word.eq_ignore_ascii_case(retired.word)
                    });
                    found.extend(word.map(|word| (line, word)));
                }
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "# a comment\nclerk\thandler\tboth\nrung\tdelay step\tidentifiers\nspeaker\tleader\tprose\n";

    fn found(found: Vec<(usize, &Retired<'_>)>) -> Vec<(usize, String)> {
        found
            .into_iter()
            .map(|(line, word)| (line, word.word.to_owned()))
            .collect()
    }

    fn code(text: &str, language: Language) -> Vec<(usize, String)> {
        found(in_code(text, language, &retired(LIST).unwrap()))
    }

    #[test]
    fn an_identifier_is_taken_apart() {
        assert_eq!(parts("HTTPRequest_id2"), ["http", "request", "id2"]);
        assert_eq!(parts("nextClerk"), ["next", "clerk"]);
        assert_eq!(parts("NEXT_CLERK"), ["next", "clerk"]);
        assert_eq!(parts("_clerks"), ["clerks"]);
        assert_eq!(parts("x"), ["x"]);
    }

    #[test]
    fn words_of_identifiers_are_found_in_every_language() {
        let rust = "struct Clerk;\nfn f(rung: &'a str) { let the_clerk = 1; }\n";
        let expected = [(1, "clerk"), (2, "rung"), (2, "clerk")];
        let expected: Vec<_> = expected.map(|(line, word)| (line, word.to_owned())).into();
        assert_eq!(code(rust, Language::Rust), expected);
        assert_eq!(
            code("def clerk():\n    return _rung\n", Language::Python),
            [(1, "clerk".to_owned()), (2, "rung".to_owned())]
        );
        assert_eq!(
            code("const nextClerk = `${x}`; // a note\n", Language::Braces),
            [(1, "clerk".to_owned())]
        );
        // A word of prose alone may be an identifier.
        assert!(code("speaker()", Language::Rust).is_empty());
    }

    #[test]
    fn comments_and_texts_hold_no_identifiers() {
        for (text, language) in [
            (
                "// clerk\n/* clerk\nrung */ f(\"clerk \\\" rung\")",
                Language::Rust,
            ),
            ("f(r\"clerk\", r#\"a \" clerk\"#, '\"')", Language::Rust),
            (
                "# clerk\nf('clerk', \"rung\")\n'''clerk\nrung'''",
                Language::Python,
            ),
            ("\"\"\"clerk\n'rung' \"\"\"", Language::Python),
            (
                "f('clerk', \"rung\", `clerk\nrung`) // clerk",
                Language::Braces,
            ),
        ] {
            assert_eq!(code(text, language), [], "{text}");
        }
    }

    #[test]
    fn what_follows_a_text_is_found_in_its_line() {
        for (text, language) in [
            ("f(\"a\nb\");\nlet clerk = '\"';\n", Language::Rust),
            ("fn f<'a>(x: &'a str) {}\n\nstruct Clerk;", Language::Rust),
            ("'''a\nb'''\nclerk = 1", Language::Python),
            ("f(`a\nb`)\nclerk()", Language::Braces),
        ] {
            assert_eq!(code(text, language), [(3, "clerk".to_owned())], "{text}");
        }
    }

    #[test]
    fn prose_is_read_without_its_code() {
        let retired = retired(LIST).unwrap();
        let page =
            "# The Clerk\n\nOne *speaker*, `clerk`, a rung, speakers.\n\n```sh\nclerk\n```\n";
        assert_eq!(
            found(in_prose(page, &retired)),
            [(1, "clerk".to_owned()), (3, "speaker".to_owned())]
        );
    }

    #[test]
    fn a_list_with_a_mistake_is_refused() {
        for list in [
            "clerk\thandler",
            "clerk\thandler\tnowhere",
            "Clerk\thandler\tboth",
            "clerk\thandler\tboth\nclerk\thandler\tprose",
        ] {
            assert!(retired(list).is_err(), "{list}");
        }
        assert!(allowed("clerk\tcore").is_err());
        assert!(allowed("clerk\tcore\t").is_err());
        assert!(retired(WORDS).is_ok() && allowed(ALLOWED).is_ok());
    }

    #[test]
    fn no_replacement_is_itself_retired() {
        let words = retired(WORDS).unwrap();
        for word in &words {
            let instead = word.instead.split(|c: char| !c.is_alphabetic());
            for part in instead {
                assert!(!words.iter().any(|other| other.word == part), "{word:?}");
            }
        }
    }
}
