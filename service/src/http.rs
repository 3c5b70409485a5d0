//! What probes and Prometheus ask: `/healthz`, `/readyz`, `/metrics`; and the page for people, beside them.

use std::{io, net::SocketAddr, sync::Arc};

use tokio::net::TcpListener;

use retryrmq_operator::http_server;

use crate::{
    Health, Metrics,
    web::{self, Page},
};

/// What the pages read.
pub(crate) struct ProbeState {
    pub(crate) health: Health,
    pub(crate) metrics: Arc<Metrics>,
}

/// Takes the address, so that one that is taken is known at once.
pub(crate) async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(address).await
}

/// Serves until the task is dropped.
pub(crate) async fn serve(listener: TcpListener, probe_state: ProbeState, page: Option<Page>) {
    let ProbeState { health, metrics } = probe_state;
    let is_ready = {
        let health = health.clone();
        move || health.ready()
    };
    let text = move || {
        let own = metrics.text(health.ready().is_ok());
        match health.client() {
            Some(client) => format!("{own}{}", client.metrics_text()),
            None => format!("{own}# EOF\n"),
        }
    };
    let mut pages = http_server::probes(is_ready, text);
    if let Some(page) = page {
        pages = pages.merge(web::routes(page));
    }
    http_server::serve(listener, pages).await;
}
