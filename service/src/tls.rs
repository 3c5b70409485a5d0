//! TLS of the alerts and the queue watch: the system's authorities, or those of the file that the configuration names with `ca`.

use std::path::Path;

use retryrmq_operator::tls;
use rustls::{ClientConfig, pki_types::CertificateDer};

fn about(file: &Path, why: &str) -> String {
    format!("the file `ca` {}: {why}", file.display())
}

/// The authorities of a file `ca`: at least one.
///
/// # Errors
/// A sentence that names the file.
pub(crate) fn authorities(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    tls::authorities(file).map_err(|why| about(file, &why))
}

/// Trusts the authorities of that file alone, or those of the system.
///
/// # Errors
/// Those of [`authorities`].
pub(crate) fn tls(ca: Option<&Path>) -> Result<ClientConfig, String> {
    let roots = match ca {
        Some(file) => tls::roots_of(file).map_err(|why| about(file, &why))?,
        None => tls::system_roots(),
    };
    tls::client_config(roots)
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
