//! What each component is given of the configuration in force: its own part, so that none depends on the sections of another.

use std::sync::Arc;

use tokio::sync::watch;

use super::ServiceConfig;
use crate::{
    PolicyRules, alerting_runtime::AlertSections, delayed::DelayedSections, web::WebConfig,
};

/// A sender for each component.
#[derive(Debug)]
pub(crate) struct ComponentConfigs {
    rules: watch::Sender<PolicyRules>,
    reads_bodies: watch::Sender<bool>,
    delayed: watch::Sender<DelayedSections>,
    alerts: watch::Sender<AlertSections>,
    digest: watch::Sender<String>,
    web: watch::Sender<Arc<WebConfig>>,
}

impl ComponentConfigs {
    pub(super) fn new(service_config: &ServiceConfig) -> Self {
        Self {
            rules: watch::Sender::new(service_config.rules().clone()),
            reads_bodies: watch::Sender::new(service_config.reads_bodies()),
            delayed: watch::Sender::new(service_config.delayed().clone()),
            alerts: watch::Sender::new(service_config.alerts().clone()),
            digest: watch::Sender::new(service_config.digest()),
            web: watch::Sender::new(Arc::new(service_config.web())),
        }
    }

    /// Gives each its part, also where it is the same as before: exchanges that somebody deleted are declared again when the file is read.
    pub(super) fn send(&self, service_config: &ServiceConfig) {
        self.rules.send_replace(service_config.rules().clone());
        self.reads_bodies
            .send_replace(service_config.reads_bodies());
        self.delayed.send_replace(service_config.delayed().clone());
        self.alerts.send_replace(service_config.alerts().clone());
        self.digest.send_replace(service_config.digest());
        self.web.send_replace(Arc::new(service_config.web()));
    }

    /// For the intake: what becomes of dead letters.
    pub(crate) fn rules(&self) -> watch::Receiver<PolicyRules> {
        self.rules.subscribe()
    }

    /// For whoever tells of parked messages: whether a rule of the alerts looks into bodies.
    pub(crate) fn reads_bodies(&self) -> watch::Receiver<bool> {
        self.reads_bodies.subscribe()
    }

    /// For messages with a delay: their exchanges.
    pub(crate) fn delayed(&self) -> watch::Receiver<DelayedSections> {
        self.delayed.subscribe()
    }

    /// For the alerts and the queue watch: who is told what.
    pub(crate) fn alerts(&self) -> watch::Receiver<AlertSections> {
        self.alerts.subscribe()
    }

    /// For the history, by which services compare their policies.
    pub(crate) fn digest(&self) -> watch::Receiver<String> {
        self.digest.subscribe()
    }

    /// For the page and the API.
    pub(crate) fn web(&self) -> watch::Receiver<Arc<WebConfig>> {
        self.web.subscribe()
    }
}
