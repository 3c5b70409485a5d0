//! TLS for HTTP: rustls with ring, the system's authorities or those of a file.

use std::{path::Path, sync::Arc, time::Duration};

use retryrmq::secret_file;
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject},
};

/// A file answers at once, or nobody knows when.
const TIME_LIMIT: Duration = Duration::from_secs(2);

/// The authorities of a file `ca`: at least one.
///
/// # Errors
/// A sentence that names the file.
pub(crate) fn authorities(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let bad = |why: String| format!("the file `ca` {}: {why}", file.display());
    let text = secret_file::read_certificates_blocking(file, TIME_LIMIT)
        .map_err(|why| bad(format!("it cannot be read: {why}")))?;
    let all = CertificateDer::pem_slice_iter(&text)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|why| bad(format!("it is no PEM file that can be read: {why}")))?;
    // A file of garbage must not mean that nobody in particular is trusted.
    match all.is_empty() {
        true => Err(bad("it holds no certificate".to_owned())),
        false => Ok(all),
    }
}

/// Trusts the authorities of that file alone, or those of the system.
pub(crate) fn tls(ca: Option<&Path>) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    match ca {
        Some(file) => {
            for certificate in authorities(file)? {
                roots.add(certificate).map_err(|why| {
                    format!(
                        "the file `ca` {}: it holds a bad certificate: {why}",
                        file.display()
                    )
                })?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_never_answers_or_holds_no_authority_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let (pipe, empty) = (folder.path().join("pipe"), folder.path().join("empty"));
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        std::fs::write(&empty, "no certificate").unwrap();
        for (file, words) in [
            (pipe, "did not finish within"),
            (empty, "holds no certificate"),
            (folder.path().join("none"), "cannot be read"),
        ] {
            let why = tls(Some(&file)).unwrap_err();
            assert!(why.contains("`ca`") && why.contains(words), "{why}");
        }
    }
}
