//! Which parked messages: by id, by place, by fingerprint, by reason, or all.

use clap::Args;
use retryrmq::{ParkReason, Record};

use crate::{fault::Fault, visible};

/// The words that choose messages; at least one is needed.
#[derive(Clone, Debug, Args)]
#[group(required = true, multiple = true)]
pub(super) struct Words {
    /// Message ids, or places in the order of `parked ls`: #1 is the oldest
    #[arg(value_name = "ID")]
    which: Vec<String>,

    /// Those whose failures are alike: the fingerprint, or its beginning, as `parked ls` shows it
    #[arg(long, value_name = "HEX", conflicts_with_all = ["which", "all"])]
    fingerprint: Option<String>,

    /// Those parked for this reason: exhausted, fatal, requested, delivery-limit, undecodable, expired, too-old,
    /// rejected or overflow
    #[arg(long, value_name = "REASON", conflicts_with_all = ["which", "all"])]
    reason: Option<String>,

    /// All of them
    #[arg(long, conflicts_with = "which")]
    all: bool,
}

/// What the words mean.
#[derive(Clone, Debug)]
pub(super) struct Selection {
    named: Vec<(Name, bool)>,
    fingerprint: Option<String>,
    reason: Option<ParkReason>,
}

#[derive(Clone, Debug)]
enum Name {
    Id(String),
    Place(usize),
}

impl Words {
    pub(super) fn read(&self) -> Result<Selection, Fault> {
        let named = self
            .which
            .iter()
            .map(|word| Ok((name(word)?, false)))
            .collect::<Result<_, Fault>>()?;
        let reason = self.reason.as_deref().map(|word| {
            ParkReason::parse(word).ok_or_else(|| {
                Fault::usage(format!(
                    "--reason `{}` is none: it is exhausted, fatal, requested, delivery-limit, undecodable, expired, too-old, rejected or overflow",
                    visible::line(word)
                ))
            })
        });
        let fingerprint = self.fingerprint.as_deref().map(|text| {
            let text = text.to_ascii_lowercase();
            let sound =
                (4..=16).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
            sound.then_some(text).ok_or_else(|| {
                Fault::usage(
                    "--fingerprint is 4 to 16 hexadecimal digits, as `parked ls` shows them",
                )
            })
        });
        Ok(Selection {
            named,
            fingerprint: fingerprint.transpose()?,
            reason: reason.transpose()?,
        })
    }
}

fn name(word: &str) -> Result<Name, Fault> {
    match word.strip_prefix('#') {
        None if word.is_empty() => Err(Fault::usage(
            "a message id is empty; those without an id are chosen by place, such as #1",
        )),
        None => Ok(Name::Id(word.to_owned())),
        Some(place) => match place.parse() {
            Ok(place) if place > 0 => Ok(Name::Place(place)),
            _ => Err(Fault::usage(format!(
                "`{}` is no place; the oldest message is #1",
                visible::line(word)
            ))),
        },
    }
}

impl Selection {
    /// Whether the record at `place` (1 is the oldest) is among them.
    pub(super) fn takes(&mut self, place: usize, record: &Record) -> bool {
        if !self.named.is_empty() {
            let message = record.message();
            let mut taken = false;
            for (name, seen) in &mut self.named {
                let is = match name {
                    Name::Id(id) => message.message_id() == Some(id.as_str()),
                    Name::Place(wanted) => *wanted == place,
                };
                (*seen, taken) = (*seen || is, taken || is);
            }
            return taken;
        }
        self.fingerprint
            .as_ref()
            .is_none_or(|start| record.fingerprint.starts_with(start.as_str()))
            && self
                .reason
                .is_none_or(|reason| record.reason == Some(reason))
    }

    /// Whether nothing after this place can be among them.
    pub(super) fn ends_by(&self, place: usize) -> bool {
        !self.named.is_empty()
            && self
                .named
                .iter()
                .all(|(name, _)| matches!(name, Name::Place(wanted) if *wanted <= place))
    }

    /// An error that names what was asked for by name and is not there.
    pub(super) fn missing(&self, parking: &str) -> Option<Fault> {
        let missing: Vec<String> = self
            .named
            .iter()
            .filter(|(_, seen)| !seen)
            .map(|(name, _)| match name {
                Name::Id(id) => format!("`{}`", visible::line(id)),
                Name::Place(place) => format!("#{place}"),
            })
            .collect();
        (!missing.is_empty()).then(|| {
            Fault::not_found(format!(
                "no message {} in `{}`; see `retryrmq parked ls`",
                missing.join(", "),
                visible::line(parking)
            ))
        })
    }
}
