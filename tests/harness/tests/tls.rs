//! The TLS listener that the brokers are given, tried from the socket up, since the plain client here knows no TLS.

use retryrmq_harness::on_brokers;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

#[tokio::test]
async fn amqp_is_served_over_tls_with_a_certificate_of_the_named_authority() {
    on_brokers(|broker| async move {
        let Some(tls) = broker.tls() else {
            return eprintln!("skipped: {broker} has no TLS listener that is known");
        };
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_file(&tls.authority).unwrap())
            .unwrap();
        for name in ["localhost", "127.0.0.1"] {
            assert!(speaks_amqp(&tls.url, name, roots.clone()).await.unwrap());
        }
        assert!(speaks_amqp(&tls.url, "example.org", roots).await.is_err());
        assert!(
            speaks_amqp(&tls.url, "localhost", RootCertStore::empty())
                .await
                .is_err()
        );
    })
    .await;
}

async fn speaks_amqp(url: &str, name: &'static str, roots: RootCertStore) -> std::io::Result<bool> {
    let url: url::Url = url.parse().unwrap();
    let address = (url.host_str().unwrap(), url.port().unwrap());
    let config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(name).unwrap();
    let socket = TcpStream::connect(address).await?;
    let mut tls = TlsConnector::from(Arc::new(config))
        .connect(name, socket)
        .await?;
    tls.write_all(b"AMQP\0\0\x09\x01").await?;
    let first_frame = tls.read_u8().await?;
    Ok(first_frame == 1) // a method frame: connection.start
}
