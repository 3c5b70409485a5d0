//! What a cluster asks a consumer over HTTP: `/healthz`, `/readyz`, `/metrics`.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use retryrmq::Client;
use retryrmq_operator::http_server;
use tokio::{net::TcpListener, task::JoinHandle};

use crate::error::CliError;

/// How far the consumer is.
#[derive(Clone, Copy, Default)]
enum ConsumerStage {
    #[default]
    Starting,
    Consuming,
    Draining,
}

#[derive(Default)]
struct State {
    /// Once the broker was reached.
    client: Option<Client>,
    stage: ConsumerStage,
}

/// What the probes are told. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Probes(Arc<Mutex<State>>);

impl Probes {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn connected(&self, client: &Client) {
        self.state().client = Some(client.clone());
    }

    pub(super) fn consuming(&self) {
        self.state().stage = ConsumerStage::Consuming;
    }

    pub(super) fn draining(&self) {
        self.state().stage = ConsumerStage::Draining;
    }

    /// Whether messages are taken and settled now.
    ///
    /// # Errors
    /// Why not, in a sentence.
    fn ready(&self) -> Result<(), String> {
        let state = self.state();
        let Some(client) = &state.client else {
            return Err("the broker has not been reached yet".to_owned());
        };
        match state.stage {
            ConsumerStage::Starting => Err("the queue is not consumed yet".to_owned()),
            ConsumerStage::Draining => Err("the consumer is ending".to_owned()),
            ConsumerStage::Consuming => client.health().map_err(|why| why.to_string()),
        }
    }

    fn metrics(&self) -> String {
        let client = self.state().client.clone();
        client.map_or_else(|| "# EOF\n".to_owned(), |client| client.metrics_text())
    }
}

/// The probes are answered until it is dropped.
pub(super) struct Server(JoinHandle<()>);

impl Drop for Server {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Answers the probes at this address.
///
/// # Errors
/// If nobody can listen there.
pub(super) async fn serve(address: SocketAddr, probes: Probes) -> Result<Server, CliError> {
    let listener = TcpListener::bind(address).await.map_err(|why| {
        CliError::failed(format!(
            "cannot listen at {address}: {why}; name another address with --listen"
        ))
    })?;
    let ready = probes.clone();
    let router = http_server::probes(move || ready.ready(), move || probes.metrics());
    Ok(Server(tokio::spawn(http_server::serve(listener, router))))
}
