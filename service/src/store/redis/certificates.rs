//! The files of TLS, read within a time and looked at before they are used.

use std::{path::Path, time::Duration};

use redis::{ClientTlsConfig, TlsCertificates};
use retryrmq::secret_file;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};

use super::{configuration::Tls, failure};
use crate::store::{Error, Result};

/// What is in the files now: they are renewed.
///
/// # Errors
/// [`Error::Configuration`] with the file that cannot be used, [`Error::Away`] where it does not answer in time.
pub(super) async fn read(tls: &Tls, time_limit: Duration) -> Result<TlsCertificates> {
    let client_tls = match (&tls.certificate_file, &tls.key_file) {
        (Some(certificate), Some(key)) => Some(ClientTlsConfig {
            client_cert: pem(certificate, time_limit, "certificate", has_certificate).await?,
            client_key: pem(key, time_limit, "private key", has_key).await?,
        }),
        _ => None,
    };
    let root_cert = match &tls.ca_file {
        Some(file) => Some(pem(file, time_limit, "certificate", has_certificate).await?),
        None => None,
    };
    Ok(TlsCertificates {
        client_tls,
        root_cert,
    })
}

/// A file without what it is there for would mean "trust nobody" or "show nothing", and be told as a fault of the server.
async fn pem(
    file: &Path,
    time_limit: Duration,
    what: &str,
    has_pem: fn(&[u8]) -> bool,
) -> Result<Vec<u8>> {
    let read = secret_file::read_certificates(file, time_limit).await;
    let bytes =
        read.map_err(|why| failure::unread(&format!("a {what} of [store.redis.tls]"), file, &why))?;
    if has_pem(&bytes) {
        return Ok(bytes);
    }
    Err(Error::Configuration(format!(
        "the file {} of [store.redis.tls] holds no {what} in PEM form",
        file.display()
    )))
}

fn has_certificate(bytes: &[u8]) -> bool {
    let mut all = CertificateDer::pem_slice_iter(bytes).peekable();
    all.peek().is_some() && all.all(|one| one.is_ok())
}

fn has_key(bytes: &[u8]) -> bool {
    PrivateKeyDer::from_pem_slice(bytes).is_ok()
}
