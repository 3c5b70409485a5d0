//! What somebody asks for, by a form of the page or by the API: checked, shown beforehand, and begun, by the same functions.

use std::{collections::HashSet, sync::Arc, time::Duration};

use jiff::Timestamp;
use retryrmq::parking_queue;
use retryrmq_operator::{note::Note, plural};

use super::{
    Page, WebConfig,
    auth::User,
    jobs::{Job, JobKind},
    queue_lists,
    refusal::{Refusal, RefusalKind},
    request::MAY_NOT,
};
use crate::{
    alerts::{GroupView, Silence, failure_id},
    history::{Event, HistoryAction},
    store::Store,
    stored_messages::walk,
};

/// Messages that a confirmation names one by one.
pub(super) const SHOWN: usize = 50;
/// Somebody who drops more than these says their number.
const COUNTED_ABOVE: usize = 10;
/// The longest silence.
const LONGEST: Duration = Duration::from_secs(90 * 86_400);
/// Bytes of a queue's name.
const LONGEST_NAME: usize = 255;

/// A request for a job, before it is checked. A text that was not said is empty.
#[derive(Clone, Debug, Default)]
pub(super) struct JobRequest {
    /// As [`JobKind::word`].
    pub(super) action: String,
    pub(super) queue: String,
    pub(super) fingerprint: String,
    pub(super) marks: Vec<String>,
    /// The group whose incident is closed.
    pub(super) group: String,
    /// What is looked for.
    pub(super) text: String,
    /// How long a silence lasts.
    pub(super) length: String,
    pub(super) why: String,
}

/// How far somebody is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The page shows what would be done: not everything is said yet.
    Choosing,
    /// Everything is said.
    Complete,
}

/// What a job would do.
pub(super) struct Preview {
    /// With the marks of all messages that it would touch.
    pub(super) work: JobKind,
    /// The first of these messages, as far as they are known.
    pub(super) messages: Vec<Arc<Event>>,
    /// What operators noted about the group.
    pub(super) note: Option<Note>,
}

impl JobRequest {
    /// What is asked for.
    ///
    /// # Errors
    /// What is missing, in a sentence.
    pub(super) fn kind(&self, author: &str, stage: Stage) -> Result<JobKind, Refusal> {
        if self.queue.is_empty() || self.queue.len() > LONGEST_NAME {
            return Err(Refusal::invalid(
                "The name of the queue must have 1 to 255 bytes.",
            ));
        }
        let named = |make: fn(Vec<String>) -> JobKind| match (self.marks.is_empty(), stage) {
            (true, Stage::Complete) => Err(Refusal::invalid("No message is selected.")),
            _ => Ok(make(self.marks.clone())),
        };
        match self.action.as_str() {
            "replay" => named(JobKind::Replay),
            "drop" => named(JobKind::Drop),
            "restore" => named(JobKind::Restore),
            "cancel" => named(JobKind::Cancel),
            "flush" => named(JobKind::Flush),
            "scan" => Ok(JobKind::Scan),
            "search" => match self.text.trim() {
                text if (3..=200).contains(&text.len()) => Ok(JobKind::Search(text.to_owned())),
                _ => Err(Refusal::invalid(
                    "The search text must have 3 to 200 bytes.",
                )),
            },
            "close" if is_group(&self.group) => Ok(JobKind::Close {
                group: self.group.clone(),
                fingerprint: self.fingerprint.chars().take(100).collect(),
            }),
            "close" => Err(Refusal::invalid(
                "The group of an incident has 16 hexadecimal digits.",
            )),
            "silence" if stage == Stage::Choosing => Ok(JobKind::Silence(Silence::default())),
            "silence" => self.silence(author),
            _ => Err(Refusal::invalid("Unknown action.")),
        }
    }

    fn silence(&self, author: &str) -> Result<JobKind, Refusal> {
        let length = retryrmq::parse_duration(&self.length);
        let length = length
            .ok()
            .filter(|length| *length <= LONGEST)
            .ok_or_else(|| {
                Refusal::invalid("A silence lasts 1h, 8h, 1d, 7d or another duration up to 90d.")
            })?;
        // Without one it would be the whole queue that nobody hears of.
        if self.fingerprint.is_empty() {
            return Err(Refusal::invalid(
                "A silence needs the fingerprint of a group.",
            ));
        }
        let silence = Silence {
            id: "page".to_owned(), // the job's takes its place
            queue: Some(self.queue.clone()),
            fingerprint: Some(self.fingerprint.clone()),
            until: Timestamp::now() + length,
            author: author.to_owned(),
            why: self.why.trim().chars().take(200).collect(),
            ..Silence::default()
        };
        silence.check().map_err(Refusal::invalid)?;
        Ok(JobKind::Silence(silence))
    }
}

/// Whether it is the id of a group, as the alerts write it.
fn is_group(text: &str) -> bool {
    text.len() == 16
        && text
            .bytes()
            .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// Whoever closes an incident names its queue: the history has it, and so has whoever looks there for what was done.
///
/// # Errors
/// The incident is known, and is one of another queue.
fn check_incident(page: &Page, queue: &str, work: &JobKind) -> Result<(), Refusal> {
    let JobKind::Close { group, .. } = work else {
        return Ok(());
    };
    let is_of_queue = |incident: &GroupView| {
        [queue, parking_queue(queue).as_str()].contains(&incident.queue.as_str())
            || failure_id(queue, &incident.fingerprint) == incident.id // a name that alerts write in another way
    };
    let mut incidents = queue_lists::incidents(page, None).into_iter();
    match incidents.find(|incident| incident.id == *group) {
        Some(incident) if !is_of_queue(&incident) => {
            Err(Refusal::invalid("This incident belongs to another queue."))
        }
        _ => Ok(()),
    }
}

impl JobKind {
    /// Whether whoever asks for it says how many messages it is about.
    pub(super) fn is_counted(&self) -> bool {
        matches!(self, Self::Drop(_)) && self.count() > COUNTED_ABOVE
    }
}

/// What the request would touch: the messages that it names, or those of a whole group. Nothing is changed.
///
/// # Errors
/// No message is named, or an incident of another queue.
pub(super) async fn preview(
    page: &Page,
    request: &JobRequest,
    work: JobKind,
) -> Result<Preview, Refusal> {
    let (queue, fingerprint) = (request.queue.as_str(), request.fingerprint.as_str());
    check_incident(page, queue, &work)?;
    let (index, now) = (page.history.index(), Timestamp::now());
    let known = match &work {
        JobKind::Replay(_) | JobKind::Drop(_) => {
            let print = Some(fingerprint).filter(|print| !print.is_empty());
            index.parked_events(queue, print)
        }
        JobKind::Cancel(marks) | JobKind::Flush(marks) => {
            let waits = index.waits(now).into_iter().map(|(_, wait)| wait);
            let mut waits: Vec<_> = waits.filter(|wait| wait.queue == queue).collect();
            if let Some(store) = &page.store {
                waits.extend(stored(store.as_ref(), queue, marks).await);
            }
            waits
        }
        _ => Vec::new(),
    };
    let all_of_group = || {
        known
            .iter()
            .filter_map(|event| event.mark.clone())
            .collect()
    };
    let work = match work {
        JobKind::Replay(marks) if marks.is_empty() && !fingerprint.is_empty() => {
            JobKind::Replay(all_of_group())
        }
        JobKind::Drop(marks) if marks.is_empty() && !fingerprint.is_empty() => {
            JobKind::Drop(all_of_group())
        }
        work => work,
    };
    if work.marks().is_some_and(<[String]>::is_empty) {
        let refuse = match fingerprint.is_empty() {
            true => RefusalKind::Invalid,
            false => RefusalKind::NotFound,
        };
        return Err(Refusal::new(
            refuse,
            "No message is selected. Select some, or scan the parking queue first to list its messages.",
        ));
    }
    let chosen: HashSet<&str> = work
        .marks()
        .into_iter()
        .flatten()
        .map(String::as_str)
        .collect();
    let named = known
        .iter()
        .filter(|event| chosen.contains(Event::text(&event.mark)));
    let messages = named.take(SHOWN).map(Arc::clone).collect();
    let notes = page.notes_cache.about(page.health.client(), queue).await;
    Ok(Preview {
        note: notes.about(fingerprint).cloned(),
        messages,
        work,
    })
}

/// Those of the marks that wait in the store, as far as they are shown; none where it does not answer.
async fn stored(store: &impl Store, queue: &str, marks: &[String]) -> Vec<Arc<Event>> {
    let mut found = Vec::new();
    let walked = walk(store, Some(queue), |listed| {
        let event = Event::to_stored_message(HistoryAction::Other, &listed.message);
        if event.mark.as_ref().is_some_and(|mark| marks.contains(mark)) {
            found.push(Arc::new(event));
        }
        found.len() < SHOWN.min(marks.len())
    });
    match walked.await {
        Ok(()) => found,
        Err(_) => Vec::new(),
    }
}

/// Begins a job, for somebody who may ask for it and has said how many messages it is about, where that is asked.
///
/// # Errors
/// Nothing was begun, and why.
pub(super) fn begin(
    page: &Page,
    user: &User,
    web_config: &Arc<WebConfig>,
    queue: &str,
    work: JobKind,
    count: Option<usize>,
) -> Result<Arc<Job>, Refusal> {
    if user.role < work.role() {
        return Err(Refusal::new(RefusalKind::Forbidden, MAY_NOT));
    }
    if work.is_counted() && count != Some(work.count()) {
        let count = work.count();
        let messages = plural::messages(count as u64);
        return Err(Refusal::invalid(format!(
            "Nothing was dropped. To drop {messages}, go back and type {count}."
        )));
    }
    check_incident(page, queue, &work)?;
    let client = page.client()?;
    let web_config = Arc::clone(web_config);
    page.jobs.begin(client, work, queue, &user.name, web_config)
}
