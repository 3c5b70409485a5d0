//! Secrets: read from files, again when these change, and never shown.

use std::{
    fmt,
    fs::{File, Metadata},
    io::Read,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Mutex,
    time::SystemTime,
};

use reqwest::header::HeaderValue;

use crate::error::CliError;

/// The largest secret, in bytes.
const MOST: u64 = 16 * 1024;
/// Shorter texts stand anywhere by chance: to hide them would hide the error.
const LEAST: usize = 4;

/// An option whose text may hold a secret: not even a debugger's line shows it.
#[derive(Clone)]
pub(in super::super) struct SecretOption(pub(super) String);

impl fmt::Debug for SecretOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl FromStr for SecretOption {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.to_owned()))
    }
}

/// A file whose content is secret, read as a `T`.
pub(super) struct SecretFile<T> {
    option: &'static str,
    path: PathBuf,
    read: fn(&str) -> Result<T, String>,
    state: Mutex<SecretFileState<T>>,
}

struct SecretFileState<T> {
    /// What was read last; nothing of a pipe, which is read once.
    version: Option<FileVersion>,
    value: T,
}

/// What differs after a file was written, or another one was put in its place.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FileVersion(u64, u64, u64, Option<SystemTime>);

impl FileVersion {
    fn of(metadata: &Metadata) -> Self {
        Self(
            metadata.dev(),
            metadata.ino(),
            metadata.len(),
            metadata.modified().ok(),
        )
    }
}

impl<T: Clone> SecretFile<T> {
    /// Reads the file that was given with `option`.
    ///
    /// # Errors
    /// When it cannot be read, or is none that `read` takes.
    pub(super) fn open(
        option: &'static str,
        path: &Path,
        read: fn(&str) -> Result<T, String>,
    ) -> Result<Self, CliError> {
        let (version, value) = content(path)
            .and_then(|(version, text)| Ok((version, read(&text)?)))
            .map_err(|why| CliError::usage(format!("{option} {}: {why}", path.display())))?;
        Ok(Self {
            option,
            path: path.to_owned(),
            read,
            state: Mutex::new(SecretFileState { version, value }),
        })
    }

    /// What the file holds. Where that is no secret just now, what it held before: whoever replaces it may not be done.
    pub(super) fn now(&self) -> T {
        let mut state = self
            .state
            .lock()
            .unwrap_or_else(|poison| poison.into_inner());
        let is_as_before = |version: FileVersion| {
            let now = std::fs::metadata(&self.path).ok();
            now.is_none_or(|metadata| FileVersion::of(&metadata) == version)
        };
        if state.version.is_none_or(is_as_before) {
            return state.value.clone();
        }
        match content(&self.path).and_then(|(version, text)| Ok((version, (self.read)(&text)?))) {
            Ok((version, value)) => *state = SecretFileState { version, value },
            Err(why) => {
                // Told once for each content.
                state.version = std::fs::metadata(&self.path)
                    .ok()
                    .as_ref()
                    .map(FileVersion::of)
                    .or(state.version);
                tracing::warn!(
                    "{} {}: {why}; what it held before is used on",
                    self.option,
                    self.path.display()
                );
            }
        }
        state.value.clone()
    }
}

fn content(path: &Path) -> Result<(Option<FileVersion>, String), String> {
    let plain = |why: std::io::Error| format!("cannot be read: {why}");
    let file = File::open(path).map_err(plain)?;
    let metadata = file.metadata().map_err(plain)?;
    let version = metadata.is_file().then(|| FileVersion::of(&metadata));
    let mut bytes = Vec::new();
    file.take(MOST + 1).read_to_end(&mut bytes).map_err(plain)?;
    if bytes.len() as u64 > MOST {
        return Err(format!("it is larger than {} KiB", MOST / 1024));
    }
    let text = String::from_utf8(bytes).map_err(|_| "it is not text".to_owned())?;
    Ok((version, text))
}

/// Reads a bearer token (RFC 6750, 2.1).
///
/// # Errors
/// When it is none. What it is instead is not repeated.
pub(super) fn bearer(text: &str) -> Result<std::sync::Arc<HeaderValue>, String> {
    let token = text.trim();
    if token.is_empty() {
        return Err("it is empty; write the token into it".to_owned());
    }
    let allowed = |c: char| c.is_ascii_graphic();
    if !token.chars().all(allowed) {
        return Err(
            "it is not a bearer token: it must be one word of ASCII, without `Bearer` before it"
                .to_owned(),
        );
    }
    let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
        .map_err(|_| "it is not a bearer token".to_owned())?;
    value.set_sensitive(true);
    Ok(std::sync::Arc::new(value))
}

/// Texts that nothing may show.
#[derive(Clone, Default)]
pub(super) struct RedactedTexts(Vec<String>);

impl RedactedTexts {
    pub(super) fn add(&mut self, text: impl Into<String>) {
        let text = text.into();
        if text.len() >= LEAST {
            self.0.push(text);
        }
    }

    pub(super) fn add_all(&mut self, texts: &[String]) {
        for text in texts {
            self.add(text);
        }
    }

    /// The last word of a header's value: what stands behind `Bearer` or `Basic`.
    pub(super) fn add_bearer(&mut self, value: &HeaderValue) {
        if let Some(word) = value
            .to_str()
            .ok()
            .and_then(|text| text.split(' ').next_back())
        {
            self.add(word);
        }
    }

    /// `text` with `***` in the place of each, longer ones first: one may be a part of another.
    pub(super) fn hide(&self, text: &str) -> String {
        let mut all: Vec<&str> = self.0.iter().map(String::as_str).collect();
        all.sort_by_key(|text| std::cmp::Reverse(text.len()));
        let mut shown = text.to_owned();
        for hidden in all {
            if shown.contains(hidden) {
                shown = shown.replace(hidden, "***");
            }
        }
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_again_when_it_changes_and_kept_while_it_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, "first\n").unwrap();
        let read = |text: &str| match text.trim() {
            "" => Err("empty".to_owned()),
            text => Ok(text.to_owned()),
        };
        let file = SecretFile::open("--bearer-file", &path, read).unwrap();
        assert_eq!(file.now(), "first");
        // As Kubernetes does: another file in its place.
        let other = folder.path().join("other");
        std::fs::write(&other, "other").unwrap();
        std::fs::rename(&other, &path).unwrap();
        assert_eq!(file.now(), "other");
        std::fs::write(&path, "").unwrap();
        assert_eq!(file.now(), "other");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(file.now(), "other");
        std::fs::write(&path, "longer than before").unwrap();
        assert_eq!(file.now(), "longer than before");
        assert!(SecretFile::open("--bearer-file", &other, read).is_err());
    }

    #[test]
    fn a_token_is_one_word() {
        assert_eq!(*bearer("abc.def\n").unwrap(), "Bearer abc.def");
        for text in ["", " \n", "Bearer abc", "a\nb", "tökén"] {
            let why = bearer(text).unwrap_err();
            assert!(!why.contains("abc"), "{why}");
        }
    }

    #[test]
    fn what_is_hidden_is_hidden_whole() {
        let mut hidden = RedactedTexts::default();
        hidden.add("abcd");
        hidden.add("abcdef");
        hidden.add("x"); // would hide everything
        hidden.add_bearer(&HeaderValue::from_static("Bearer t0k3n"));
        assert_eq!(hidden.hide("x abcdef abcd t0k3n"), "x *** *** ***");
        assert_eq!(format!("{:?}", SecretOption("s".into())), "***");
    }
}
