//! Which messages are asked for one by one, when nothing is seen in any that would close a connection. Each connection that ended is counted by the
//! broker, for every message that was delivered to it.

use std::{
    cmp::Reverse,
    hash::{DefaultHasher, Hash, Hasher},
};

use crate::amqp10::Message;

/// How many messages are tried where that is free, or where no delivery limit is near.
const MOST: usize = 1_000;
/// The same where each try costs a message that is in order three deliveries.
const MOST_AT_A_COST: usize = 8;
/// One that was delivered more often is not tried there, unless somebody asks for it. By default RabbitMQ drops a message, or dead-letters it, after
/// the 20th delivery.
const MOST_DELIVERIES: u64 = 15;
const MOST_DELIVERIES_ASKED_FOR: u64 = 17;

/// How messages are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trial {
    most: usize,
    /// Fewer connections may have ended for another reason.
    least_died: u64,
    is_costly: bool,
    most_deliveries: u64,
}

impl Trial {
    /// Each that a connection ended for.
    pub(crate) const FREE: Self = Self {
        most: MOST,
        least_died: 1,
        is_costly: false,
        most_deliveries: u64::MAX,
    };

    /// Those for which the most connections ended, if it is several.
    pub(crate) const COSTLY: Self = Self {
        most: MOST_AT_A_COST,
        least_died: 2,
        is_costly: true,
        most_deliveries: MOST_DELIVERIES,
    };

    /// The same, as somebody asks for who knows that one of them is not in order.
    pub(super) const ASKED_FOR: Self = Self {
        least_died: 1,
        most_deliveries: MOST_DELIVERIES_ASKED_FOR,
        ..Self::COSTLY
    };
}

/// A message that may be the one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Suspect {
    pub(super) number: u32,
    /// The hash of its content: all of it may be large.
    pub(super) content: u64,
    pub(super) died: u64,
    pub(super) is_costly: bool,
    deliveries: u64,
    /// Among equals, others are tried each time.
    chance: u32,
}

impl Suspect {
    fn rank(&self) -> impl Ord + use<> {
        (Reverse(self.died), self.deliveries, self.chance)
    }
}

/// Chooses among the messages of a queue.
#[derive(Debug)]
pub(super) struct Choice {
    trial: Trial,
    found: Vec<Suspect>,
    /// How many are not tried: they were delivered too often, or are too many.
    left_out: usize,
}

impl Choice {
    pub(super) fn new(trial: Trial) -> Self {
        Self {
            trial,
            found: Vec::new(),
            left_out: 0,
        }
    }

    pub(super) fn add(&mut self, number: u32, message: &Message) {
        let died = message.died();
        if died >= self.trial.least_died {
            self.suspect(Suspect {
                number,
                content: hash(message.content()),
                died,
                is_costly: self.trial.is_costly,
                deliveries: message.counted().unwrap_or_default(),
                chance: fastrand::u32(..),
            });
        }
    }

    fn suspect(&mut self, one: Suspect) {
        if one.deliveries > self.trial.most_deliveries {
            self.left_out += 1;
            return;
        }
        self.found.push(one);
        if self.found.len() > 2 * self.trial.most {
            self.keep_most_suspected();
        }
    }

    fn keep_most_suspected(&mut self) {
        self.found.sort_by_key(Suspect::rank);
        self.left_out += self.found.len().saturating_sub(self.trial.most);
        self.found.truncate(self.trial.most);
    }

    /// The likeliest first, and how many were left out. Among equals, those that were delivered least often, because a try counts.
    pub(super) fn made(mut self) -> (Vec<Suspect>, usize) {
        self.keep_most_suspected();
        (self.found, self.left_out)
    }
}

/// The messages of a look for which the most connections ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Suspects {
    /// How many connections.
    died: u64,
    /// How many messages.
    count: usize,
}

impl Suspects {
    pub(super) fn add(&mut self, died: u64) {
        if died > self.died {
            *self = Self { died, count: 0 };
        }
        if died == self.died {
            self.count += 1;
        }
    }

    /// Whether no message was seen at all.
    pub(super) fn are_none(self) -> bool {
        self.count == 0
    }

    /// Whether trying these is worth what it costs: they are few, or it is the last chance.
    pub(super) fn are_few(self, is_last: bool) -> bool {
        self.died >= Trial::COSTLY.least_died && (self.count <= MOST_AT_A_COST || is_last)
    }
}

pub(super) fn hash(content: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(trial: Trial, found: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let mut choice = Choice::new(trial);
        for (number, (died, deliveries)) in found.iter().enumerate() {
            if *died == 0 {
                continue;
            }
            choice.suspect(Suspect {
                number: u32::try_from(number).unwrap(),
                content: 0,
                died: *died,
                is_costly: trial.is_costly,
                deliveries: *deliveries,
                chance: fastrand::u32(..),
            });
        }
        let (made, left_out) = choice.made();
        assert_eq!(
            made.len() + left_out,
            found.iter().filter(|(died, _)| *died > 0).count()
        );
        let made = made.into_iter();
        made.map(|one| (one.died, one.deliveries)).collect()
    }

    #[test]
    fn the_likeliest_are_tried_first_and_among_them_those_that_were_delivered_least_often() {
        let found = [(2, 9), (3, 7), (2, 4), (3, 5), (2, 16), (1, 1)];
        assert_eq!(
            choice(Trial::FREE, &found),
            [(3, 5), (3, 7), (2, 4), (2, 9), (2, 16), (1, 1)]
        );
        // The sixteenth try of a message would be near the limit.
        assert_eq!(
            choice(Trial::COSTLY, &found),
            [(3, 5), (3, 7), (2, 4), (2, 9), (1, 1)]
        );
        let many: Vec<_> = (0..10_000).map(|number| (number % 7, number)).collect();
        assert_eq!(choice(Trial::FREE, &many).len(), MOST);
        assert!(choice(Trial::FREE, &many).iter().all(|one| one.0 == 6));
        assert_eq!(
            choice(Trial::COSTLY, &many)[..2],
            [(6, 6), (6, 13)],
            "what was delivered too often is left out"
        );
    }

    #[test]
    fn a_few_are_worth_a_try_and_many_only_at_last() {
        let suspects = |died: &[u64]| {
            let mut suspects = Suspects::default();
            died.iter().for_each(|died| suspects.add(*died));
            suspects
        };
        assert!(!suspects(&[]).are_few(true));
        assert!(
            !suspects(&[1; 3]).are_few(true),
            "it may have been anything"
        );
        assert!(suspects(&[1, 2, 1, 2]).are_few(false));
        assert!(!suspects(&[2; 9]).are_few(false));
        assert!(suspects(&[2; 9]).are_few(true));
        assert!(suspects(&[&[2; 9][..], &[3]].concat()).are_few(false));
    }
}
