//! TLS for `amqps://`: rustls, the platform's roots or a CA file, and a client certificate if the URL names one.

use std::{path::Path, sync::Arc};

use tokio::net::TcpStream;
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        self, ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    },
};

use super::{Address, timeouts::ANSWER};
use crate::{Error, ErrorKind, Result, secret_file};

fn failed(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::TlsFailed, why)
}

/// Wraps `stream` in TLS.
///
/// # Errors
/// [`ErrorKind::TlsFailed`] if TLS is refused; [`ErrorKind::Unreachable`] if the connection ends during the handshake. It never returns a
/// plain connection.
pub(super) async fn handshake(
    address: &Address,
    config: ClientConfig,
    stream: TcpStream,
) -> Result<TlsStream<TcpStream>> {
    let name = address
        .server_name
        .as_deref()
        .unwrap_or(&address.host)
        .to_owned();
    let name = ServerName::try_from(name.clone()).map_err(|why| {
        failed(format!("`{name}` cannot be the name on a certificate")).with_source(why)
    })?;
    TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .map_err(|why| {
            // If TLS was not refused, the broker may still come up: a load balancer accepts connections before its broker does.
            if !why
                .get_ref()
                .is_some_and(|inner| inner.is::<rustls::Error>())
            {
                return Error::new(
                    ErrorKind::Unreachable,
                    format!(
                        "{} ended the connection during the TLS handshake ({why}); check that RabbitMQ runs there, and that the port is \
                         its TLS port",
                        address.authority()
                    ),
                )
                .with_source(why);
            }
            let said = why.to_string();
            let hint = if said.contains("InvalidContentType") {
                "; the port answers without TLS: use amqp:// or the broker's TLS port"
            } else if said.contains("UnknownIssuer") && address.ca_file.is_none() {
                "; name its CA with ?cacertfile=FILE"
            } else if said.contains("UnknownIssuer") {
                "; it is not signed by the CA that ?cacertfile names"
            } else {
                ""
            };
            failed(format!(
                "the TLS handshake with {} failed: {why}{hint}",
                address.authority()
            ))
            .with_source(why)
        })
}

/// The TLS configuration of an address, with the current content of its files.
///
/// # Errors
/// [`ErrorKind::TlsFailed`] if a file cannot be read in time, or contains no certificate or key.
pub(super) async fn config(address: &Address) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    match &address.ca_file {
        Some(file) => {
            for certificate in certificates(file).await? {
                roots.add(certificate).map_err(|why| {
                    failed(format!(
                        "the CA file {} holds a bad certificate",
                        file.display()
                    ))
                    .with_source(why)
                })?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                return Err(failed(
                    "this system has no root certificates; name a CA file with ?cacertfile=…",
                ));
            }
        }
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|why| failed("this build has no TLS versions").with_source(why))?
        .with_root_certificates(roots);
    match (&address.cert_file, &address.key_file) {
        (Some(cert), Some(key)) => {
            let key_der = PrivateKeyDer::from_pem_slice(&read(key).await?).map_err(|why| {
                failed(format!(
                    "the key file {} holds no private key",
                    key.display()
                ))
                .with_source(why)
            })?;
            builder
                .with_client_auth_cert(certificates(cert).await?, key_der)
                .map_err(|why| {
                    failed(format!(
                        "the certificate {} does not fit its key",
                        cert.display()
                    ))
                    .with_source(why)
                })
        }
        _ => Ok(builder.with_no_client_auth()),
    }
}

async fn read(file: &Path) -> Result<Vec<u8>> {
    secret_file::read_certificates(file, ANSWER)
        .await
        .map_err(|why| {
            let message = format!(
                "the file {} that the URL names cannot be read: {why}",
                file.display()
            );
            failed(message).with_source(why)
        })
}

/// Every certificate of a PEM file, at least one: an empty list would trust nobody, and say nothing about the bad file.
async fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let none = || {
        format!(
            "the certificate file {} holds no certificate in PEM form",
            file.display()
        )
    };
    let found: Vec<_> = CertificateDer::pem_slice_iter(&read(file).await?)
        .collect::<Result<_, _>>()
        .map_err(|why| failed(none()).with_source(why))?;
    if found.is_empty() {
        Err(failed(none()))
    } else {
        Ok(found)
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_certificate_that_nobody_writes_holds_nobody_up() {
        let pipe = crate::secret_file::tests::pipe("certificate");
        let url = format!("amqps://h?cacertfile={}", pipe.display());
        let error = config(&url.parse().unwrap()).await.unwrap_err();
        // Lets the reading thread end.
        drop(std::fs::OpenOptions::new().write(true).open(&pipe).unwrap());
        std::fs::remove_file(&pipe).unwrap();
        assert_eq!(error.kind(), ErrorKind::TlsFailed);
        assert!(error.to_string().contains("within 20 s"), "{error}");
    }
}
