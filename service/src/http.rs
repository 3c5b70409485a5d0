//! What probes and Prometheus ask: `/healthz`, `/readyz`, `/metrics`; and the page for people, beside them.

use std::{io, net::SocketAddr, sync::Arc};

use axum::{Router, extract::State, http::StatusCode, http::header::CONTENT_TYPE, routing::get};
use tokio::net::TcpListener;

use crate::{
    Health, Metrics, http_server,
    web::{self, Page},
};

/// As Prometheus wants it named.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What the pages read.
#[derive(Clone)]
pub(crate) struct Desk {
    pub(crate) health: Health,
    pub(crate) metrics: Arc<Metrics>,
}

/// Takes the address, so that one that is taken is known at once.
pub(crate) async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(address).await
}

/// Serves until the task is dropped.
pub(crate) async fn serve(listener: TcpListener, desk: Desk, page: Option<Page>) {
    let mut pages = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(desk);
    if let Some(page) = page {
        pages = pages.merge(web::routes(page));
    }
    http_server::serve(listener, pages).await;
}

async fn ready(State(desk): State<Desk>) -> (StatusCode, String) {
    match desk.health.ready() {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}

async fn metrics(
    State(desk): State<Desk>,
) -> ([(axum::http::HeaderName, &'static str); 1], String) {
    let own = desk.metrics.text(desk.health.ready().is_ok());
    let text = match desk.health.client() {
        Some(client) => format!("{own}{}", client.metrics_text()),
        None => format!("{own}# EOF\n"),
    };
    ([(CONTENT_TYPE, OPENMETRICS)], text)
}
