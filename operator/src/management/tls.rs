//! TLS for the management API: rustls with ring, the platform's roots or a CA file.

use std::{path::Path, sync::Arc};

use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject},
};

use super::{Error, ManagementErrorKind, Result};

fn failed(sentence: impl Into<String>) -> Error {
    Error::new(ManagementErrorKind::Unreachable, sentence)
}

/// Trusts the certificates of that file alone, or without one what the platform trusts.
pub(super) fn config(authority: Option<&Path>) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    match authority {
        Some(file) => {
            let none = |why: String| {
                failed(format!(
                    "the CA file {} holds no certificate in PEM form{why}",
                    file.display()
                ))
            };
            let found: Vec<_> = CertificateDer::pem_file_iter(file)
                .and_then(Iterator::collect)
                .map_err(|why| none(format!(" ({why})")))?;
            for certificate in found {
                roots
                    .add(certificate)
                    .map_err(|why| none(format!(" that can be used ({why})")))?;
            }
            // A file of garbage must not mean that nobody in particular is trusted.
            if roots.is_empty() {
                return Err(none(String::new()));
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|why| failed(format!("this build has no TLS versions: {why}")))?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}
