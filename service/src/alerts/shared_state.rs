//! What the parts of the alerts share: counts of what was told, and what the leader shows.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize},
    },
};

use super::{ChannelCounts, Counts, GroupView, Silence};

/// What the parts of the alerts share.
#[derive(Debug, Default)]
pub(super) struct SharedState {
    pub(super) received: AtomicU64,
    pub(super) dropped: AtomicU64,
    /// Those dropped that no report has mentioned yet.
    pub(super) unmentioned: AtomicU64,
    pub(super) unevaluated: AtomicU64,
    pub(super) bytes: AtomicUsize,
    pub(super) view: Mutex<NotifierView>,
    pub(super) channels: BTreeMap<String, Arc<Mutex<ChannelCounts>>>,
}

/// What the leader shows. Empty on the others.
#[derive(Debug, Default)]
pub(super) struct NotifierView {
    pub(super) counts: Counts,
    pub(super) groups: Vec<GroupView>,
    pub(super) silences: Vec<Silence>,
}
