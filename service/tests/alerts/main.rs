//! Alerts and orphans, with real HTTP and mail servers and real brokers.

mod channels;
mod mail;
mod orphans;
mod replicas;
mod server;

use std::{path::Path, sync::Arc, time::Duration};

use retryrmq_serve::{
    Happening, Obituary,
    alerts::{Configuration, Desk, FileMemory, Handle, Speaker},
};

const PATIENCE: Duration = Duration::from_secs(60);

fn configuration(text: &str) -> Configuration {
    channels::lines(); // from the first line on
    let whole = format!("tick = \"200ms\"\nretry_after = \"100ms\"\n{text}");
    toml::from_str(&whole).expect("a configuration")
}

/// A desk that speaks alone, with its state in that folder.
async fn alone(text: &str, folder: &Path) -> Handle {
    let memory = Arc::new(FileMemory::new(folder.join("state")));
    Desk::start(&configuration(text), memory, Speaker::Alone)
        .await
        .expect("it starts")
}

const WAKE: &str = "[[rules]]\nname = \"all\"\nseverity = \"wake\"\n";

fn parked(fingerprint: &str) -> Happening {
    let death = Obituary {
        queue: "orders".to_owned(),
        reason: "exhausted".to_owned(),
        fingerprint: fingerprint.to_owned(),
        error: format!("no answer of {fingerprint}"),
        error_type: "db.Timeout".to_owned(),
        ..Obituary::default()
    };
    Happening::Parked(Box::new(death))
}
