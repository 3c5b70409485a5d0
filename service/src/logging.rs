//! The log on standard error: lines for people, or JSON for machines.

use std::io::{IsTerminal, stderr};

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::Deserialize;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{Layer, filter::Targets, layer::SubscriberExt, util::SubscriberInitExt};

/// How a line of the log looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Starts logging from this level on. Only this project is heard: the AMQP client under it logs bodies, and at TRACE level passwords.
pub fn start_logging(form: LogFormat, level: LevelFilter) {
    let heard = Targets::new()
        .with_target("retryrmq", level)
        .with_target("retryrmq_serve", level);
    let lines = tracing_subscriber::fmt::layer().with_writer(stderr);
    let layer = match form {
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
        LogFormat::Text => {
            let plain = std::env::var_os("NO_COLOR").is_some_and(|said| !said.is_empty());
            lines.with_ansi(stderr().is_terminal() && !plain).boxed()
        }
    };
    let _ = tracing_subscriber::registry() // fails only when one is set already
        .with(layer.with_filter(heard))
        .try_init();
}
