//! What operators tell each other of a group of failures: a note, an owner, and whether to leave it alone.
//!
//! The queue that they are in is looked at with the same care as parked messages.

use std::time::{Duration, SystemTime};

use retryrmq::{BasicProperties, Client, ErrorKind, Publish};
pub(super) use retryrmq_operator::note::Note;
use retryrmq_operator::note::{self, family};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    fault::Fault,
    moment,
    output::{Column, Look, Output},
    stop::Stop,
};
use retryrmq::visible;

/// How often the notes are looked for while somebody else reads them.
const TRIES: u32 = 40;
/// A younger queue forgets what it confirmed when its broker is killed.
const SAFE_AGE: Duration = Duration::from_secs(2);

/// The latest of each group.
#[derive(Clone, Debug, Default)]
pub(super) struct Notes(note::Notes);

/// What follows where a user may not see what is on hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unseen {
    /// A warning: what is done then can be undone.
    IsTold,
    /// Nothing is done: somebody may have said that it must not be.
    Refuses,
}

impl Notes {
    /// Reads the notes about a work queue; none where nobody ever wrote any, and about no queue.
    ///
    /// # Errors
    /// When somebody else reads them all the time, where this user may not read them, and those of a lost connection: then it is not
    /// known what is held.
    pub(super) async fn of(client: &Client, queue: Option<&str>) -> Result<Self, Fault> {
        let Some(queue) = queue else {
            return Ok(Self::default());
        };
        let parked = client.parked(family(queue));
        let name = parked.name();
        if name.len() > 255 {
            return Ok(Self::default());
        }
        match client.depths(std::slice::from_ref(&name)).await {
            Ok(depths) if depths == [None] => return Ok(Self::default()),
            Ok(_) => {}
            Err(error) => return Err(unseen(error)),
        }
        for _ in 0..TRIES {
            let mut browse = parked.browse().await.map_err(unseen)?;
            let mut notes = Self::default();
            let read = async {
                while let Some(record) = browse.next().await? {
                    notes.0.add(record.message().body());
                }
                Ok::<_, retryrmq::Error>(())
            }
            .await;
            let alone = browse.others() == 0 && browse.missed() == 0;
            let closed = browse.close().await;
            read.map_err(unseen)?;
            closed?;
            if alone {
                return Ok(notes);
            }
            sleep(Duration::from_millis(fastrand::u64(50..400))).await;
        }
        Err(Fault::held(format!(
            "others read the notes in {} all the time, so that it is not known what is on hold; try again",
            visible::line(&name)
        )))
    }

    /// As [`of`](Self::of); none when we are to end and a broker with an alarm does not let the notes be read.
    pub(super) async fn unless_cut(
        stop: &Stop,
        client: &Client,
        queue: Option<&str>,
        unseen: Unseen,
    ) -> Result<Option<Self>, Fault> {
        match stop.unless_cut(Self::of(client, queue)).await {
            Some(Err(fault)) if fault.code() == REFUSED && unseen == Unseen::IsTold => {
                tracing::warn!("{}", visible::line(fault.sentence()));
                Ok(Some(Self::default()))
            }
            Some(Err(fault)) if fault.code() == REFUSED => Err(fault
                .after("nothing was done: give the user that permission, or name what is meant by id or --fingerprint")),
            notes => notes.transpose(),
        }
    }

    /// Writes a note, and takes away those that it replaces.
    pub(super) async fn write(client: &Client, queue: &str, note: &Note) -> Result<(), Fault> {
        let parked = client.parked(family(queue));
        let name = parked.name();
        parked.make().await?;
        let properties = BasicProperties::default()
            .with_delivery_mode(2)
            .with_content_type("application/json".into());
        let body = serde_json::to_vec(note).unwrap_or_default();
        let message = Publish::to_queue(&name, body).properties(properties);
        client.publish(message).await?;
        sleep(SAFE_AGE).await;
        let mut browse = parked.browse().await?;
        let cleaned = async {
            while let Some(record) = browse.next().await? {
                let old = serde_json::from_slice::<Note>(record.message().body());
                if old.is_ok_and(|old| old.fingerprint == note.fingerprint && old.at < note.at) {
                    browse.drop(&record).await?;
                }
            }
            Ok::<_, retryrmq::Error>(())
        }
        .await;
        browse.close().await?;
        Ok(cleaned?)
    }

    /// What is said of a group.
    pub(super) fn about(&self, fingerprint: &str) -> Option<&Note> {
        self.0.about(fingerprint)
    }

    /// Whether the group is to be left alone.
    pub(super) fn holds(&self, fingerprint: &str) -> bool {
        self.0.holds(fingerprint)
    }

    /// Whether any group is to be left alone.
    pub(super) fn hold_any(&self) -> bool {
        self.0.hold_any()
    }

    /// Prints what is said of these groups, below a table of them.
    pub(super) fn print<'a>(
        &self,
        fingerprints: impl Iterator<Item = &'a str>,
        output: &Output,
    ) -> Result<(), Fault> {
        let mut rows = Vec::new();
        for note in fingerprints.filter_map(|fingerprint| self.about(fingerprint)) {
            let text = |text: &str| Look::Plain.of(visible::line(text));
            let mark = note.fingerprint.get(..8).unwrap_or(&note.fingerprint);
            rows.push(vec![
                Look::Dim.of(visible::line(mark)),
                Look::Bold.of(if note.hold { "hold" } else { "-" }),
                text(if note.owner.is_empty() {
                    "-"
                } else {
                    &note.owner
                }),
                text(&note.note),
            ]);
        }
        if rows.is_empty() {
            return Ok(());
        }
        output.line("")?;
        let columns = [
            Column::left("fingerprint", 16),
            Column::left("state", 5),
            Column::left("owner", 16),
            Column::left("note", 0),
        ];
        output.table(&columns, rows)
    }
}

/// The code of a fault for which the user lacks a permission.
const REFUSED: &str = ErrorKind::AccessRefused.code();

/// Says what is not known where a user may not look.
fn unseen(error: retryrmq::Error) -> Fault {
    let is_refused = error.kind() == ErrorKind::AccessRefused;
    let fault = Fault::from(error);
    match is_refused {
        true => fault.after("so it is not known what is on hold"),
        false => fault,
    }
}

/// A note as the command prints it.
pub(super) trait Told {
    /// For `--json`.
    fn json(&self) -> Value;
    /// One line for people.
    fn sentence(&self) -> String;
}

impl Told for Note {
    fn json(&self) -> Value {
        let at = SystemTime::UNIX_EPOCH + Duration::from_millis(self.at.min(1 << 50));
        json!({
            "note": self.note,
            "owner": self.owner,
            "hold": self.hold,
            "by": self.by,
            "at": moment::rfc3339(at),
        })
    }

    fn sentence(&self) -> String {
        let mut words = Vec::new();
        if self.hold {
            words.push("on hold".to_owned());
        }
        if !self.owner.is_empty() {
            words.push(format!("owner {}", visible::line(&self.owner)));
        }
        if !self.note.is_empty() {
            words.push(visible::line(&self.note).into_owned());
        }
        words.join(", ")
    }
}
