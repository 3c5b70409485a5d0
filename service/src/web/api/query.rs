//! What stands behind the `?` of an address.

use schemars::JsonSchema;
use serde::Deserialize;

use super::problem::Problem;

/// Which queue.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct QueueQuery {
    /// The work queue; without it all of them.
    #[schemars(length(min = 1, max = 255))]
    pub(super) queue: Option<String>,
}

/// Which actions.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ActionsQuery {
    /// The work queue; without it all of them.
    #[schemars(length(min = 1, max = 255))]
    pub(super) queue: Option<String>,
    /// How many at most. Without it 100.
    #[schemars(range(min = 1, max = 1000))]
    pub(super) limit: Option<usize>,
}

/// Which messages of a queue.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct MessagesQuery {
    /// The group; without it all of them.
    pub(super) fingerprint: Option<String>,
    /// How many at most. Without it 100.
    #[schemars(range(min = 1, max = 1000))]
    pub(super) limit: Option<usize>,
    /// Where the part begins: the `next` of the part before.
    #[schemars(regex(pattern = r"^-?[0-9]{1,30}\."))]
    pub(super) cursor: Option<String>,
}

/// What is looked for.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SearchQuery {
    /// The text. Case is ignored.
    #[schemars(length(min = 1, max = 200), regex(pattern = r"\S"))]
    pub(super) q: String,
    /// How many at most. Without it 100.
    #[schemars(range(min = 1, max = 1000))]
    pub(super) limit: Option<usize>,
}

/// Which results.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ResultsQuery {
    /// How many results to leave out. Without it 0.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub(super) offset: Option<usize>,
    /// How many at most. Without it 100.
    #[schemars(range(min = 1, max = 1000))]
    pub(super) limit: Option<usize>,
}

/// Entries of a part of a list.
const USUAL: usize = 100;
const MOST: usize = 1_000;
/// More results no job has.
const MOST_LEFT_OUT: usize = 1_000_000;

/// How many entries are wanted.
pub(super) fn limit(said: Option<usize>) -> Result<usize, Problem> {
    match said {
        None => Ok(USUAL),
        Some(limit @ 1..=MOST) => Ok(limit),
        Some(_) => Err(Problem::invalid("`limit` must be 1 to 1000.")),
    }
}

/// How many entries to leave out.
pub(super) fn offset(said: Option<usize>) -> Result<usize, Problem> {
    match said.unwrap_or(0) {
        offset @ 0..=MOST_LEFT_OUT => Ok(offset),
        _ => Err(Problem::invalid("`offset` must be 0 to 1000000.")),
    }
}

/// A name in a query.
pub(super) fn queue(said: Option<&str>) -> Result<Option<&str>, Problem> {
    match said {
        Some(name) if name.is_empty() || name.len() > 255 => Err(Problem::invalid(
            "`queue` must be the name of a queue, 1 to 255 bytes.",
        )),
        said => Ok(said),
    }
}
