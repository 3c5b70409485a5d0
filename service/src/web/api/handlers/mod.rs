//! What is answered: each handler reads what it is asked for, calls what the page calls, and converts the answer.

pub(super) mod activity;
pub(super) mod jobs;
pub(super) mod messages;
pub(super) mod queues;
