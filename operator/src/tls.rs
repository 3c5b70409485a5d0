//! TLS for HTTP clients: rustls with ring, and the system's authorities or those of a file.

use std::{path::Path, sync::Arc, time::Duration};

use retryrmq::secret_file;
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject},
};

/// How long reading a file may take: a pipe without a writer never answers.
const TIME_LIMIT: Duration = Duration::from_secs(2);

/// The certificates of a PEM file, at least one.
///
/// # Errors
/// A sentence about the file that does not name it.
pub fn authorities(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let text = secret_file::read_certificates_blocking(file, TIME_LIMIT)
        .map_err(|why| format!("it cannot be read: {why}"))?;
    let all = CertificateDer::pem_slice_iter(&text)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|why| format!("it is no PEM file that can be read: {why}"))?;
    // With an empty list no server would be trusted, and no error would name the file.
    if all.is_empty() {
        return Err("it holds no certificate".to_owned());
    }
    Ok(all)
}

/// The authorities of that file alone.
///
/// # Errors
/// Those of [`authorities`].
pub fn roots_of(file: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in authorities(file)? {
        roots
            .add(certificate)
            .map_err(|why| format!("it holds a bad certificate: {why}"))?;
    }
    Ok(roots)
}

/// The authorities that the system trusts; none on a system without certificates.
#[must_use]
pub fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

/// Trusts these authorities, and shows no certificate of its own.
///
/// # Errors
/// When the build supports no version of TLS.
pub fn client_config(roots: RootCertStore) -> Result<ClientConfig, String> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|why| format!("this build has no TLS versions: {why}"))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}
