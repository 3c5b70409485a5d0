//! The page for people, by HTTP, on real brokers.

mod clicks;
mod jobs;
mod rights;
mod stream;
mod visitor;

use std::path::Path;

use retryrmq_harness::{Amqp, eventually};

use crate::fixture::DEADLINE;

use visitor::link;
pub(crate) use visitor::{Visitor, value_of};

/// A policy file with three people, whose tokens are their names, twice as long as need be.
pub(crate) fn people(folder: &Path, more: &str) -> String {
    let mut text = more.to_owned();
    for (name, role) in [("rea", "reader"), ("olga", "operator"), ("ada", "admin")] {
        let file = folder.join(name);
        std::fs::write(&file, format!("{name}-0123456789abcdef\n")).unwrap();
        let file = file.display();
        text.push_str(&format!(
            "\n[[page.tokens]]\nname = \"{name}\"\nrole = \"{role}\"\nfile = \"{file}\"\n"
        ));
    }
    text
}

pub(crate) async fn depth(amqp: &Amqp, queue: &str, wanted: u32) {
    eventually(DEADLINE, &format!("{queue} holds {wanted}"), || async {
        match amqp.depth(queue).await {
            Some(depth) if depth == wanted => Ok(()),
            depth => Err(format!("{depth:?}")),
        }
    })
    .await;
}
