//! What runs for a message: a command or an HTTP request.

use std::io;

use tokio::sync::watch;

use super::{
    batch::BatchInput,
    http::Endpoint,
    process::HandlerProgram,
    run::{RunEnd, Urgency},
};

/// What is given the messages.
pub(super) enum Handler {
    Command(Box<HandlerProgram>),
    Http(Box<Endpoint>),
}

impl Handler {
    /// One run, for one message or a batch.
    ///
    /// # Errors
    /// When it began, and cannot be followed.
    pub(super) async fn run(
        &self,
        given: BatchInput,
        urgency: watch::Receiver<Urgency>,
    ) -> io::Result<RunEnd> {
        match self {
            Self::Command(program) => program.run(given, urgency).await,
            Self::Http(endpoint) => Ok(endpoint.run(&given, urgency).await),
        }
    }

    /// What it is called, once and several times.
    pub(super) fn noun(&self) -> (&'static str, &'static str) {
        match self {
            Self::Command(_) => ("command", "commands"),
            Self::Http(_) => ("request", "requests"),
        }
    }

    /// Its name, for a complaint.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Command(program) => std::path::Path::new(&program.name).display().to_string(),
            Self::Http(endpoint) => endpoint.origin().to_owned(),
        }
    }

    /// Where messages go, if that is another process.
    pub(super) fn target(&self) -> Option<&str> {
        match self {
            Self::Command(_) => None,
            Self::Http(endpoint) => Some(endpoint.origin()),
        }
    }
}
