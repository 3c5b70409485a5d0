//! Redis is killed at any moment: what it has confirmed is there afterwards.

use std::{
    collections::HashSet,
    fs::OpenOptions,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use retryrmq_serve::store::{
    Page, Store,
    redis::{Configuration, RedisStore},
};

use crate::{
    message_drafts::kept,
    server::{Servers, eventually, on_kinds},
};

/// Everything that waits.
pub(crate) async fn waiting(store: &RedisStore) -> HashSet<String> {
    let mut ids = HashSet::new();
    let mut from = None;
    loop {
        let page = Page {
            from,
            limit: 1_000,
            destination: None,
        };
        let listing = store.list(&page).await.unwrap();
        ids.extend(
            listing
                .messages
                .iter()
                .map(|one| one.message.id().to_string()),
        );
        from = listing.next;
        if from.is_none() {
            return ids;
        }
    }
}

/// Keeps messages without end from several tasks, kills Redis again and again, and compares.
async fn killed(servers: Servers, fsync: bool) {
    let configuration = Configuration {
        fsync,
        ..servers.configuration()
    };
    let store = Arc::new(RedisStore::new(&configuration, "/").unwrap());
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..3)
        .map(|writer| {
            let (store, stop) = (Arc::clone(&store), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut confirmed = Vec::new();
                let mut number = 0;
                while !stop.load(Ordering::Relaxed) {
                    let batch: Vec<_> = (0..20)
                        .map(|at| {
                            let body = format!("{writer}-{number}-{at}");
                            kept("orders", &body, Duration::from_secs(3_600))
                        })
                        .collect();
                    number += 1;
                    // As the intake does: the same values until it succeeds.
                    while store.keep(&batch).await.is_err() {
                        if stop.load(Ordering::Relaxed) {
                            return confirmed;
                        }
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                    confirmed.extend(batch.iter().map(|kept| kept.id().to_string()));
                }
                confirmed
            })
        })
        .collect();
    for round in 1..=3u64 {
        let before = round * 20;
        eventually("some are confirmed", || async {
            let count = store.count().await.ok()?;
            (count.first()?.1 > before).then_some(())
        })
        .await;
        servers.tell("kill", 0, &[]);
        servers.start(0, &[]);
    }
    eventually("well", || async { store.health().await.ok() }).await;
    stop.store(true, Ordering::Relaxed);
    let mut confirmed = Vec::new();
    for writer in writers {
        confirmed.extend(writer.await.unwrap());
    }
    let there = waiting(&store).await;
    let lost: Vec<_> = confirmed.iter().filter(|id| !there.contains(*id)).collect();
    assert!(
        lost.is_empty(),
        "{} of {} are lost",
        lost.len(),
        confirmed.len()
    );
    assert!(!confirmed.is_empty());
    // Counted by line as they are.
    let count = store.count().await.unwrap();
    assert_eq!(count[0].1, there.len() as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_confirmed_survives_a_kill_with_a_sync_per_second() {
    on_kinds(&["appendfsync everysec"], |servers| async move {
        // Written is enough for a kill; and of Valkey nothing better can be had with this setting.
        let fsync = servers.kind() == "redis";
        killed(servers, fsync).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_confirmed_survives_a_kill_with_a_sync_per_write() {
    on_kinds(&["appendfsync always"], |servers| killed(servers, true)).await;
}

/// A server that was killed while it wrote leaves the beginning of a transaction in its file. If that ends within a command, Redis and
/// Valkey leave out the command alone, and run the others together with the next transaction when they start once more.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_server_had_half_written_is_neither_lost_nor_miscounted() {
    on_kinds(&["appendfsync always"], |servers| async move {
        let store = RedisStore::new(&servers.configuration(), "/").unwrap();
        let file = servers
            .data(0)
            .join("appendonlydir/appendonly.aof.1.incr.aof");
        let one = |body: String| kept("orders", &body, Duration::from_secs(3_600));
        let (mut cuts, mut waits) = (1, 0);
        loop {
            let before = std::fs::metadata(&file).unwrap().len();
            let asked = [one(format!("asked {cuts}")), one(format!("again {cuts}"))];
            store.keep(&asked).await.unwrap();
            servers.tell("kill", 0, &[]);
            let written = std::fs::read(&file).unwrap();
            let Some(end) = commands(&written, before).nth(cuts) else {
                break;
            };
            cut(&file, end - 3);
            servers.start(0, &[]);
            eventually("the other is kept", || async {
                let other = [one(format!("other {cuts}"))];
                store.keep(&other).await.ok()
            })
            .await;
            servers.tell("kill", 0, &[]);
            servers.start(0, &[]);
            // As the intake does, which had no answer.
            eventually("kept", || async { store.keep(&asked).await.ok() }).await;
            waits += 3;
            let there = waiting(&store).await;
            assert_eq!(there.len(), waits, "after {cuts} commands");
            assert!(asked.iter().all(|kept| there.contains(kept.id().as_str())));
            assert_eq!(store.count().await.unwrap()[0].1, waits as u64);
            cuts += 1;
        }
        assert!(cuts > 6, "{cuts}");
    })
    .await;
}

/// Where each command ends that was written behind `from`.
fn commands(written: &[u8], from: u64) -> impl Iterator<Item = usize> {
    let line_at = |at: usize| {
        let length = written[at..].windows(2).position(|end| end == b"\r\n");
        let line = &written[at..at + length.expect("a whole line")];
        let number = str::from_utf8(&line[1..]).unwrap().parse::<usize>();
        (number.unwrap(), at + line.len() + 2)
    };
    let mut at = usize::try_from(from).unwrap();
    std::iter::from_fn(move || {
        if at == written.len() {
            return None;
        }
        let (words, mut next) = line_at(at);
        for _ in 0..words {
            let (length, word) = line_at(next);
            next = word + length + 2;
        }
        at = next;
        Some(at)
    })
}

/// Leaves the first bytes of a file.
fn cut(file: &Path, length: usize) {
    let file = OpenOptions::new().write(true).open(file).unwrap();
    file.set_len(length as u64).unwrap();
}
