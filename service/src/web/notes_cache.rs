//! What operators noted about groups (`retryrmq parked tag` and `hold`), read out of its own small queue and remembered for a moment.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use retryrmq::{Client, terminal_escape};
use retryrmq_operator::note::{Note, Notes, family};
use tokio::time::{Instant, sleep, timeout};

/// How long notes are believed to be the same.
const FRESH: Duration = Duration::from_secs(20);
/// A page waits no longer for them.
const TIME_LIMIT: Duration = Duration::from_secs(5);
/// Queues whose notes are remembered.
const MOST: usize = 1_000;

/// By queue: when its notes were read, and what they were.
type CachedNotes = HashMap<String, (Instant, Arc<Notes>)>;

/// The notes of all queues. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct NotesCache(Arc<Mutex<CachedNotes>>);

impl NotesCache {
    /// Those about a queue; none where they cannot be read now.
    pub(super) async fn about(&self, client: Option<Client>, queue: &str) -> Arc<Notes> {
        let known = self.lock().get(queue).cloned();
        let (at, known) = known.map_or((None, None), |(at, known)| (Some(at), Some(known)));
        if at.is_some_and(|at| at.elapsed() < FRESH) {
            return known.unwrap_or_default();
        }
        let Some(client) = client else {
            return known.unwrap_or_default();
        };
        let (asked, until) = (queue.to_owned(), Instant::now() + TIME_LIMIT);
        // By itself: a walk that is dropped, with the request of a browser that goes away, may leave what it puts back twice.
        let read = tokio::spawn(async move { read(&client, &asked, until).await });
        let read = timeout(TIME_LIMIT, read).await;
        match read.map(|read| read.unwrap_or(Ok(None))) {
            Ok(Ok(Some(notes))) => {
                let notes = Arc::new(notes);
                let mut all = self.lock();
                if all.len() >= MOST {
                    all.clear();
                }
                all.insert(queue.to_owned(), (Instant::now(), Arc::clone(&notes)));
                notes
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, queue, "the notes about this queue cannot be read");
                known.unwrap_or_default()
            }
            Ok(Ok(None)) | Err(_) => known.unwrap_or_default(),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, CachedNotes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `None` where somebody else holds some of them until then.
async fn read(client: &Client, queue: &str, until: Instant) -> retryrmq::Result<Option<Notes>> {
    let parked = client.parked(family(queue));
    let name = parked.name();
    if name.len() > 255 {
        return Ok(Some(Notes::default()));
    }
    let totals = client.queue_totals([name.as_str()]).await?;
    let is_there = matches!(totals.first(), Some(Ok(Some(totals))) if totals.ready > 0);
    if !is_there {
        return Ok(Some(Notes::default()));
    }
    loop {
        let mut browse = parked.browse().await?;
        let mut notes = Notes::default();
        let read = async {
            while let Some(record) = browse.next().await? {
                notes.add(record.message().body());
            }
            Ok::<_, retryrmq::Error>(())
        }
        .await;
        let is_alone = browse.others() == 0 && browse.missed() == 0;
        browse.close().await?;
        read?;
        if is_alone {
            return Ok(Some(notes));
        }
        // Somebody else holds some of them.
        if Instant::now() >= until {
            return Ok(None);
        }
        sleep(Duration::from_millis(fastrand::u64(50..400))).await;
    }
}

/// A note in a line.
pub(super) fn sentence(note: &Note) -> String {
    let mut words = Vec::new();
    if note.hold {
        words.push("on hold".to_owned());
    }
    if !note.owner.is_empty() {
        words.push(format!("owner {}", terminal_escape::line(&note.owner)));
    }
    if !note.note.is_empty() {
        words.push(terminal_escape::line(&note.note).into_owned());
    }
    if !note.by.is_empty() {
        words.push(format!("(by {})", terminal_escape::line(&note.by)));
    }
    words.join(", ").replace(", (", " (")
}
