//! The walks of a job, by the functions that the command uses: a copy is confirmed before the original goes, and what is only looked at
//! stays where it is.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use retryrmq::{
    Backoff, Browse, Client, Policy, Record, Resend, WaitingMessage, WaitingQueue, dropped_queue,
    parking_queue, terminal_escape,
};
use retryrmq_operator::plural;
use tokio::sync::watch;

use super::{Job, JobKind, MessageOutcome};
use crate::{
    alerting_runtime::RunningTasks,
    history::{Event, History, HistoryAction},
    intake::is_packed,
    memory_budget::MemoryBudget,
    retrier_cache::RetrierCache,
    store::{CancelResult, Store, redis::RedisStore},
    stored_messages::{ParkResult, park, walk},
    web::{
        WebConfig,
        body::{MaskCache, QueueMasks},
        refusal::Refusal,
    },
};

/// Copies in flight at a time.
const WAVE: usize = 64;
/// Messages that one scan reads.
const MOST_LOOKED_AT: usize = 20_000;
/// Hits of one search.
const MOST_HITS: usize = 500;
/// Maximum passes over a waiting message while searching for another, as in the command: after ten crashes it would be parked, and RabbitMQ 4.0 to
/// 4.2 count a pass as one.
const MOST_PASSES: u32 = 7;
/// Events that are written at a time.
const EVENTS: usize = 200;
/// The result of a message that a walk to its end did not find.
const NOT_THERE: &str = "not found: it is gone, or another consumer holds it; nothing was changed";
const NOT_KEPT: &str = "not found among the dropped messages: it has expired, or another consumer holds it; nothing was changed";
const NOT_WAITING: &str = "no longer waiting: it came back, or another consumer holds it";

/// What became of a waiting message.
pub(in crate::web) fn taken_out(action: HistoryAction) -> &'static str {
    match action {
        HistoryAction::Flushed => "comes back now",
        _ => "taken out and parked",
    }
}

pub(super) struct JobRunner<'a> {
    pub(super) client: &'a Client,
    pub(super) history: &'a History,
    pub(super) running: &'a RunningTasks,
    pub(super) job: &'a Job,
    pub(super) work: &'a JobKind,
    pub(super) web_config: &'a WebConfig,
    pub(super) memory: &'a MemoryBudget,
    /// Where messages wait outside the broker.
    pub(super) store: Option<&'a RedisStore>,
    /// Whether the service ends: a walk stops then where nothing is in two places.
    pub(super) ends: watch::Receiver<bool>,
    /// The marks that have a result.
    pub(super) reported: Mutex<HashSet<String>>,
}

impl JobRunner<'_> {
    /// # Errors
    /// Why it ended early, in a sentence. What was done by then stands in the outcomes.
    pub(super) async fn run(&self) -> Result<(), String> {
        match self.work {
            JobKind::Replay(marks) => {
                let ended = self.settle(HistoryAction::Replayed, marks).await;
                self.add_missing_outcomes(marks, ended, NOT_THERE)
            }
            JobKind::Drop(marks) => {
                let ended = self.settle(HistoryAction::Dropped, marks).await;
                self.add_missing_outcomes(marks, ended, NOT_THERE)
            }
            JobKind::Restore(marks) => {
                let ended = self.settle(HistoryAction::Restored, marks).await;
                self.add_missing_outcomes(marks, ended, NOT_KEPT)
            }
            JobKind::Cancel(marks) => {
                let ended = self.take_out(HistoryAction::Cancelled, marks).await;
                self.add_missing_outcomes(marks, ended, NOT_WAITING)?;
                // What was parked just now is known by name then.
                self.walk_parked(None).await
            }
            JobKind::Flush(marks) => {
                let ended = self.take_out(HistoryAction::Flushed, marks).await;
                self.add_missing_outcomes(marks, ended, NOT_WAITING)
            }
            JobKind::Silence(silence) => {
                let mut silence = silence.clone();
                silence.id.clone_from(&self.job.id);
                let event = Event {
                    event: HistoryAction::Silenced,
                    queue: self.job.queue.clone(),
                    fingerprint: silence.fingerprint.clone(),
                    ..self.started_event()
                };
                self.running.silence(silence)?;
                self.write(&[event]).await?;
                self.job.note(
                    "No alerts are sent for this group until then. Its failures are still counted.",
                );
                Ok(())
            }
            JobKind::Close { group, fingerprint } => {
                let event = Event {
                    event: HistoryAction::Closed,
                    queue: self.job.queue.clone(),
                    fingerprint: Some(fingerprint.clone()).filter(|print| !print.is_empty()),
                    ..self.started_event()
                };
                self.running.close_incident(group)?;
                self.write(&[event]).await?;
                self.job.note(
                    "If the incident was open, a notice says that it is resolved. Its messages were not changed. The next failure of this kind opens \
                     a new incident.",
                );
                Ok(())
            }
            JobKind::Scan => self.walk_parked(None).await,
            JobKind::Search(text) => self.walk_parked(Some(text.to_lowercase())).await,
        }
    }

    /// # Errors
    /// The service ends.
    fn goes_on(&self) -> Result<(), String> {
        match *self.ends.borrow() {
            true => Err("the job stopped: the service is shutting down".to_owned()),
            false => Ok(()),
        }
    }

    fn started_event(&self) -> Event {
        let event = Event {
            at: jiff::Timestamp::now(),
            event: HistoryAction::Begun,
            queue: self.job.queue.clone(),
            command: Some(self.job.word.to_owned()),
            ..Event::default()
        };
        event.by(&self.job.who, &self.job.id)
    }

    async fn write(&self, events: &[Event]) -> Result<(), String> {
        self.history.write(self.client, events).await
    }

    /// Replays, drops, or parks again what was dropped.
    async fn settle(&self, action: HistoryAction, marks: &[String]) -> Result<(), String> {
        self.goes_on()?;
        self.write(&[self.started_event()]).await?;
        let mut parked = self.client.parked(&self.job.queue);
        if action == HistoryAction::Restored {
            parked = parked.dropped();
        }
        let mut browse = parked.browse().await.map_err(sentence)?;
        let mut left: HashSet<&str> = marks.iter().map(String::as_str).collect();
        let walked = async {
            if action == HistoryAction::Dropped {
                let keep = self.web_config.page.keep_dropped.0;
                parked.make_dropped(keep).await.map_err(sentence)?;
            }
            let mut wave: Vec<Record> = Vec::new();
            while !left.is_empty()
                && let Some(record) = browse.next().await.map_err(sentence)?
            {
                self.goes_on()?;
                if left.remove(record.mark.as_str()) {
                    wave.push(record);
                }
                if wave.len() == WAVE {
                    self.flush(&mut browse, action, &mut wave).await?;
                }
            }
            self.flush(&mut browse, action, &mut wave).await
        }
        .await;
        let closed = browse.close().await.map_err(sentence);
        walked.and(closed)
    }

    async fn flush(
        &self,
        browse: &mut Browse,
        action: HistoryAction,
        wave: &mut Vec<Record>,
    ) -> Result<(), String> {
        let records = std::mem::take(wave);
        if records.is_empty() {
            return Ok(());
        }
        let queue = &self.job.queue;
        let event = |record: &Record| {
            let mut event = Event::to_record(action, queue, record);
            if action == HistoryAction::Replayed {
                event.to = Some(record.home.clone());
            }
            event.by(&self.job.who, &self.job.id)
        };
        let answers = match action {
            HistoryAction::Replayed => {
                let copies: Vec<_> = records.iter().map(Resend::of).collect();
                browse.send(&copies).await
            }
            HistoryAction::Restored => browse.copy_to(&records, &parking_queue(queue)).await,
            _ => {
                let kept_in = dropped_queue(queue);
                browse.copy_to(&records, &kept_in).await
            }
        };
        let stays = match action {
            HistoryAction::Restored => "still among the dropped messages",
            _ => "still parked",
        };
        let mut sent = Vec::new();
        for (record, answer) in records.into_iter().zip(answers) {
            match answer {
                Ok(()) => sent.push(record),
                Err(why) => {
                    let hint = match action {
                        HistoryAction::Dropped => {
                            "; `retryrmq parked drop --for-good` keeps no copy"
                        }
                        _ => "",
                    };
                    self.add_record_outcome(&record, Err(&format!("{stays}: {why}{hint}")));
                }
            }
        }
        let events: Vec<_> = sent.iter().map(event).collect();
        if let Err(why) = self.write(&events).await {
            let text = match action {
                HistoryAction::Replayed => format!("replayed, but still parked: {why}"),
                HistoryAction::Restored => format!("parked again, but {stays}: {why}"),
                _ => format!("{stays}, and also among the dropped messages: {why}"),
            };
            sent.iter()
                .for_each(|record| self.add_record_outcome(record, Err(&text)));
            return Err(why);
        }
        for record in &sent {
            let said = match action {
                HistoryAction::Replayed => {
                    format!("replayed to {}", terminal_escape::line(&record.home))
                }
                HistoryAction::Restored => "parked again".to_owned(),
                _ => "dropped".to_owned(),
            };
            match browse.drop(record).await {
                Ok(()) => self.add_record_outcome(record, Ok(&said)),
                Err(why) => self.add_record_outcome(
                    record,
                    Err(&format!("{said}, but perhaps {stays}: {why}")),
                ),
            }
        }
        Ok(())
    }

    fn add_record_outcome(&self, record: &Record, said: Result<&str, &str>) {
        let message = record.message();
        self.add_outcome(&record.mark, message.message_id(), said);
    }

    /// Reports a result for every message, including those not reached.
    fn add_missing_outcomes(
        &self,
        marks: &[String],
        ended: Result<(), String>,
        not_found: &str,
    ) -> Result<(), String> {
        let why = match &ended {
            Ok(()) => not_found,
            Err(_) => "not attempted: the job ended first",
        };
        let reported = std::mem::take(&mut *self.reported());
        for mark in marks.iter().filter(|mark| !reported.contains(*mark)) {
            self.add_outcome(mark, None, Err(why));
        }
        ended
    }

    fn reported(&self) -> MutexGuard<'_, HashSet<String>> {
        self.reported.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add_outcome(&self, mark: &str, message_id: Option<&str>, said: Result<&str, &str>) {
        self.reported().insert(mark.to_owned());
        self.job.advances();
        self.job.add(MessageOutcome {
            mark: mark.to_owned(),
            message_id: message_id.map(str::to_owned),
            went_well: said.is_ok(),
            text: said.unwrap_or_else(|why| why).to_owned(),
        });
    }

    /// Takes waiting messages out: they are parked, or come back now.
    async fn take_out(&self, action: HistoryAction, marks: &[String]) -> Result<(), String> {
        self.goes_on()?;
        self.write(&[self.started_event()]).await?;
        let mut left: HashSet<&str> = marks.iter().map(String::as_str).collect();
        if let Some(store) = self.store {
            self.take_out_of_store(store, action, &mut left).await?;
        }
        if left.is_empty() {
            return Ok(());
        }
        let waiting = self.client.waiting(&self.job.queue);
        let policies = self.web_config.retry_policies.iter().cloned();
        let policies = policies.chain(self.policies_of(marks));
        let waiting_queues = waiting.queues(policies).await.map_err(sentence)?;
        for waiting_queue in waiting_queues
            .iter()
            .filter(|waiting_queue| waiting_queue.messages > 0)
        {
            if left.is_empty() {
                break;
            }
            let mut look = waiting.walk_queue(waiting_queue).await.map_err(sentence)?;
            let cancelled = async {
                let mut wave: Vec<WaitingMessage> = Vec::new();
                loop {
                    let next = match left.is_empty() {
                        true => None,
                        false => look.next().await.map_err(sentence)?,
                    };
                    let is_over = next.is_none();
                    if let Some(waiting_message) = &next {
                        self.goes_on()?;
                        if waiting_message.looks >= MOST_PASSES {
                            return Err(delivery_count_exceeded(waiting_message, waiting_queue));
                        }
                    }
                    wave.extend(
                        next.filter(|waiting_message| left.remove(waiting_message.mark.as_str())),
                    );
                    if wave.len() == WAVE || is_over && !wave.is_empty() {
                        let event = |waiting_message| {
                            let event =
                                Event::to_waiting_message(action, &self.job.queue, waiting_message);
                            event.by(&self.job.who, &self.job.id)
                        };
                        let events: Vec<_> = wave.iter().map(event).collect();
                        self.write(&events).await?;
                        let answers = match action {
                            HistoryAction::Flushed => look.flush(&wave).await,
                            _ => look.cancel(&wave).await,
                        };
                        for (waiting_message, answer) in wave.drain(..).zip(answers) {
                            let message = waiting_message.message();
                            let why = answer.err().map(|why| format!("still waiting: {why}"));
                            let said = match &why {
                                None => Ok(taken_out(action)),
                                Some(why) => Err(why.as_str()),
                            };
                            self.add_outcome(&waiting_message.mark, message.message_id(), said);
                        }
                    }
                    if is_over {
                        return Ok::<(), String>(());
                    }
                }
            }
            .await;
            let closed = look.close().await.map_err(sentence);
            cancelled.and(closed)?;
        }
        Ok(())
    }

    /// The same with those of the marks that wait in the store. They are no longer `left`.
    async fn take_out_of_store(
        &self,
        store: &RedisStore,
        action: HistoryAction,
        left: &mut HashSet<&str>,
    ) -> Result<(), String> {
        let mut found = Vec::new();
        let walked = walk(store, Some(&self.job.queue), |listed| {
            let mark = listed.message.id().mark().unwrap_or_default();
            if left.remove(mark.as_str()) {
                found.push((mark, listed.message.clone()));
            }
            !left.is_empty()
        });
        walked.await.map_err(|why| why.to_string())?;
        let retriers = RetrierCache::new(self.client.clone());
        for (mark, message) in found {
            self.goes_on()?;
            let id = message.draft().properties.message_id().as_ref();
            let event = Event::to_stored_message(action, &message).by(&self.job.who, &self.job.id);
            let said = if action == HistoryAction::Flushed {
                self.write(&[event]).await?;
                match store.hasten(std::slice::from_ref(message.id())).await {
                    Ok(results) if results == [CancelResult::Done] => Ok(()),
                    Ok(_) => Err(NOT_WAITING.to_owned()),
                    Err(why) => Err(format!("still waiting: {why}")),
                }
            } else {
                let write = async |_: &_| self.write(&[event]).await;
                match park(store, &retriers, message.id(), write).await {
                    ParkResult::Parked => Ok(()),
                    ParkResult::Twice(why) => Err(format!("parked, but may come back: {why}")),
                    ParkResult::Unknown | ParkResult::TooLate => Err(NOT_WAITING.to_owned()),
                    ParkResult::Failed(why) => Err(format!("still waiting: {why}")),
                }
            };
            let said = match &said {
                Ok(()) => Ok(taken_out(action)),
                Err(why) => Err(why.as_str()),
            };
            self.add_outcome(&mark, id.map(|id| id.as_str()), said);
        }
        Ok(())
    }

    /// What messages wait by that the history knows: the policy may say something else by now, and what waits keeps its delay.
    fn policies_of(&self, marks: &[String]) -> Vec<Policy> {
        let chosen: HashSet<&str> = marks.iter().map(String::as_str).collect();
        let waits = self.history.index().waits(jiff::Timestamp::now());
        let delays: BTreeSet<u64> = waits
            .iter()
            .filter(|(_, wait)| chosen.contains(Event::text(&wait.mark)))
            .filter_map(|(_, wait)| wait.delay_ms)
            .collect();
        delays
            .into_iter()
            .map(|delay| Backoff::fixed(Duration::from_millis(delay)))
            .collect()
    }

    /// Goes through the parking queue, and tells the history what it did not know. With a text, what has it is an outcome.
    async fn walk_parked(&self, text: Option<String>) -> Result<(), String> {
        let (queue, index) = (&self.job.queue, self.history.index());
        // Known before the walk begins: what is parked meanwhile is not gone because the walk does not see it.
        let mut known: HashMap<String, Event> = HashMap::new();
        for death in index.parked_events(queue, None) {
            if let Some(mark) = &death.mark {
                known.insert(mark.clone(), Event::clone(&death));
            }
        }
        let parked = self.client.parked(queue);
        let mut browse = match parked.browse().await {
            Ok(browse) => browse,
            Err(error) if error.kind() == retryrmq::ErrorKind::QueueNotFound => {
                self.job
                    .note("This queue has no parking queue, so nothing is parked.");
                return Ok(());
            }
            Err(error) => return Err(sentence(error)),
        };
        if matches!(self.work, JobKind::Scan | JobKind::Search(_)) {
            self.job.expects(browse.remaining() as usize);
        }
        let (mut looked, mut hits, mut unseen, mut news) = (0, 0, 0, Vec::new());
        let mut masks = MaskCache::new(&self.web_config.page, queue);
        let walked = async {
            while looked < MOST_LOOKED_AT
                && hits < MOST_HITS
                && let Some(record) = browse.next().await.map_err(sentence)?
            {
                self.goes_on()?;
                looked += 1;
                if known.remove(&record.mark).is_none()
                    && index.death(queue, &record.mark).is_none()
                {
                    let event = Event::to_record(HistoryAction::Found, queue, &record);
                    news.push(event.by(&self.job.who, &self.job.id));
                }
                if news.len() >= EVENTS {
                    self.write(&std::mem::take(&mut news)).await?;
                }
                let Some(text) = &text else {
                    if *self.work == JobKind::Scan {
                        self.job.advances();
                    }
                    continue;
                };
                self.job.advances();
                let masks = masks.of(&record.home);
                let has = has(&record, text, masks, self.memory).await;
                unseen += usize::from(has.is_none());
                if has == Some(true) {
                    hits += 1;
                    self.job.add(MessageOutcome {
                        mark: record.mark.clone(),
                        message_id: record.message().message_id().map(str::to_owned),
                        went_well: true,
                        text: terminal_escape::line(&record.error).into_owned(),
                    });
                }
            }
            self.write(&news).await
        }
        .await;
        if unseen > 0 {
            self.job.note(format!(
                "{} not searched, because the memory for decoding bodies was in use. Search again.",
                plural::messages(unseen as u64)
            ));
        }
        let rest = browse.remaining();
        let saw_all = rest == 0 && browse.others() == 0 && browse.missed() == 0;
        browse.close().await.map_err(sentence)?;
        walked?;
        if saw_all {
            let gone: Vec<_> = known
                .into_values()
                .map(|death| {
                    let event = Event {
                        at: jiff::Timestamp::now(),
                        event: HistoryAction::Gone,
                        ..death
                    };
                    event.by(&self.job.who, &self.job.id)
                })
                .collect();
            for events in gone.chunks(EVENTS) {
                self.write(events).await?;
            }
        } else if rest > 0 {
            self.job.note(format!(
                "{} scanned; {rest} more are parked.",
                plural::messages(looked as u64)
            ));
        } else {
            self.job
                .note("Other consumers hold messages of this queue, which were not scanned.");
        }
        Ok(())
    }
}

/// Whether the body has the text where a person may see it. What is masked is not found either. `None` without memory to decode it.
async fn has(
    record: &Record,
    text: &str,
    masks: Arc<QueueMasks>,
    memory: &MemoryBudget,
) -> Option<bool> {
    let (message, text) = (record.message(), text.to_owned());
    let is_packed = is_packed(message.properties());
    let reserved = memory.to_decode(message.body(), is_packed).await?;
    let decoded = tokio::task::spawn_blocking(move || {
        let shown = masks.body(message.body(), message.properties());
        drop(reserved);
        shown.text.to_lowercase().contains(&text)
    });
    Some(decoded.await.unwrap_or(false))
}

/// Why nobody looks any further.
fn delivery_count_exceeded(
    waiting_message: &WaitingMessage,
    waiting_queue: &WaitingQueue,
) -> String {
    let name = match waiting_message.message().message_id() {
        Some(id) if !id.is_empty() => terminal_escape::line(id).into_owned(),
        _ => waiting_message.mark.clone(),
    };
    format!(
        "{name} in {} has been browsed {} times while it waited, and this broker counts each time as a crash of its consumer: try again when it has come back",
        terminal_escape::line(&waiting_queue.name),
        waiting_message.looks
    )
}

/// One message. It is given back at once. `None`: nobody waits for it any more.
///
/// # Errors
/// Not found: it is not parked. Unavailable: nobody knows now.
pub(super) async fn find(
    client: &Client,
    queue: &str,
    mark: &str,
    goes_on: impl Fn() -> bool,
) -> Result<Option<Record>, Refusal> {
    let mut browse = client.parked(queue).browse().await.map_err(not_found)?;
    let mut is_over = true;
    let found = async {
        while let Some(record) = browse.next().await? {
            if record.mark == mark {
                return Ok(Some(record));
            }
            if !goes_on() {
                is_over = false;
                break;
            }
        }
        Ok::<_, retryrmq::Error>(None)
    }
    .await;
    let sees_all = browse.others() == 0 && browse.missed() == 0;
    let closed = browse.close().await;
    match found.map_err(not_found)? {
        Some(record) => closed.map(|()| Some(record)).map_err(not_found),
        None if !is_over => Ok(None),
        None if !sees_all => Err(Refusal::unavailable(
            "Not found, but other consumers hold messages of this queue. Try again in a moment.",
        )),
        None => Err(Refusal::not_found(
            "No longer parked: it was replayed or dropped.",
        )),
    }
}

/// A message is gone only where its queue is: who reads that it is gone may publish it again.
fn not_found(error: retryrmq::Error) -> Refusal {
    match error.kind() {
        retryrmq::ErrorKind::QueueNotFound => Refusal::not_found(sentence(error)),
        _ => Refusal::unavailable(sentence(error)),
    }
}

fn sentence(error: retryrmq::Error) -> String {
    terminal_escape::line(&error.to_string()).into_owned()
}
