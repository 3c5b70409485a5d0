//! Reads secrets and certificates from files, within a time and a size.
//!
//! A pipe without a writer, or a disk that is away, never answers, and a device never ends. So a separate thread reads the file; neither a
//! runtime nor the end of the process waits for it.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use tokio::{sync::oneshot, time::timeout};

/// The most bytes of a secret.
const MOST: u64 = 64 * 1024;

/// The most bytes of certificates. Those of all authorities that a system knows are some hundred KiB.
const MOST_CERTIFICATES: u64 = 16 * 1024 * 1024;

/// The files being read, and since when. A read that never ends stays in here, and no more threads wait for it.
static UNDER_WAY: Mutex<Option<HashMap<PathBuf, Instant>>> = Mutex::new(None);

/// Reads a secret as text.
///
/// # Errors
/// Why it cannot be read; [`io::ErrorKind::TimedOut`] if reading takes longer than `time_limit`.
pub async fn read(file: &Path, time_limit: Duration) -> io::Result<String> {
    text(bytes_of(file, time_limit, MOST).await?)
}

/// Reads certificates or their keys.
///
/// # Errors
/// Those of [`read`].
pub async fn read_certificates(file: &Path, time_limit: Duration) -> io::Result<Vec<u8>> {
    bytes_of(file, time_limit, MOST_CERTIFICATES).await
}

async fn bytes_of(file: &Path, time_limit: Duration, most: u64) -> io::Result<Vec<u8>> {
    let (sender, receiver) = oneshot::channel();
    begin(file, time_limit, most, move |bytes| {
        let _ = sender.send(bytes); // the caller may have gone
    })?;
    match timeout(time_limit, receiver).await {
        Ok(bytes) => bytes.map_err(io::Error::other)?,
        Err(_) => Err(too_late(time_limit)),
    }
}

/// Like [`read`], for callers that cannot await. It blocks the caller's thread; for a file that never ends, only once.
///
/// # Errors
/// Those of [`read`].
pub fn read_blocking(file: &Path, time_limit: Duration) -> io::Result<String> {
    text(bytes_blocking(file, time_limit, MOST)?)
}

/// Like [`read_certificates`], for callers that cannot await. It blocks the caller's thread; for a file that never ends, only once.
///
/// # Errors
/// Those of [`read`].
pub fn read_certificates_blocking(file: &Path, time_limit: Duration) -> io::Result<Vec<u8>> {
    bytes_blocking(file, time_limit, MOST_CERTIFICATES)
}

fn bytes_blocking(file: &Path, time_limit: Duration, most: u64) -> io::Result<Vec<u8>> {
    let (sender, receiver) = mpsc::sync_channel(1);
    begin(file, time_limit, most, move |bytes| {
        let _ = sender.send(bytes); // the caller may have gone
    })?;
    match receiver.recv_timeout(time_limit) {
        Ok(bytes) => bytes,
        Err(_) => Err(too_late(time_limit)),
    }
}

fn begin(
    file: &Path,
    time_limit: Duration,
    most: u64,
    on_read: impl FnOnce(io::Result<Vec<u8>>) + Send + 'static,
) -> io::Result<()> {
    let now = Instant::now();
    let since = *under_way()
        .get_or_insert_default()
        .entry(file.to_owned())
        .or_insert(now);
    if since.elapsed() >= time_limit {
        return Err(too_late(time_limit));
    }
    let path = file.to_owned();
    let spawned = thread::Builder::new()
        .name("retryrmq-secret".to_owned())
        .spawn(move || {
            let bytes = contents(&path, most);
            forget(&path);
            on_read(bytes);
        });
    spawned.map(drop).inspect_err(|_| forget(file))
}

fn contents(file: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(file)?.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        let why = format!("it holds more than {} KiB", most / 1024);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    Ok(bytes)
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not valid UTF-8"))
}

fn forget(file: &Path) {
    under_way().get_or_insert_default().remove(file);
}

fn under_way() -> MutexGuard<'static, Option<HashMap<PathBuf, Instant>>> {
    UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner)
}

fn too_late(time_limit: Duration) -> io::Error {
    let why = match time_limit.as_secs() {
        0 => format!(
            "reading it did not finish within {} ms",
            time_limit.as_millis()
        ),
        seconds => format!("reading it did not finish within {seconds} s"),
    };
    io::Error::new(io::ErrorKind::TimedOut, why)
}

#[cfg(all(test, unix))]
pub(crate) mod tests {
    use super::*;

    const TIME_LIMIT: Duration = Duration::from_millis(300);

    /// A pipe without a writer.
    pub(crate) fn pipe(name: &str) -> PathBuf {
        let name = format!("retryrmq-{}-{name}", std::process::id());
        let pipe = std::env::temp_dir().join(name);
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, mode).unwrap();
        pipe
    }

    #[tokio::test]
    async fn what_never_ends_is_given_up_in_time_and_without_filling_the_memory() {
        for why in [
            read(Path::new("/dev/zero"), TIME_LIMIT).await.unwrap_err(),
            read_blocking(Path::new("/dev/zero"), TIME_LIMIT).unwrap_err(),
        ] {
            assert!(why.to_string().contains("64 KiB"), "{why}");
        }
        let pipe = pipe("secret");
        let start = Instant::now();
        let first = read_blocking(&pipe, TIME_LIMIT).unwrap_err();
        assert!(start.elapsed() >= TIME_LIMIT);
        // Its thread keeps waiting, and no other one is started.
        let start = Instant::now();
        for _ in 0..1_000 {
            let again = read_blocking(&pipe, TIME_LIMIT).unwrap_err();
            assert_eq!(again.kind(), first.kind());
        }
        // Had each of them waited, it would have taken a thousand times as long as the first.
        assert!(start.elapsed() < 200 * TIME_LIMIT);
        std::fs::write(&pipe, "s3cret\n").unwrap();
        std::fs::remove_file(&pipe).unwrap();
        std::fs::write(&pipe, "new").unwrap();
        while read(&pipe, TIME_LIMIT).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(read(&pipe, TIME_LIMIT).await.unwrap(), "new");
        std::fs::remove_file(&pipe).unwrap();
    }
}
