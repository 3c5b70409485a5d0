//! The ledger of a run: what was published, what the handlers of each message do, and what happened to it.

use std::collections::{BTreeMap, BTreeSet};

use retryrmq_model::{Broker, ConnectionId, Frame, Method};

use super::{PARKED, Setting, UNREADABLE, replica::ReplicaStep};
use crate::{
    BasicProperties,
    retry::headers::{self, integer},
};

/// RabbitMQ drops what it has delivered 21 times, if nobody has said otherwise.
pub(super) const OFTEN: u32 = 25;

/// What the handlers of a message do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandlerScript {
    Fine,
    /// Succeeds at the second attempt.
    FailsOnce,
    FailsAlways,
    Parks,
    /// Is deferred twice.
    Defers,
    /// Is put off more often than a broker delivers it.
    DefersOften,
    /// Succeeds after seven seconds.
    Slow,
    /// Hangs for more than half an hour the first time, and succeeds at once when it runs again.
    Hangs,
    /// Succeeds, and later also reports a failure.
    AnswersTwice,
    /// Always crashes its process.
    Poison,
    /// Fails once, and from then on crashes its process.
    FailsThenKills,
    /// Crashes its process when it runs for the first time.
    CrashesOnce,
    /// Succeeds, and came with a forged count of crashes.
    Forged(i64),
    /// Can be given to no consumer.
    Unreadable,
}

impl HandlerScript {
    pub(super) fn choose(random: &mut fastrand::Rng, setting: &Setting) -> Self {
        if setting.unreadable.is_some() && random.u8(0..8) == 0 {
            return Self::Unreadable;
        }
        if setting.suspects && random.u8(0..3) == 0 {
            return Self::Forged(9);
        }
        // Without `dlx` a failure is rejected, and that is that.
        if setting.plain {
            return [
                Self::Fine,
                Self::Slow,
                Self::DefersOften,
                Self::AnswersTwice,
            ][random.usize(..4)];
        }
        // Operators want something to walk through.
        if setting.operators > 0 && random.u8(0..3) == 0 {
            return Self::Parks;
        }
        match random.u8(0..40) {
            0..4 => Self::FailsOnce,
            4..6 => Self::FailsAlways,
            6..8 => Self::Parks,
            8..10 => Self::Defers,
            10 => Self::Slow,
            11 if setting.faults.poison => Self::Poison,
            12 if setting.faults.poison => Self::CrashesOnce,
            17 if setting.faults.poison && setting.sees_crashes_after_deaths() => {
                Self::FailsThenKills
            }
            15 if setting.faults.poison && random.bool() => Self::Hangs,
            16 => Self::AnswersTwice,
            13..15 => Self::Forged(random.i64(1..10)),
            _ => Self::Fine,
        }
    }

    /// Whether it may be parked for this reason, if its consumers lost their connections this often and not because of another message.
    /// `quiet`: no fault takes messages away from consumers.
    fn may_be_parked(self, reason: &str, hits: u32, quiet: bool) -> bool {
        match reason {
            "exhausted" => self == Self::FailsAlways,
            "requested" => self == Self::Parks,
            // Nine forged crashes and a real one make ten; what is counted of others before that is the same as for any other. What
            // is to be parked anyway, and cannot be stored, is blamed for every connection that is lost meanwhile. Any other may be blamed for what others did until it is a suspect, and a
            // few times more, beside a suspect and when it runs before anybody knows of the next one.
            "delivery-limit" => {
                !self.may_be_handled()
                    || matches!(self, Self::Forged(_)) && (hits > 0 || !quiet)
                    || hits >= 4
            }
            _ => false,
        }
    }

    /// Whether it may fail at its first attempt with all others of its batch.
    pub(super) fn may_fail_with_others(self) -> bool {
        matches!(self, Self::Fine | Self::FailsOnce | Self::FailsAlways)
    }

    /// Whether nothing keeps it from being handled soon.
    fn is_healthy(self) -> bool {
        matches!(self, Self::Fine | Self::FailsOnce)
    }

    /// How often each of it runs at most, if no message is taken away from a consumer.
    fn most_runs(self) -> u32 {
        match self {
            Self::DefersOften => OFTEN + 1,
            Self::FailsAlways | Self::Defers => 3,
            Self::FailsOnce | Self::FailsThenKills => 2,
            _ => 1,
        }
    }

    fn may_be_handled(self) -> bool {
        !matches!(
            self,
            Self::FailsAlways
                | Self::Parks
                | Self::Poison
                | Self::FailsThenKills
                | Self::Unreadable
        )
    }
}

#[derive(Debug)]
struct LedgerEntry {
    kind: HandlerScript,
    /// How many completely equal ones were published, and how many of those were confirmed.
    published: u32,
    confirmed: u32,
    handled: bool,
    parked: bool,
    /// An operator dropped it.
    dropped: bool,
    /// It may have been in a queue that an operator purged.
    forgiven: bool,
    runs: u32,
    /// How often its consumer lost its connection or process, not because of another message.
    hits: u32,
    /// How often it was handled or parked.
    ends: u32,
    /// How often something happened that may double it: its consumer, or a copy of it, is gone, and it comes again.
    doubles: u32,
    /// How often an attempt was repeated whose copy was not sent.
    repeated: u32,
}

#[derive(Debug, Default)]
pub(super) struct Ledger {
    pages: BTreeMap<u32, LedgerEntry>,
    unsettled: BTreeSet<u32>,
    /// Reused memory for the many steps.
    pub(super) choices: Vec<ReplicaStep>,
}

impl Ledger {
    pub(super) fn published(&mut self, number: u32, kind: HandlerScript) {
        let page = LedgerEntry {
            kind,
            published: 1,
            confirmed: 0,
            handled: false,
            parked: false,
            dropped: false,
            forgiven: false,
            runs: 0,
            hits: 0,
            ends: 0,
            doubles: 0,
            repeated: 0,
        };
        self.pages.insert(number, page);
    }

    /// Another completely equal one is published.
    pub(super) fn published_alike(&mut self, number: u32) {
        if let Some(page) = self.pages.get_mut(&number) {
            page.published += 1;
        }
    }

    pub(super) fn confirmed(&mut self, number: u32) {
        if let Some(page) = self.pages.get_mut(&number) {
            page.confirmed += 1;
            if page.ends < page.confirmed && !page.parked && !page.forgiven {
                self.unsettled.insert(number);
            }
        }
    }

    /// Its publisher does not know whether it was stored; both are right.
    pub(super) fn doubtful(&mut self, _: u32) {}

    pub(super) fn kind(&self, number: u32) -> HandlerScript {
        self.pages
            .get(&number)
            .map_or(HandlerScript::Fine, |page| page.kind)
    }

    /// An attempt begins; returns how many there were before.
    pub(super) fn runs(&mut self, number: u32) -> u32 {
        let Some(page) = self.pages.get_mut(&number) else {
            return 0;
        };
        page.runs += 1;
        page.runs - 1
    }

    /// Any of those that are not settled may come again.
    pub(super) fn hit_all(&mut self) {
        for number in &self.unsettled {
            if let Some(page) = self.pages.get_mut(number) {
                page.hits += 1;
            }
        }
    }

    /// It failed only because others of its batch did.
    pub(super) fn failed_with_others(&mut self, number: u32) {
        if let Some(page) = self.pages.get_mut(&number) {
            page.repeated += 1;
        }
    }

    /// Its consumer's connection or process is gone.
    pub(super) fn hit(&mut self, number: u32) {
        if let Some(page) = self.pages.get_mut(&number) {
            page.hits += 1;
        }
    }

    /// Its consumer is gone, and it comes again.
    pub(super) fn may_be_doubled(&mut self, number: u32) {
        if let Some(page) = self.pages.get_mut(&number) {
            page.doubles += 1;
        }
    }

    /// It is not doubled after all: the copy that would be the second is withdrawn.
    pub(super) fn is_not_doubled(&mut self, number: u32) {
        if let Some(page) = self.pages.get_mut(&number) {
            page.doubles = page.doubles.saturating_sub(1);
            page.repeated += 1;
        }
    }

    /// Every message that exists may be doubled: its copy and the original come. If a consumer has just started, it may also keep the
    /// originals of earlier attempts, whose copies it does not take to be safe yet.
    pub(super) fn all_may_be_doubled(&mut self) {
        for page in self.pages.values_mut() {
            let times = page.kind.most_runs().clamp(2, 3);
            page.doubles = (page.doubles + page.published) * times - page.published;
        }
    }

    pub(super) fn handled(&mut self, number: u32) {
        if let Some(page) = self.pages.get_mut(&number) {
            page.handled = true;
            page.ends += 1;
        }
        self.unsettled.remove(&number);
    }

    /// It was moved out of the way.
    pub(super) fn set_aside(&mut self, number: u32) {
        self.unsettled.remove(&number);
    }

    /// A consumer got the confirm of its parked copy.
    pub(super) fn parked(&mut self, number: u32) {
        if let Some(page) = self.pages.get_mut(&number) {
            page.parked = true;
        }
        self.unsettled.remove(&number);
    }

    /// An operator has purged the work queue: messages not handled by then may be gone.
    pub(super) fn forgive(&mut self) {
        for page in self.pages.values_mut() {
            page.forgiven |= page.ends < page.published;
        }
        self.unsettled.clear();
    }

    pub(super) fn dropped(&mut self, number: u32) {
        if let Some(page) = self.pages.get_mut(&number) {
            page.dropped = true;
        }
        self.unsettled.remove(&number);
    }

    pub(super) fn is_settled(&self) -> bool {
        self.unsettled.is_empty()
    }

    pub(super) fn left(&self) -> String {
        let left: Vec<_> = self
            .unsettled
            .iter()
            .map(|number| format!("{number} ({:?})", self.kind(*number)))
            .collect();
        left.join(", ")
    }

    /// If nothing was in the way but a full queue or a hanging handler, healthy messages must have been handled. `suspects`: also those
    /// that came with crashes.
    pub(super) fn nobody_was_kept(&self, suspects: bool) -> Result<(), String> {
        let kept = self.pages.iter().find(|(_, page)| {
            let waits = page.confirmed > 0 && !page.handled && !page.parked;
            let suspect = suspects && matches!(page.kind, HandlerScript::Forged(_));
            waits && (suspect || page.kind.is_healthy())
        });
        match kept {
            Some((number, page)) => Err(format!(
                "message {number} ({:?}) was kept from running by others",
                page.kind
            )),
            None => Ok(()),
        }
    }

    /// The same in an alarm, in which a message that fails is not handled.
    pub(super) fn nobody_was_kept_from_a_first_run(&self) -> Result<(), String> {
        let waits = |page: &LedgerEntry| page.confirmed > 0 && page.runs == 0 && !page.parked;
        let mut pages = self.pages.iter();
        match pages.find(|(_, page)| waits(page) && page.kind.is_healthy()) {
            Some((number, page)) => Err(format!(
                "message {number} ({:?}) was kept from running by copies that an alarm holds up",
                page.kind
            )),
            None => Ok(()),
        }
    }

    /// No message ends more often than there can be copies of it. Without returns, none runs more often either.
    fn nothing_is_there_too_often(&self, ended: &[u32], quiet: bool) -> Result<(), String> {
        for (number, page) in &self.pages {
            let there = ended.iter().filter(|ended| *ended == number).count();
            let ends = page.ends as usize + there;
            let most = page.doubles + page.published;
            let most_runs = page.kind.most_runs() * most + page.repeated;
            if ends > most as usize || quiet && page.runs > most_runs {
                return Err(format!(
                    "message {number} ({:?}) ran {} times and came to {ends} ends, though there can be only {most} of it",
                    page.kind, page.runs
                ));
            }
        }
        Ok(())
    }

    /// Compares the ledger with what the broker has. `quiet`: no fault takes messages away from consumers. `replayed`: an operator may have
    /// replayed ended messages.
    pub(super) fn balance(
        &self,
        broker: &mut Broker,
        quiet: bool,
        replayed: bool,
    ) -> Result<(), String> {
        let parked = parked(broker);
        let reader = broker.connect_amqp10();
        let unreadable = read_all(broker, reader, UNREADABLE);
        let unreadable: Vec<_> = unreadable.iter().map(number).collect();
        let ended = parked.iter().map(|(number, _)| *number).chain(unreadable);
        let ended: Vec<u32> = ended.collect();
        if !replayed {
            self.nothing_is_there_too_often(&ended, quiet)?;
        }
        for (number, reason) in &parked {
            let Some(page) = self.pages.get(number) else {
                return Err(format!(
                    "a message {number} is parked that nobody published"
                ));
            };
            if !page.kind.may_be_parked(reason, page.hits, quiet) {
                return Err(format!(
                    "message {number} ({:?}) is parked as {reason} after {} hits",
                    page.kind, page.hits
                ));
            }
        }
        for (number, page) in &self.pages {
            let found = ended.iter().filter(|ended| *ended == number).count();
            let ends = page.ends as usize + found;
            if ends < page.confirmed as usize && !page.dropped && !page.forgiven {
                return Err(format!("message {number} ({:?}) is lost", page.kind));
            }
            if page.handled && !page.kind.may_be_handled() {
                return Err(format!("message {number} ({:?}) was handled", page.kind));
            }
        }
        Ok(())
    }
}

/// The number that a message was published with.
pub(super) fn number(properties: &BasicProperties) -> u32 {
    let number = properties
        .headers()
        .as_ref()
        .and_then(|table| table.inner().get("number"))
        .and_then(integer);
    number
        .and_then(|number| number.try_into().ok())
        .unwrap_or(0)
}

/// The numbers and reasons of the messages in the parking queue.
fn parked(broker: &mut Broker) -> Vec<(u32, String)> {
    let reader = broker.connect();
    let all = read_all(broker, reader, PARKED).into_iter();
    all.map(|properties| {
        let table = properties.headers().clone().unwrap_or_default();
        let reason = headers::string(&table, headers::PARKED_REASON);
        let reason = reason.unwrap_or_else(|| "what the broker says".into());
        (number(&properties), reason)
    })
    .collect()
}

/// The properties of all messages in a queue, which are not there any more then.
fn read_all(
    broker: &mut Broker,
    reader: Option<ConnectionId>,
    queue: &str,
) -> Vec<BasicProperties> {
    let mut all = Vec::new();
    let Some(reader) = reader else {
        return all;
    };
    broker.send(reader, 1, Method::OpenChannel);
    loop {
        let (queue, no_ack) = (queue.into(), true);
        broker.send(reader, 1, Method::Get { queue, no_ack });
        let found =
            std::iter::from_fn(|| broker.receive(reader)).find_map(|(_, frame)| match frame {
                Frame::Got(delivery) => Some(Some(delivery)),
                Frame::GetEmpty | Frame::CloseChannel(_) => Some(None),
                _ => None,
            });
        let Some(Some(delivery)) = found else {
            return all;
        };
        all.push((*delivery.properties).clone());
    }
}
