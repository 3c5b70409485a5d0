//! Secrets: in a file or in the environment, read at each use so that a new one counts at once, and never shown.

use std::{
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use retryrmq::secret_file;

/// The largest secret, in bytes.
const MOST: u64 = 16 * 1024;
/// A file answers at once, or nobody knows when.
const TIME_LIMIT: Duration = Duration::from_secs(2);
/// Shorter texts stand anywhere by chance: to hide them would hide the error.
const LEAST: usize = 4;

/// Where a value is.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum SecretSource {
    /// In the configuration itself.
    Text(String),
    File(PathBuf),
    Environment(String),
}

impl fmt::Debug for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str(super::HIDDEN),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Environment(name) => write!(f, "environment {name}"),
        }
    }
}

impl SecretSource {
    /// The one of `NAME`, `NAME_file` and `NAME_env` that is there.
    ///
    /// # Errors
    /// When more than one is.
    pub(super) fn of(
        name: &str,
        text: Option<&str>,
        file: Option<&Path>,
        variable: Option<&str>,
    ) -> Result<Option<Self>, String> {
        let text = text.map(|text| Self::Text(text.to_owned()));
        let file = file.map(|path| Self::File(path.to_owned()));
        let variable = variable.map(|name| Self::Environment(name.to_owned()));
        let mut all = [text, file, variable].into_iter().flatten();
        let first = all.next();
        match all.next() {
            Some(_) => Err(format!(
                "only one of `{name}`, `{name}_file` and `{name}_env` may be there"
            )),
            None => Ok(first),
        }
    }

    /// What is there now, without white space around it.
    ///
    /// # Errors
    /// A sentence that says where, never what.
    pub(super) fn read(&self) -> Result<String, String> {
        let (place, text) = match self {
            Self::Text(text) => return Ok(text.trim().to_owned()),
            Self::File(path) => {
                let place = format!("the file {}", path.display());
                let text = secret_file::read_blocking(path, TIME_LIMIT)
                    .map_err(|why| format!("{place} cannot be read: {why}"))?;
                (place, text)
            }
            Self::Environment(name) => {
                let place = format!("the environment variable {name}");
                let text = std::env::var(name).map_err(|_| format!("{place} is not set"))?;
                (place, text)
            }
        };
        if text.len() as u64 > MOST {
            return Err(format!("{place} holds more than {} KiB", MOST / 1024));
        }
        match text.trim() {
            "" => Err(format!("{place} is empty")),
            text => Ok(text.to_owned()),
        }
    }
}

/// `text` without any of the secrets.
pub(super) fn hide(text: &str, secrets: &[&str]) -> String {
    let mut secrets: Vec<&str> = secrets
        .iter()
        .copied()
        .filter(|secret| secret.len() >= LEAST)
        .collect();
    // One may be a part of another.
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    secrets.iter().fold(text.to_owned(), |text, secret| {
        text.replace(secret, super::HIDDEN)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_read_again_and_never_shown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let source = SecretSource::of("token", None, Some(&path), None)
            .unwrap()
            .unwrap();
        assert!(source.read().unwrap_err().contains("cannot be read"));
        std::fs::write(&path, "first\n").unwrap();
        assert_eq!(source.read().unwrap(), "first");
        std::fs::write(&path, "second").unwrap();
        assert_eq!(source.read().unwrap(), "second");
        std::fs::write(&path, " \n").unwrap();
        assert!(source.read().unwrap_err().contains("is empty"));
        std::fs::write(&path, "x".repeat(20_000)).unwrap();
        assert!(source.read().unwrap_err().contains("16 KiB"));
        assert_eq!(format!("{:?}", SecretSource::Text("hunter2".into())), "***");
        let variable = SecretSource::Environment("RETRYRMQ_NO_SUCH_VARIABLE".into());
        assert!(variable.read().unwrap_err().contains("is not set"));
        let why = SecretSource::of("url", Some("a"), Some(&path), None).unwrap_err();
        assert!(why.contains("only one of `url`, `url_file` and `url_env`"));
    }

    #[test]
    fn what_is_hidden_is_hidden_whole() {
        assert_eq!(hide("x abcdef abcd", &["abcd", "abcdef", "x"]), "x *** ***");
    }
}
