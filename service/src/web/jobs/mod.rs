//! What people ask for: done by the service, one walk through a queue at a time, with a result for each message.
//!
//! A job acts on the messages that its form named, and on no other: each by its mark, which names it wherever it stands. What it does it
//! writes into the history before the message leaves.

mod job;
mod job_runner;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use retryrmq::{Client, Record};
use tokio::{
    sync::{Mutex as Turn, Semaphore, watch},
    time::{Instant, timeout, timeout_at},
};
use tracing::{info, warn};

pub(super) use job::{Job, JobKind, MessageOutcome, Progress};
use job_runner::JobRunner;
pub(super) use job_runner::taken_out;

use super::{WebConfig, refusal::Refusal};
use crate::{
    alerting_runtime::RunningTasks, history::History, memory_budget::MemoryBudget,
    store::redis::RedisStore,
};

/// Jobs whose results are remembered; the history has what they did for longer.
const MOST: usize = 100;
/// Jobs that walk at a time: each has a connection.
const MOST_WALKS: usize = 8;
/// Messages that are looked for at a time: each look has a connection, and one of the requests that are answered at a time.
const MOST_LOOKS: usize = 8;
/// How long a look for one message may take.
const LOOK: Duration = Duration::from_secs(20);

/// How long the end of the service waits for what is under way.
const FAREWELL: Duration = Duration::from_secs(20);

/// The jobs of this service. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct Jobs {
    history: History,
    running: RunningTasks,
    memory: MemoryBudget,
    store: Option<Arc<RedisStore>>,
    all: Arc<Mutex<VecDeque<Arc<Job>>>>,
    /// A walk holds what another one does not see: so there is one at a time for each queue.
    turns: Arc<Mutex<HashMap<String, Arc<Turn<()>>>>>,
    /// The jobs that may walk at a time.
    places: Arc<Semaphore>,
    /// The messages that may be looked for at a time.
    looks: Arc<Semaphore>,
    /// Whether the service ends.
    ends: watch::Sender<bool>,
    /// How many walks are under way.
    walks: watch::Sender<usize>,
}

/// A walk that is under way, until it is dropped.
struct RunningJob(watch::Sender<usize>);

impl Drop for RunningJob {
    fn drop(&mut self) {
        self.0.send_modify(|walks| *walks -= 1);
    }
}

/// A job that has an end, also where the service fails: one that never ended would never be forgotten.
struct EndingJob(Arc<Job>);

impl Drop for EndingJob {
    fn drop(&mut self) {
        if !self.0.has_ended() {
            let why = "the job stopped: internal error of the service";
            self.0.end(Some(why.to_owned()));
        }
    }
}

impl Jobs {
    pub(super) fn new(
        history: History,
        running: RunningTasks,
        memory: MemoryBudget,
        store: Option<Arc<RedisStore>>,
    ) -> Self {
        Self {
            history,
            running,
            memory,
            store,
            all: Arc::default(),
            turns: Arc::default(),
            places: Arc::new(Semaphore::new(MOST_WALKS)),
            looks: Arc::new(Semaphore::new(MOST_LOOKS)),
            ends: watch::Sender::new(false),
            walks: watch::Sender::new(0),
        }
    }

    fn underway(&self) -> RunningJob {
        self.walks.send_modify(|walks| *walks += 1);
        RunningJob(self.walks.clone())
    }

    /// Begins nothing more, and waits until what was sent back is parked no longer: a walk that is cut off leaves it in both places.
    pub(super) async fn end(&self) {
        self.ends.send_replace(true);
        let mut walks = self.walks.subscribe();
        let ended = timeout(FAREWELL, walks.wait_for(|walks| *walks == 0)).await;
        if ended.is_err() {
            warn!(
                "jobs of the page were cut off: the messages that they replayed last may still be parked, too"
            );
        }
    }

    /// Begins, and returns at once.
    ///
    /// # Errors
    /// Too many jobs have not ended: nothing was begun.
    pub(super) fn begin(
        &self,
        client: Client,
        work: JobKind,
        queue: &str,
        who: &str,
        web_config: Arc<WebConfig>,
    ) -> Result<Arc<Job>, Refusal> {
        let job = Arc::new(Job::new(&work, queue, who));
        remember(&mut lock(&self.all), Arc::clone(&job))?;
        info!(
            job = job.id,
            who,
            queue,
            work = job.word,
            messages = work.count(),
            "a job of the page started"
        );
        let (jobs, asked) = (self.clone(), Arc::clone(&job));
        let underway = self.underway();
        tokio::spawn(async move {
            let _underway = underway;
            let _ending = EndingJob(Arc::clone(&asked));
            let turn = jobs.turn(&asked.queue);
            let _alone = turn.lock().await;
            // Whoever waits for a queue takes no place from others.
            let _place = match work {
                JobKind::Silence(_) | JobKind::Close { .. } => None,
                _ => jobs.places.acquire().await.ok(),
            };
            let walk = JobRunner {
                client: &client,
                history: &jobs.history,
                running: &jobs.running,
                job: &asked,
                work: &work,
                web_config: &web_config,
                memory: &jobs.memory,
                store: jobs.store.as_deref(),
                ends: jobs.ends.subscribe(),
                reported: Mutex::default(),
            };
            let ended = walk.run().await;
            let sentence = ended.as_ref().err().cloned().unwrap_or_default();
            info!(
                job = asked.id,
                done = asked.succeeded(),
                error = sentence,
                "a job of the page ended"
            );
            asked.end(ended.err());
        });
        Ok(job)
    }

    pub(super) fn find(&self, id: &str) -> Option<Arc<Job>> {
        lock(&self.all)
            .iter()
            .find(|job| job.id == id)
            .map(Arc::clone)
    }

    /// The latest first.
    pub(super) fn list(&self) -> Vec<Arc<Job>> {
        lock(&self.all).iter().rev().map(Arc::clone).collect()
    }

    /// One parked message, looked at in its queue.
    ///
    /// # Errors
    /// Not found: it is not parked. Unavailable: nobody knows now.
    pub(super) async fn find_parked(
        &self,
        client: &Client,
        queue: &str,
        mark: &str,
    ) -> Result<Record, Refusal> {
        let Ok(look) = Arc::clone(&self.looks).try_acquire_owned() else {
            return Err(Refusal::unavailable(
                "Too many messages are being searched for. Try again in a moment.",
            ));
        };
        let (jobs, client) = (self.clone(), client.clone());
        let (queue, mark) = (queue.to_owned(), mark.to_owned());
        let underway = self.underway();
        let until = Instant::now() + LOOK;
        // By itself: a browser that goes away drops its request, and a walk that is dropped while it puts messages back leaves them twice.
        let walked = tokio::spawn(async move {
            let _underway = underway;
            let _look = look;
            let turn = jobs.turn(&queue);
            let Ok(_alone) = timeout_at(until, turn.lock()).await else {
                return Ok(None);
            };
            let ends = jobs.ends.subscribe();
            let goes_on = || Instant::now() < until && !*ends.borrow();
            match goes_on() {
                true => job_runner::find(&client, &queue, &mark, goes_on).await,
                false => Ok(None),
            }
        });
        match timeout(LOOK, walked).await {
            Ok(Ok(Ok(Some(record)))) => Ok(record),
            Ok(Ok(Err(refusal))) => Err(refusal),
            _ => Err(Refusal::unavailable(
                "The search for the message took too long: a job is running on this queue, or very many messages are parked. Try again later.",
            )),
        }
    }

    fn turn(&self, queue: &str) -> Arc<Turn<()>> {
        let mut turns = lock(&self.turns);
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        Arc::clone(turns.entry(queue.to_owned()).or_default())
    }
}

/// Keeps a job, and forgets the one that was begun first of those that have ended, where there are too many.
///
/// # Errors
/// None of them has ended.
fn remember(all: &mut VecDeque<Arc<Job>>, job: Arc<Job>) -> Result<(), Refusal> {
    if all.len() >= MOST {
        let ended = all.iter().position(|job| job.has_ended());
        let ended = ended.ok_or_else(|| {
            Refusal::unavailable(format!(
                "The job was not started: {MOST} jobs are running or queued. Try again when one has ended."
            ))
        })?;
        all.remove(ended);
    }
    all.push_back(job);
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The marks of a form: sixteen hexadecimal digits each, in lower case as they are compared, between commas; each once.
pub(super) fn marks(text: &str) -> Vec<String> {
    let is_mark = |mark: &&str| mark.len() == 16 && mark.bytes().all(|b| b.is_ascii_hexdigit());
    let mut seen = HashSet::new();
    let marks = text.split(',').map(str::trim).filter(is_mark);
    marks
        .map(str::to_ascii_lowercase)
        .filter(|mark| seen.insert(mark.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{super::refusal::RefusalKind, *};

    #[test]
    fn a_job_that_has_not_ended_is_not_forgotten() {
        let mut all = VecDeque::new();
        let job = || Arc::new(Job::new(&JobKind::Scan, "orders", "ana"));
        let jobs: Vec<_> = (0..MOST).map(|_| job()).collect();
        for job in &jobs {
            remember(&mut all, Arc::clone(job)).unwrap();
        }
        let refused = remember(&mut all, job()).unwrap_err();
        assert_eq!(refused.kind, RefusalKind::Unavailable);
        assert_eq!(all.len(), MOST);
        jobs[7].end(None);
        drop(EndingJob(Arc::clone(&jobs[3])));
        for forgotten in [3, 7] {
            remember(&mut all, job()).unwrap();
            assert_eq!(all.len(), MOST);
            let is_there = |job: &Arc<Job>| all.iter().any(|known| Arc::ptr_eq(known, job));
            assert!(!is_there(&jobs[forgotten]));
            assert!(is_there(&jobs[0]) && is_there(&jobs[MOST - 1]));
        }
        assert!(remember(&mut all, job()).is_err());
    }
}
