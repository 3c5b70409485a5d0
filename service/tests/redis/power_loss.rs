//! The power is cut: what Redis had written and not synced is gone. SIGKILL cannot show that, because the kernel still has it.
//!
//! So Redis writes to a file system in a file. What the kernel has not written through to that file at the time of the cut, it has in
//! memory only, and a copy of the file is what would be left on a disk.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use retryrmq_serve::store::{
    Error, Store,
    redis::{Configuration, RedisStore},
};

use crate::{
    crashing::waiting,
    message_drafts::many,
    server::{Servers, eventually, on_kinds},
};

#[track_caller]
fn run(program: &str, arguments: &[&str]) -> bool {
    let done = Command::new(program).args(arguments).output();
    let done = done.unwrap_or_else(|why| panic!("{program}: {why}"));
    if !done.status.success() {
        eprintln!(
            "{program} {arguments:?}: {}",
            String::from_utf8_lossy(&done.stderr)
        );
    }
    done.status.success()
}

/// A file system in a file, mounted.
struct FileDisk {
    folder: tempfile::TempDir,
    at: PathBuf,
    number: u32,
}

impl FileDisk {
    /// Nothing where this machine has no loop devices.
    fn new(at: &Path) -> Option<Self> {
        let disk = Self {
            folder: tempfile::tempdir().unwrap(),
            at: at.to_owned(),
            number: 0,
        };
        let file = std::fs::File::create(disk.image()).unwrap();
        file.set_len(96 << 20).unwrap();
        let made = run("mkfs.ext4", &["-q", "-F", disk.image().to_str().unwrap()]);
        (made && disk.mount()).then_some(disk)
    }

    fn image(&self) -> PathBuf {
        self.folder.path().join(self.number.to_string())
    }

    /// Nothing is written through but what is synced: not every five seconds, as is usual.
    fn mount(&self) -> bool {
        let (image, at) = (self.image(), self.at.to_str().unwrap());
        run(
            "mount",
            &["-o", "loop,commit=300", image.to_str().unwrap(), at],
        )
    }

    /// Leaves what a disk would have, had the power been cut now.
    fn cut(&mut self) {
        std::fs::write(self.at.join("unsynced"), "x".repeat(100_000)).unwrap();
        let before = self.image();
        self.number += 1;
        std::fs::copy(&before, self.image()).unwrap();
        assert!(run("umount", &[self.at.to_str().unwrap()]));
        std::fs::remove_file(before).unwrap();
        assert!(self.mount());
        let left = std::fs::metadata(self.at.join("unsynced")).map_or(0, |file| file.len());
        assert_eq!(left, 0, "what nobody synced is gone");
    }
}

impl Drop for FileDisk {
    fn drop(&mut self) {
        run("umount", &["--lazy", self.at.to_str().unwrap()]);
    }
}

async fn cut(servers: Servers) {
    servers.tell("stop", 0, &[]);
    let Some(mut disk) = FileDisk::new(&servers.data(0)) else {
        eprintln!("skipped: no file system can be mounted from a file here");
        return;
    };
    servers.start(0, &[]);
    let safe = Arc::new(servers.store());
    let careless = RedisStore::new(
        &Configuration {
            name: "careless".to_owned(),
            fsync: false,
            ..servers.configuration()
        },
        "/",
    )
    .unwrap();
    let hour = Duration::from_secs(3_600);
    let mut confirmed = Vec::new();
    let mut discarded = 0;
    for round in 0..4 {
        eventually("well", || async { safe.health().await.ok() }).await;
        let queue = format!("orders-{round}");
        for part in 0..3 {
            // Written at another place within the second each time.
            tokio::time::sleep(Duration::from_millis(270 * part)).await;
            let batch = many(&format!("{queue}-{part}"), 50, hour);
            safe.keep(&batch).await.unwrap();
            confirmed.extend(batch.iter().map(|kept| kept.id().to_string()));
        }
        let unsafely = many(&queue, 50, hour);
        careless.keep(&unsafely).await.unwrap();
        servers.tell("kill", 0, &[]);
        disk.cut();
        servers.start(0, &[]);
        eventually("well", || async { careless.health().await.ok() }).await;
        let left = waiting(&careless).await;
        discarded += unsafely
            .iter()
            .filter(|kept| !left.contains(kept.id().as_str()))
            .count();
        let there = waiting(&safe).await;
        let lost: Vec<_> = confirmed.iter().filter(|id| !there.contains(*id)).collect();
        assert!(
            lost.is_empty(),
            "round {round}: {} of {} confirmed are lost",
            lost.len(),
            confirmed.len()
        );
    }
    eprintln!(
        "kept {}, lost none; without `fsync` {discarded} of 200 were lost",
        confirmed.len()
    );
}

#[tokio::test]
async fn what_was_confirmed_survives_a_power_cut_with_a_sync_per_second() {
    on_kinds(&["appendfsync everysec"], |servers| async move {
        if servers.kind() == "redis" {
            return cut(servers).await;
        }
        // It would lose what it has confirmed (docs/redis-store.md).
        let why = servers.store().health().await.unwrap_err();
        assert!(
            matches!(&why, Error::Unfit(why) if why.contains("`appendfsync always`")),
            "{why}"
        );
    })
    .await;
}

#[tokio::test]
async fn what_was_confirmed_survives_a_power_cut_with_a_sync_per_write() {
    on_kinds(&["appendfsync always"], cut).await;
}
