//! What operators tell each other of a group of failures: a note, an owner, and whether to leave it alone.
//!
//! The queue that they are in is looked at with the same care as parked messages.

use std::time::{Duration, SystemTime};

use retryrmq::{BasicProperties, Browse, Client, ErrorKind, Publish, SAFE_AGE};
pub(super) use retryrmq_operator::note::Note;
use retryrmq_operator::note::{self, family};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    error::CliError,
    output::{Column, Output, TextStyle},
    shutdown::Shutdown,
    time_format,
};
use retryrmq::terminal_escape;

/// How often the notes are looked for while somebody else reads them.
const TRIES: u32 = 40;

/// The latest of each group.
#[derive(Clone, Debug, Default)]
pub(super) struct Notes(note::Notes);

/// What follows where a user may not see what is on hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnHiddenHold {
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
    pub(super) async fn of(client: &Client, queue: Option<&str>) -> Result<Self, CliError> {
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
            pause().await;
        }
        Err(busy(&name, "what is on hold; try again"))
    }

    /// Like [`of`](Self::of); none when we are to end and a broker with an alarm does not let the notes be read.
    pub(super) async fn unless_cut(
        shutdown: &Shutdown,
        client: &Client,
        queue: Option<&str>,
        unseen: OnHiddenHold,
    ) -> Result<Option<Self>, CliError> {
        match shutdown.unless_cut(Self::of(client, queue)).await {
            Some(Err(cli_error)) if cli_error.code() == REFUSED && unseen == OnHiddenHold::IsTold => {
                tracing::warn!("{}", terminal_escape::line(cli_error.sentence()));
                Ok(Some(Self::default()))
            }
            Some(Err(cli_error)) if cli_error.code() == REFUSED => Err(cli_error
                .after("nothing was done: give the user that permission, or name what is meant by id or --fingerprint")),
            notes => notes.transpose(),
        }
    }

    /// Writes a note, and takes away those that it replaces: the one that it was made of, written at `known`, and all before.
    ///
    /// # Errors
    /// When somebody else has made another one of the same: theirs is kept and this one is taken back. And those of publishing and browsing.
    pub(super) async fn write(
        client: &Client,
        queue: &str,
        note: &Note,
        known: u64,
    ) -> Result<(), CliError> {
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
        for _ in 0..TRIES {
            let mut browse = parked.browse().await?;
            let result = remove_superseded(&mut browse, note, known).await;
            browse.close().await?;
            match result? {
                Some(NoteResult::Replaced) => return Ok(()),
                Some(NoteResult::TakenBack) => {
                    return Err(CliError::failed(
                        "somebody else has written about this group at the same time, so this was taken back: look at the group with `parked ls --group`, and try again",
                    ));
                }
                None => pause().await,
            }
        }
        Err(busy(
            &name,
            "whether somebody else has written meanwhile; look at the group again",
        ))
    }

    /// The latest note about a group, also where it says nothing any more.
    pub(super) fn latest(&self, fingerprint: &str) -> Option<&Note> {
        self.0.latest(fingerprint)
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
    ) -> Result<(), CliError> {
        let mut rows = Vec::new();
        for note in fingerprints.filter_map(|fingerprint| self.about(fingerprint)) {
            let text = |text: &str| TextStyle::Plain.of(terminal_escape::line(text));
            let mark = note.fingerprint.get(..8).unwrap_or(&note.fingerprint);
            rows.push(vec![
                TextStyle::Dim.of(terminal_escape::line(mark)),
                TextStyle::Bold.of(if note.hold { "hold" } else { "-" }),
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

/// What became of a note.
enum NoteResult {
    /// The ones before it are gone.
    Replaced,
    /// Somebody else had written, and it is gone itself.
    TakenBack,
}

/// Takes away what `note` replaces, or itself; none where somebody else looks at the notes too, and may hold one that is not seen here.
async fn remove_superseded(
    browse: &mut Browse,
    note: &Note,
    known: u64,
) -> retryrmq::Result<Option<NoteResult>> {
    let (mut old, mut own, mut is_late) = (Vec::new(), Vec::new(), false);
    while let Some(record) = browse.next().await? {
        match serde_json::from_slice::<Note>(record.message().body()) {
            Ok(other) if other.fingerprint != note.fingerprint => {}
            Ok(other) if other.id == note.id => own.push(record),
            Ok(other) if note.replaces(&other, known) => old.push(record),
            // It was made of ours, and takes ours away itself.
            Ok(other) if other.made_of.contains(&note.id) => {}
            Ok(_) => is_late = true,
            Err(_) => {}
        }
    }
    if browse.others() > 0 || browse.missed() > 0 {
        return Ok(None);
    }
    for record in if is_late { own } else { old } {
        browse.drop(&record).await?;
    }
    Ok(Some(match is_late {
        true => NoteResult::TakenBack,
        false => NoteResult::Replaced,
    }))
}

/// Before the notes are looked for again, because somebody else reads them.
async fn pause() {
    sleep(Duration::from_millis(fastrand::u64(50..400))).await;
}

fn busy(name: &str, what: &str) -> CliError {
    CliError::held(format!(
        "others read the notes in {} all the time, so that it is not known {what}",
        terminal_escape::line(name)
    ))
}

/// The code of a fault for which the user lacks a permission.
const REFUSED: &str = ErrorKind::AccessRefused.code();

/// Says what is not known where a user may not look.
fn unseen(error: retryrmq::Error) -> CliError {
    let is_refused = error.kind() == ErrorKind::AccessRefused;
    let cli_error = CliError::from(error);
    match is_refused {
        true => cli_error.after("so it is not known what is on hold"),
        false => cli_error,
    }
}

/// A note as the command prints it.
pub(super) trait NoteRow {
    /// For `--json`.
    fn json(&self) -> Value;
    /// One line for people.
    fn sentence(&self) -> String;
}

impl NoteRow for Note {
    fn json(&self) -> Value {
        let at = SystemTime::UNIX_EPOCH + Duration::from_millis(self.at.min(1 << 50));
        json!({
            "note": self.note,
            "owner": self.owner,
            "hold": self.hold,
            "by": self.by,
            "at": time_format::rfc3339(at),
        })
    }

    fn sentence(&self) -> String {
        let mut words = Vec::new();
        if self.hold {
            words.push("on hold".to_owned());
        }
        if !self.owner.is_empty() {
            words.push(format!("owner {}", terminal_escape::line(&self.owner)));
        }
        if !self.note.is_empty() {
            words.push(terminal_escape::line(&self.note).into_owned());
        }
        words.join(", ")
    }
}
