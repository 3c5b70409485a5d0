//! What operators tell each other of a group of failures: a note, an owner, and whether to leave it alone.
//!
//! It lives beside the parked messages: for `orders` in the queue `orders.notes.parked`, a message for each note. Of several about one
//! group the latest counts. Who writes takes away what it has read before, and takes its own note back if there is another one by then.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// About one group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// The group's.
    pub fingerprint: String,
    /// A sentence for whoever comes next.
    #[serde(default)]
    pub note: String,
    /// Whose it is.
    #[serde(default)]
    pub owner: String,
    /// Replay and drop leave the group alone unless it is named.
    #[serde(default)]
    pub hold: bool,
    /// Who wrote this.
    #[serde(default)]
    pub by: String,
    /// When, in milliseconds since 1970.
    #[serde(default)]
    pub at: u64,
    /// Its own, different from that of every other note.
    #[serde(default)]
    pub id: String,
    /// The ids of the notes that this was made of, the last one first.
    #[serde(default)]
    pub made_of: Vec<String>,
}

/// The latest of each group, by fingerprint.
#[derive(Clone, Debug, Default)]
pub struct Notes(BTreeMap<String, Note>);

/// The work queue whose parking queue the notes about `queue` are in: no queue has this name.
#[must_use]
pub fn family(queue: &str) -> String {
    format!("{queue}.notes")
}

/// As many are told: so many people do not write about a group within the seconds that a note takes.
const MADE_OF: usize = 16;

impl Note {
    /// A note about the same group, made of this one.
    #[must_use]
    pub fn next(&self, id: String) -> Self {
        let before = self.made_of.iter().take(MADE_OF - 1).cloned();
        let made_of = std::iter::once(self.id.clone()).chain(before);
        Self {
            id,
            made_of: made_of.filter(|id| !id.is_empty()).collect(),
            ..self.clone()
        }
    }

    /// Whether this says what `other`, about the same group, says as well, or what has replaced it. `known` is when the note was written that
    /// this was made of.
    #[must_use]
    pub fn replaces(&self, other: &Self, known: u64) -> bool {
        let is_known = match other.id.is_empty() {
            true => other.at == known, // by a client that gives none
            false => self.made_of.contains(&other.id),
        };
        is_known || other.at < known
    }
}

impl Notes {
    /// Takes in the body of a message; one that is no note is left out.
    pub fn add(&mut self, body: &[u8]) {
        let Ok(mut note) = serde_json::from_slice::<Note>(body) else {
            return;
        };
        match self.0.get(&note.fingerprint) {
            Some(known) if known.at > note.at => return,
            // Whoever writes next replaces both.
            Some(known) if known.at == note.at && known.id != note.id => {
                note.made_of.insert(0, known.id.clone());
            }
            _ => {}
        }
        self.0.insert(note.fingerprint.clone(), note);
    }

    /// The latest note about a group, also where it says nothing any more.
    #[must_use]
    pub fn latest(&self, fingerprint: &str) -> Option<&Note> {
        self.0.get(fingerprint)
    }

    /// What is said of a group.
    #[must_use]
    pub fn about(&self, fingerprint: &str) -> Option<&Note> {
        self.latest(fingerprint)
            .filter(|note| note.hold || !note.note.is_empty() || !note.owner.is_empty())
    }

    /// Whether the group is to be left alone.
    #[must_use]
    pub fn holds(&self, fingerprint: &str) -> bool {
        self.about(fingerprint).is_some_and(|note| note.hold)
    }

    /// Whether any group is to be left alone.
    #[must_use]
    pub fn hold_any(&self) -> bool {
        self.0.values().any(|note| note.hold)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_note_of_a_group_counts_and_what_is_none_is_left_out() {
        let mut notes = Notes::default();
        for body in [
            r#"{"fingerprint":"f","owner":"ann","at":2}"#,
            r#"{"fingerprint":"f","hold":true,"at":1}"#,
            r#"{"fingerprint":"g","hold":true}"#,
            "no note",
        ] {
            notes.add(body.as_bytes());
        }
        assert_eq!(notes.about("f").unwrap().owner, "ann");
        assert!(!notes.holds("f") && notes.holds("g") && notes.hold_any());
        notes.add(br#"{"fingerprint":"f","at":3}"#);
        assert_eq!(notes.about("f"), None, "cleared");
        notes.add(br#"{"fingerprint":"g","at":1}"#);
        assert!(!notes.hold_any(), "released");
    }

    #[test]
    fn a_note_replaces_what_it_was_made_of_and_nothing_that_was_written_beside_it() {
        let at = |note: Note, at| Note { at, ..note };
        let first = at(Note::default().next("a".to_owned()), 5);
        let second = at(first.next("b".to_owned()), 6);
        let beside = at(first.next("c".to_owned()), 6);
        let third = at(second.next("d".to_owned()), 7);
        assert!(second.replaces(&first, first.at) && third.replaces(&first, second.at));
        assert!(third.replaces(&second, second.at));
        for (one, other, known) in [
            (&second, &beside, first.at),
            (&beside, &second, first.at),
            (&beside, &third, first.at),
            (&third, &beside, second.at),
        ] {
            assert!(!one.replaces(other, known), "{one:?}, {other:?}");
        }
        assert!(third.made_of.contains(&first.id) && !third.made_of.contains(&beside.id));
        let mut twins = Notes::default();
        for twin in [&second, &beside] {
            twins.add(&serde_json::to_vec(twin).unwrap());
        }
        let after = twins.latest("").unwrap().next("f".to_owned());
        assert!(after.replaces(&second, 6) && after.replaces(&beside, 6));
        let unnamed = at(Note::default(), 5);
        assert!(unnamed.next("e".to_owned()).replaces(&unnamed, unnamed.at));
    }
}
