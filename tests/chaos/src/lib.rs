//! Lives of real consumers on real brokers and clusters, all harm from one seed: consumers, nodes and networks that are killed,
//! stopped and cut, handlers that fail, hang and take their process along. When the harm is over everything must come to its end, and
//! the ledger shows whether anything was lost.
//!
//! ```text
//!  publisher ─► wire ─► node, or cluster ◄─ wire ◄─ consumer, a process ─► lines ─► ledger
//!                 ▲           ▲               ▲        ▲
//!                 └───────────┴── timetable ──┴────────┘
//!                                  seed
//! ```

mod broken_consumer;
mod consumer_side;
pub mod environment;
pub mod faults;
pub mod handler_script;
pub mod ledger;
pub mod operator;
pub mod plan;
pub mod publisher;
pub mod run;
pub mod scenario;
pub mod supervised_process;
pub mod table;
pub mod worker;
