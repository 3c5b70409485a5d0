//! The HTTP client: HTTP/1.1 with keep-alive, HTTP/2 where TLS agrees on it, and TLS by rustls.

use std::{path::Path, sync::Arc, time::Duration};

use reqwest::{Client, redirect::Policy};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject},
};

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
        .tls_backend_preconfigured(tls(client_config)?)
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

fn tls(client_config: &HttpClientConfig<'_>) -> Result<ClientConfig, CliError> {
    let mut roots = RootCertStore::empty();
    match client_config.ca {
        Some(file) => {
            let bad = |why: String| CliError::usage(format!("--http-ca {}: {why}", file.display()));
            let certificates = CertificateDer::pem_file_iter(file)
                .map_err(|why| bad(format!("it cannot be read: {why}")))?;
            for certificate in certificates {
                let certificate =
                    certificate.map_err(|why| bad(format!("it is no PEM file: {why}")))?;
                roots
                    .add(certificate)
                    .map_err(|why| bad(format!("it holds a bad certificate: {why}")))?;
            }
            if roots.is_empty() {
                return Err(bad("it holds no certificate".to_owned()));
            }
        }
        None if client_config.is_tls => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                return Err(CliError::usage(
                    "this system has no root certificates; name a CA file with --http-ca",
                ));
            }
        }
        None => {}
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|why| CliError::failed(format!("this build has no TLS versions: {why}")))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}
