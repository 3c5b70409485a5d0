//! A file: for one replica, or several that share a disk.

use std::{
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
};

use futures_util::future::BoxFuture;

use super::StateStore;

/// Keeps the state in a file that is replaced as a whole.
#[derive(Clone, Debug)]
pub struct FileStateStore {
    path: PathBuf,
}

impl FileStateStore {
    /// Keeps it there. Its folder must exist.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }
}

impl StateStore for FileStateStore {
    fn load(&self) -> BoxFuture<'_, Result<Option<Vec<u8>>, String>> {
        Box::pin(async {
            match tokio::fs::read(&self.path).await {
                Ok(value) => Ok(Some(value)),
                Err(why) if why.kind() == ErrorKind::NotFound => Ok(None),
                Err(why) => Err(format!(
                    "the state file {} cannot be read: {why}",
                    self.path.display()
                )),
            }
        })
    }

    fn save(&self, value: Vec<u8>) -> BoxFuture<'_, Result<(), String>> {
        let path = self.path.clone();
        Box::pin(async move {
            let written = tokio::task::spawn_blocking(move || {
                write(&path, &value).map_err(|why| {
                    format!("the state file {} cannot be written: {why}", path.display())
                })
            });
            written
                .await
                .unwrap_or_else(|_| Err("the state file was not written".to_owned()))
        })
    }
}

/// On disk under another name before it takes the place of the old one, so that a crash leaves one of them whole.
fn write(path: &Path, value: &[u8]) -> std::io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let new = path.with_file_name(name);
    let written = (|| {
        let mut file = std::fs::File::create(&new)?;
        file.write_all(value)?;
        file.sync_all()?;
        std::fs::rename(&new, path)
    })();
    if written.is_err() {
        let _ = std::fs::remove_file(&new); // the first error counts
    }
    written?;
    match path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
    {
        Some(folder) => std::fs::File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_value_is_replaced_whole_and_a_failure_leaves_the_old_one() {
        let folder = tempfile::tempdir().unwrap();
        let memory = FileStateStore::new(folder.path().join("state"));
        assert_eq!(memory.load().await, Ok(None));
        memory.save(b"one".to_vec()).await.unwrap();
        memory.save(b"two".to_vec()).await.unwrap();
        assert_eq!(memory.load().await, Ok(Some(b"two".to_vec())));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        let lost = FileStateStore::new(folder.path().join("no/such/state"));
        assert!(
            lost.save(b"x".to_vec())
                .await
                .unwrap_err()
                .contains("cannot be written")
        );
        assert!(
            FileStateStore::new(folder.path())
                .load()
                .await
                .unwrap_err()
                .contains("cannot be read")
        );
    }
}
