//! How many messages are parked, as the broker said a moment ago: the history does not know what others park, replay or drop.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use retryrmq::Client;
use tokio::time::Instant;

use crate::parked_depths::parked_depths;

/// How long an answer is believed.
const FRESH: Duration = Duration::from_secs(2);
/// A page waits no longer for the broker.
const TIME_LIMIT: Duration = Duration::from_secs(3);
/// Queues that are asked for at a time.
const MOST_ASKED: usize = 200;
/// Queues whose depths are remembered.
const MOST: usize = 2_000;

/// By work queue: when the broker answered, and how many messages are parked.
type CachedDepths = HashMap<String, (Instant, u64)>;

/// The depths of parking queues. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct ParkedDepthsCache(Arc<Mutex<CachedDepths>>);

impl ParkedDepthsCache {
    /// How many messages are parked for these queues; nothing of one that the broker says nothing of now. Without a client, what is known is
    /// told, however old it is.
    pub(super) async fn parked<'q>(
        &self,
        client: Option<Client>,
        queues: impl IntoIterator<Item = &'q str>,
    ) -> HashMap<String, u64> {
        let queues: HashSet<&str> = queues.into_iter().collect();
        let mut depths = HashMap::new();
        let mut asked: Vec<String> = Vec::new();
        {
            let known = self.lock();
            for queue in queues {
                match known.get(queue) {
                    Some((at, depth)) if client.is_none() || at.elapsed() < FRESH => {
                        depths.insert(queue.to_owned(), *depth);
                    }
                    _ if asked.len() < MOST_ASKED => asked.push(queue.to_owned()),
                    _ => {}
                }
            }
        }
        let Some(client) = client.filter(|_| !asked.is_empty()) else {
            return depths;
        };
        let answers = parked_depths(&client, &asked, TIME_LIMIT).await;
        let now = Instant::now();
        let mut known = self.lock();
        if known.len() + answers.len() > MOST {
            known.clear();
        }
        for (queue, depth) in answers {
            known.insert(queue.clone(), (now, depth));
            depths.insert(queue, depth);
        }
        depths
    }

    fn lock(&self) -> MutexGuard<'_, CachedDepths> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
