//! The HTTP client: HTTP/1.1 with keep-alive, HTTP/2 where TLS agrees on it, and TLS by rustls.

use std::{path::Path, time::Duration};

use reqwest::{Client, redirect::Policy};
use retryrmq_operator::tls;
use rustls::{ClientConfig, RootCertStore};

use crate::error::CliError;

/// A connection that was idle for longer is not used again: common servers close theirs after two to five seconds, and a
/// POST that meets the end of one fails.
const IDLE: Duration = Duration::from_millis(1_500);
/// A host that does not answer at all must not take the whole time of an attempt.
const CONNECT: Duration = Duration::from_secs(10);

/// How to speak to the endpoint.
pub(super) struct HttpClientConfig<'a> {
    pub(super) is_tls: bool,
    /// PEM file of the only authorities that count; otherwise those of the system.
    pub(super) ca: Option<&'a Path>,
    /// HTTP/2 without TLS.
    pub(super) http2_at_once: bool,
    pub(super) timeout: Duration,
}

/// Makes the client.
///
/// # Errors
/// When the authorities cannot be read.
pub(super) fn make(client_config: &HttpClientConfig<'_>) -> Result<Client, CliError> {
    let mut builder = Client::builder()
        .user_agent(concat!("retryrmq/", env!("CARGO_PKG_VERSION")))
        .tls_backend_preconfigured(tls_config(client_config)?)
        .redirect(Policy::none()) // by `redirect`, with the body
        .no_proxy()
        .connect_timeout(CONNECT.min(client_config.timeout))
        .pool_idle_timeout(IDLE);
    if client_config.http2_at_once {
        builder = builder.http2_prior_knowledge();
    }
    builder.build().map_err(|why| {
        CliError::failed(format!("cannot make an HTTP client: {}", why.without_url()))
    })
}

fn tls_config(client_config: &HttpClientConfig<'_>) -> Result<ClientConfig, CliError> {
    let roots = match client_config.ca {
        Some(file) => tls::roots_of(file)
            .map_err(|why| CliError::usage(format!("--http-ca {}: {why}", file.display())))?,
        None if client_config.is_tls => tls::system_roots(),
        None => RootCertStore::empty(),
    };
    if client_config.is_tls && roots.is_empty() {
        return Err(CliError::usage(
            "this system has no root certificates; name a CA file with --http-ca",
        ));
    }
    let mut config = tls::client_config(roots).map_err(CliError::failed)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}
