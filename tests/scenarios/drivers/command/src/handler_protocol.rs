//! What handler and driver say to each other over the socket, a JSON object a line.

use retryrmq_scenarios::script::Step;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The environment variable that holds the socket's path; a process that has it is a handler.
pub(crate) const SOCKET: &str = "SCENARIO_SOCKET";

/// Handler → driver.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Word {
    /// I was started and see this: the fields of the line `attempt`.
    Sees(Map<String, Value>),
    /// My step is over, apart from its end.
    Settles,
}

/// Driver → handler, for [`Word::Sees`].
#[derive(Debug, Deserialize)]
pub(crate) struct Part {
    pub(crate) step: Step,
}
