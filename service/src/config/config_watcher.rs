//! The configuration in force, and the file that it was read from.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::{sync::Notify, time::sleep};
use tracing::{error, info};

use super::{ServiceConfig, component_configs::ComponentConfigs};
use crate::{Metrics, Settings, store::redis};

/// How often the file is looked at. Its bytes count, not its time: a mounted ConfigMap changes by a link.
const LOOK: Duration = Duration::from_secs(2);

/// Reads the policy file again, and hands on what is new.
#[derive(Debug)]
pub(crate) struct ConfigWatcher {
    file: Option<PathBuf>,
    components: ComponentConfigs,
    /// Those of the start: another store, or other settings, need a restart.
    store: Option<redis::Configuration>,
    settings: Settings,
    asked: Notify,
}

impl ConfigWatcher {
    /// With this configuration in force. [`watch_file`](Self::watch_file) reads the file again when it changes.
    pub(crate) fn new(service_config: &ServiceConfig, file: Option<PathBuf>) -> Self {
        Self {
            file,
            components: ComponentConfigs::new(service_config),
            store: service_config.store().cloned(),
            settings: service_config.settings().clone(),
            asked: Notify::new(),
        }
    }

    /// What each component is given of the configuration in force.
    pub(crate) fn components(&self) -> &ComponentConfigs {
        &self.components
    }

    /// Where messages wait, for as long as the service runs.
    pub(crate) fn store(&self) -> Option<&redis::Configuration> {
        self.store.as_ref()
    }

    /// Reads the file again at once, even when it looks the same.
    pub(crate) fn reload(&self) {
        self.asked.notify_one();
    }

    /// Reads the file when somebody asks for it, and when its bytes have changed. Never ends.
    pub(crate) async fn watch_file(&self, mut seen: Option<Vec<u8>>, metrics: &Metrics) {
        let Some(file) = &self.file else {
            return std::future::pending().await;
        };
        let mut new: Option<Vec<u8>> = None;
        loop {
            let asked = tokio::select! {
                () = self.asked.notified() => true,
                () = sleep(LOOK) => false,
            };
            let read = tokio::fs::read(file).await;
            // One that is away for a moment, as while it is replaced, is no news unless somebody asks.
            let Some(bytes) = read.as_ref().ok().cloned().or_else(|| asked.then(Vec::new)) else {
                continue;
            };
            if !asked && seen.as_ref() == Some(&bytes) {
                continue;
            }
            // It may be half written. Whoever asks has written it.
            if !asked && new.as_ref() != Some(&bytes) {
                new = Some(bytes);
                continue;
            }
            new = None;
            seen = read.as_ref().ok().cloned();
            let service_config = match read {
                Ok(bytes) => read_elsewhere(file, bytes).await,
                Err(why) => Err(format!("{}: {why}", file.display())),
            };
            let service_config =
                service_config.and_then(|service_config| self.same_start(file, service_config));
            self.take(service_config, metrics);
        }
    }

    /// What is read at the start only. What waits in the previous store would never come back.
    fn same_start(
        &self,
        file: &Path,
        service_config: ServiceConfig,
    ) -> Result<ServiceConfig, String> {
        let changed = if service_config.store() != self.store.as_ref() {
            "[store]"
        } else if *service_config.settings() != self.settings {
            "[service]"
        } else {
            return Ok(service_config);
        };
        Err(format!(
            "{}: {changed} is not the one that the service has started with; restart the service, or take that change back",
            file.display()
        ))
    }

    fn take(&self, service_config: Result<ServiceConfig, String>, metrics: &Metrics) {
        metrics.loaded(service_config.is_ok());
        match service_config {
            Ok(service_config) => {
                self.components.send(&service_config);
                info!("the policy file is loaded and in force");
            }
            Err(error) => {
                error!(
                    error,
                    "the policy file is refused; the previous policy stays in force"
                );
            }
        }
    }
}

/// Files that a policy names are read as well, and each that does not answer takes its time.
async fn read_elsewhere(file: &Path, bytes: Vec<u8>) -> Result<ServiceConfig, String> {
    let file = file.to_owned();
    let read = tokio::task::spawn_blocking(move || read_config(&file, &bytes)).await;
    read.unwrap_or_else(|why| Err(why.to_string()))
}

/// Reads a file's bytes.
pub(crate) fn read_config(file: &Path, bytes: &[u8]) -> Result<ServiceConfig, String> {
    let text = std::str::from_utf8(bytes)
        .map_err(|why| format!("{}: is not UTF-8: {why}", file.display()))?;
    ServiceConfig::read(text).map_err(|why| format!("{}:{why}", file.display()))
}
