//! TLS for HTTP: rustls with ring, the system's authorities or those of a file.

use std::{path::Path, sync::Arc};

use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject},
};

/// Trusts the authorities of that file alone, or those of the system.
pub(crate) fn tls(ca: Option<&Path>) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    match ca {
        Some(file) => {
            let bad = |why: String| format!("the file `ca` {}: {why}", file.display());
            let certificates = CertificateDer::pem_file_iter(file)
                .and_then(Iterator::collect::<Result<Vec<_>, _>>)
                .map_err(|why| bad(format!("it is no PEM file that can be read: {why}")))?;
            for certificate in certificates {
                roots
                    .add(certificate)
                    .map_err(|why| bad(format!("it holds a bad certificate: {why}")))?;
            }
            // A file of garbage must not mean that nobody in particular is trusted.
            if roots.is_empty() {
                return Err(bad("it holds no certificate".to_owned()));
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|why| format!("this build has no TLS versions: {why}"))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}
