//! What holds the documentation: every link leads somewhere, every snippet is that of a file that a test runs, and every
//! configuration can be read.
//!
//! ```text
//! repository ─► page ─► links       a target for every link and anchor, as GitHub makes them
//!                    ─► snippets    a snippet is what its source says; anything else is parsed, or run by cli/tests/command/pages.rs
//!                    ─► folds       sections that GitHub folds, and the site shows as tabs
//!                    ─► book        the pages of docs/SUMMARY.md as sources of mdBook
//!                       site        the links and anchors of what mdBook made
//!            ─► reference          the tables of options, events and errors, made from the code of all languages (only in tests)
//!            ─► printed_examples   the programs and policies that pages print (only in tests)
//!            ─► test_names         where each test runs, as the table in tests/README.md says
//!            ─► module_cycles      modules of a crate that use each other in a circle
//!            ─► change_table       the files that ARCHITECTURE.md names for each kind of change
//!            ─► retired_words      identifiers and prose without the words of retired_words.tsv
//! ```

pub mod book;
pub mod change_table;
pub mod folds;
pub mod links;
pub mod module_cycles;
pub mod page;
#[cfg(test)]
mod printed_examples;
#[cfg(test)]
mod reference;
pub mod repository;
pub mod retired_words;
pub mod site;
pub mod snippets;
pub mod test_names;
