//! Which parked messages: by id, by place or mark, by fingerprint, by reason, or all.

use std::{collections::BTreeSet, sync::Arc};

use clap::{ArgGroup, Args};
use retryrmq::Record;

use super::{
    decode_args::{BodyDecoder, DecodeArgs},
    filter::{Filter, FilterArgs, hexadecimal},
};
use crate::{error::CliError, output::Output};
use retryrmq::terminal_escape;

/// The words that choose messages; at least one is needed.
#[derive(Clone, Debug, Default, Args)]
#[group(skip)]
#[command(group = ArgGroup::new("words").required(true).multiple(true).args([
    "which", "fingerprint", "reason", "all", "since", "error", "error_type", "kind", "routing_key", "header", "condition",
]))]
pub(super) struct SelectionArgs {
    /// Message ids; or #1=MARK as `parked ls` shows it, which names one message wherever it stands; or a place alone: #1 is the
    /// oldest. An id that begins with # is `id:#…`
    #[arg(value_name = "ID")]
    which: Vec<String>,

    /// Those whose failures are alike: the fingerprint, or its beginning, as `parked ls` shows it
    #[arg(long, value_name = "HEX", conflicts_with_all = ["which", "all"])]
    fingerprint: Option<String>,

    /// Those parked for this reason: exhausted, fatal, requested, delivery-limit, undecodable, expired, too-old,
    /// rejected, overflow or unknown
    #[arg(long, value_name = "REASON", conflicts_with_all = ["which", "all"])]
    reason: Option<String>,

    /// All of them
    #[arg(long, conflicts_with = "which")]
    all: bool,

    #[command(flatten)]
    filter_args: FilterArgs,

    #[command(flatten)]
    reading: DecodeArgs,
}

/// What the words mean.
#[derive(Debug)]
pub(super) struct Selection {
    named: Vec<(MessageRef, bool)>,
    filter: Filter,
    /// How bodies are read.
    pub(super) decoding: Arc<BodyDecoder>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum MessageRef {
    Id(String),
    Place(usize),
    /// A place with the beginning of the message's mark, which holds anywhere, or of its failure's fingerprint, which holds
    /// at this place only.
    Guarded(usize, String),
}

impl SelectionArgs {
    /// Those with these ids, whatever the ids look like.
    pub(super) fn ids(ids: &[String]) -> Self {
        let is_odd = |id: &str| id.trim_start_matches(ID).starts_with('#');
        let named = ids.iter().map(|id| match id {
            odd if is_odd(odd) => format!("{ID}{odd}"),
            id => id.clone(),
        });
        Self {
            which: named.collect(),
            ..Self::default()
        }
    }

    /// All of them, or those alike.
    pub(super) fn every(
        fingerprint: Option<String>,
        reason: Option<String>,
        filter_args: FilterArgs,
        reading: DecodeArgs,
    ) -> Self {
        Self {
            all: fingerprint.is_none() && reason.is_none() && filter_args.is_empty(),
            fingerprint,
            reason,
            filter_args,
            reading,
            ..Self::default()
        }
    }

    pub(super) fn read(&self) -> Result<Selection, CliError> {
        let named = self
            .which
            .iter()
            .map(|word| Ok((name(word)?, false)))
            .collect::<Result<_, CliError>>()?;
        let decoding = Arc::new(self.reading.open()?);
        let selection = Selection {
            named,
            filter: self.filter_args.read(
                self.fingerprint.as_deref(),
                self.reason.as_deref(),
                &self.reading,
                Arc::clone(&decoding),
            )?,
            decoding,
        };
        if !selection.filter.is_empty() && (self.all || selection.is_named()) {
            return Err(CliError::usage(
                "--since, --error, --error-type, --routing-key, --header and --where choose messages by themselves: leave out --all and the ids",
            ));
        }
        // --type alone chooses by error, but beside --proto it chooses nothing.
        if !self.all && !selection.is_named() && !selection.is_a_filter() {
            return Err(CliError::usage(
                "which messages? Name them as `parked ls` shows them, or pass --error, --where and the like, or --all",
            ));
        }
        Ok(selection)
    }
}

/// What stands before an id that would be taken for a place.
const ID: &str = "id:";

fn name(word: &str) -> Result<MessageRef, CliError> {
    // `id:#1` is the id `#1`; only such ids take it, and those that begin with it themselves.
    if let Some(id) = word.strip_prefix(ID)
        && id.trim_start_matches(ID).starts_with('#')
    {
        return Ok(MessageRef::Id(id.to_owned()));
    }
    let Some(place) = word.strip_prefix('#') else {
        return match word {
            "" => Err(CliError::usage(
                "a message id is empty; those without an id are chosen as `parked ls` shows them, such as #1",
            )),
            id => Ok(MessageRef::Id(id.to_owned())),
        };
    };
    let (number, guard) = match place.split_once('=') {
        Some((number, guard)) => (number, Some(guard)),
        None => (place, None),
    };
    let number = number.parse().ok().filter(|number| *number > 0);
    // Fewer digits would name too many.
    let sound = guard.and_then(hexadecimal).filter(|text| text.len() >= 8);
    match (number, guard, sound) {
        (Some(number), None, _) => Ok(MessageRef::Place(number)),
        (Some(number), Some(_), Some(guard)) => Ok(MessageRef::Guarded(number, guard)),
        _ => Err(CliError::usage(format!(
            "`{}` is no place; the oldest message is #1, or #1=MARK as `parked ls` shows it, with 8 to 16 hexadecimal digits; a message id like that is `{ID}{}`",
            terminal_escape::line(word),
            terminal_escape::line(word)
        ))),
    }
}

impl MessageRef {
    fn is(&self, place: usize, record: &Record) -> bool {
        match self {
            Self::Id(id) => record.message().message_id() == Some(id.as_str()),
            Self::Place(wanted) => *wanted == place,
            Self::Guarded(wanted, guard) => {
                record.mark.starts_with(guard.as_str())
                    || (*wanted == place && record.fingerprint.starts_with(guard.as_str()))
            }
        }
    }

    /// Whether it is what this record's failure, or the record itself, begins with, wherever that stands.
    fn is_guard_of(&self, record: &Record) -> bool {
        let Self::Guarded(_, guard) = self else {
            return false;
        };
        record.mark.starts_with(guard.as_str()) || record.fingerprint.starts_with(guard.as_str())
    }

    /// The places of those that it means, of all that it may mean.
    fn meant(&self, held: &[(usize, Record)], sure: bool) -> Result<Vec<usize>, CliError> {
        let like = |is: &dyn Fn(&Record) -> bool| -> Vec<&(usize, Record)> {
            held.iter().filter(|(_, record)| is(record)).collect()
        };
        match self {
            Self::Id(id) => {
                let like = like(&|record| record.message().message_id() == Some(id.as_str()));
                if like.len() > 1 && sure {
                    return Err(self.ambiguous("the id", &like));
                }
                Ok(like.iter().map(|(place, _)| *place).collect())
            }
            Self::Place(wanted) => Ok(held
                .iter()
                .map(|(place, _)| *place)
                .filter(|place| place == wanted)
                .collect()),
            Self::Guarded(wanted, guard) => {
                let marked = like(&|record| record.mark.starts_with(guard.as_str()));
                let at_place = |like: &[&(usize, Record)]| {
                    like.iter().map(|(place, _)| *place).find(|at| at == wanted)
                };
                if let Some((first, mark)) = marked.first().map(|(place, one)| (*place, &one.mark))
                {
                    if marked.iter().any(|(_, record)| record.mark != *mark) {
                        return Err(self.ambiguous("the mark", &marked));
                    }
                    // All the same to the last bit: any will do.
                    return Ok(vec![at_place(&marked).unwrap_or(first)]);
                }
                let failed = like(&|record| record.fingerprint.starts_with(guard.as_str()));
                if failed.len() > 1 && sure {
                    return Err(self.ambiguous("the fingerprint", &failed));
                }
                Ok(at_place(&failed).into_iter().collect())
            }
        }
    }

    fn ambiguous(&self, what: &str, like: &[&(usize, Record)]) -> CliError {
        let names: Vec<_> = like
            .iter()
            .take(10)
            .map(|(place, record)| format!("#{place}={}", record.mark))
            .collect();
        CliError::usage(format!(
            "{} messages have {what} {}; nothing was dropped: say which, {}",
            like.len(),
            self.shown(),
            names.join(" or ")
        ))
    }

    fn shown(&self) -> String {
        match self {
            Self::Id(id) => format!("`{}`", terminal_escape::line(id)),
            Self::Place(place) => format!("#{place}"),
            Self::Guarded(place, guard) => format!("#{place}={guard}"),
        }
    }
}

impl Selection {
    /// Whether a kind of failure was asked for.
    pub(super) fn wants_a_fingerprint(&self) -> bool {
        self.filter.fingerprint().is_some()
    }

    /// Whether messages are chosen by what they have in common. None at all is then not what was meant.
    pub(super) fn is_a_filter(&self) -> bool {
        !self.filter.is_empty()
    }

    /// What they have in common, for the sentence that there are none.
    pub(super) fn described(&self) -> &'static str {
        self.filter.described()
    }

    /// # Errors
    /// Where messages would be chosen by a guess.
    pub(super) fn refuse_guesses(&mut self) -> Result<(), CliError> {
        self.filter.refuse_guesses()
    }

    /// Says what could not be judged.
    pub(super) fn report_unevaluated(&self, output: &Output) {
        self.filter.report_unevaluated(output);
    }

    /// Whether not all of them are chosen.
    pub(super) fn is_narrow(&self) -> bool {
        self.is_named() || self.is_a_filter()
    }

    /// Whether messages are chosen one by one.
    pub(super) fn is_named(&self) -> bool {
        !self.named.is_empty()
    }

    /// A place that is not guarded: it names whatever stands there by then.
    pub(super) fn bare_place(&self) -> Option<String> {
        self.named
            .iter()
            .find(|(name, _)| matches!(name, MessageRef::Place(_)))
            .map(|(name, _)| name.shown())
    }

    /// A place that is the id of one of these messages as well.
    ///
    /// # Errors
    /// When there is one: nobody can tell which is meant.
    pub(super) fn refuse_two_meanings(
        &self,
        held: &[(usize, Record)],
        done: &str,
    ) -> Result<(), CliError> {
        let two = self.named.iter().find(|(name, _)| {
            matches!(name, MessageRef::Place(_))
                && held
                    .iter()
                    .any(|(_, record)| record.message().message_id() == Some(&*name.shown()))
        });
        match two {
            Some((name, _)) => {
                let place = name.shown();
                Err(CliError::usage(format!(
                    "{place} is a place, and the id of a message as well; nothing was {done}: say {ID}{place} for the message with this id, or {place}=MARK, as `parked ls` shows it, for the one at this place"
                )))
            }
            None => Ok(()),
        }
    }

    /// Whether the beginning of a fingerprint was given, which several kinds of failure may have.
    pub(super) fn has_part_of_a_fingerprint(&self) -> bool {
        self.filter
            .fingerprint()
            .is_some_and(|start| start.len() < 16)
    }

    /// # Errors
    /// When the beginning of a fingerprint fits several kinds of failure.
    pub(super) fn refuse_several_kinds(&self, held: &[(usize, Record)]) -> Result<(), CliError> {
        let Some(start) = self.filter.fingerprint() else {
            return Ok(());
        };
        let kinds: BTreeSet<&str> = held
            .iter()
            .map(|(_, record)| record.fingerprint.as_str())
            .collect();
        if kinds.len() < 2 {
            return Ok(());
        }
        let some: Vec<_> = kinds
            .iter()
            .take(10)
            .map(|kind| terminal_escape::line(kind))
            .collect();
        Err(CliError::usage(format!(
            "{} kinds of failure have fingerprints that begin with {start}; nothing was dropped: say which, {}",
            kinds.len(),
            some.join(" or ")
        )))
    }

    /// Whether the record at `place` (1 is the oldest) of the queue `parking` is among them. Of several that a mark names, the first.
    pub(super) fn takes(&mut self, place: usize, record: &Record, parking: &str) -> bool {
        if !self.named.is_empty() {
            let mut taken = false;
            for (name, seen) in &mut self.named {
                if matches!(name, MessageRef::Guarded(..)) && (*seen || taken) {
                    continue;
                }
                let is = name.is(place, record);
                (*seen, taken) = (*seen || is, taken || is);
            }
            return taken;
        }
        self.filter.takes(place, record, parking)
    }

    /// Whether a name may mean this record, if no other record that it may mean turns up: all of those are held until the end.
    pub(super) fn may_take(&mut self, place: usize, record: &Record, parking: &str) -> bool {
        if self.named.is_empty() {
            return self.takes(place, record, parking);
        }
        let mut taken = false;
        for (name, seen) in &mut self.named {
            let is = name.is(place, record) || name.is_guard_of(record);
            let is_its_id = matches!(name, MessageRef::Place(_))
                && record.message().message_id() == Some(&*name.shown());
            (*seen, taken) = (*seen || is, taken || is || is_its_id);
        }
        taken
    }

    /// Of all that the names may mean, those that they mean. `sure`: nobody is asked.
    pub(super) fn settle(
        &mut self,
        mut held: Vec<(usize, Record)>,
        sure: bool,
    ) -> Result<Vec<(usize, Record)>, CliError> {
        if self.named.is_empty() {
            return Ok(held);
        }
        let mut meant = BTreeSet::new();
        for (name, seen) in &mut self.named {
            let places = name.meant(&held, sure)?;
            *seen = !places.is_empty();
            meant.extend(places);
        }
        held.retain(|(place, _)| meant.contains(place));
        Ok(held)
    }

    /// Whether one of the names is an id or a fingerprint, which a message that nobody sees may have as well.
    pub(super) fn may_mean_more(&self, held: &[(usize, Record)]) -> bool {
        self.named.iter().any(|(name, _)| match name {
            MessageRef::Id(_) => true,
            MessageRef::Place(_) => false,
            MessageRef::Guarded(_, guard) => !held
                .iter()
                .any(|(_, record)| record.mark.starts_with(guard.as_str())),
        })
    }

    /// Whether nothing after this place can be among them.
    pub(super) fn ends_by(&self, place: usize) -> bool {
        !self.named.is_empty()
            && self.named.iter().all(|(name, seen)| match name {
                MessageRef::Id(_) => false,
                MessageRef::Place(wanted) => *wanted <= place,
                MessageRef::Guarded(..) => *seen,
            })
    }

    /// What was asked for by name and is not there.
    pub(super) fn missing(&self) -> Option<String> {
        let missing: Vec<String> = self
            .named
            .iter()
            .filter(|(_, seen)| !seen)
            .map(|(name, _)| name.shown())
            .collect();
        (!missing.is_empty()).then(|| missing.join(", "))
    }
}
