//! `retryrmq-docs check`, `renew`, `ran test|test-all FOLDER`, `book FOLDER`, `site FOLDER`: see the library.

use std::{env, path::Path, process::ExitCode};

use retryrmq_docs::{
    book, change_table, folds, links, module_cycles, retired_words, site, snippets,
    test_names::{self, Run},
};

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let faults = match words[..] {
        ["check"] => [
            links::faults(),
            snippets::faults(),
            folds::faults(),
            book::faults(),
            test_names::faults(),
            retired_words::faults(),
            module_cycles::faults(),
            change_table::faults(),
        ]
        .concat(),
        ["renew"] => match snippets::renew() {
            Ok(changed) => {
                for path in changed {
                    println!("{} is new", path.display());
                }
                snippets::faults()
            }
            Err(why) => vec![why],
        },
        ["ran", run @ ("test" | "test-all"), folder] => {
            let run = match run {
                "test" => Run::Test,
                _ => Run::TestAll,
            };
            test_names::not_run(Path::new(folder), run).unwrap_or_else(|why| vec![why])
        }
        ["book", folder] => book::write(Path::new(folder)).err().into_iter().collect(),
        ["site", folder] => {
            let (count, faults) = site::faults(Path::new(folder));
            println!(
                "{count} links of the site looked at, {} lead nowhere",
                faults.len()
            );
            faults
        }
        _ => vec![
            "usage: retryrmq-docs check | renew | ran test|test-all FOLDER | book FOLDER | site FOLDER"
                .to_owned(),
        ],
    };
    for fault in &faults {
        eprintln!("{fault}");
    }
    ExitCode::from(u8::from(!faults.is_empty()))
}
