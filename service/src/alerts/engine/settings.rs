//! What the engine is told by the configuration.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::alerts::{
    Severity, Silence,
    business_hours::Calendar,
    rule::{Rule, Trigger},
};

/// Everything but the state.
#[derive(Clone, Debug)]
pub(in crate::alerts) struct Settings {
    pub(in crate::alerts) service: String,
    /// By name.
    pub(in crate::alerts) rules: BTreeMap<String, Triggers>,
    /// The severities that each channel takes, by name.
    pub(in crate::alerts) channels: BTreeMap<String, BTreeSet<Severity>>,
    pub(in crate::alerts) silences: Vec<Silence>,
    pub(in crate::alerts) calendar: Calendar,
    pub(in crate::alerts) quiet: Duration,
    pub(in crate::alerts) growing_after: Duration,
    pub(in crate::alerts) forget_after: Duration,
    pub(in crate::alerts) most_groups: usize,
}

/// When a rule has people told.
#[derive(Clone, Debug)]
pub(in crate::alerts) struct Triggers {
    pub(in crate::alerts) on: Vec<Trigger>,
    pub(in crate::alerts) more_than: u32,
    pub(in crate::alerts) channels: Option<Vec<String>>,
}

impl Triggers {
    /// Those of what fits no rule.
    pub(super) fn otherwise() -> Self {
        Self::from(&Rule::otherwise())
    }

    pub(super) fn has(&self, trigger: Trigger) -> bool {
        self.on.contains(&trigger)
    }
}

impl From<&Rule> for Triggers {
    fn from(rule: &Rule) -> Self {
        Self {
            on: rule.on.clone(),
            more_than: rule.more_than,
            channels: rule.channels.clone(),
        }
    }
}
