//! What a message's headers say about its past. Nothing else remembers it, and any publisher may have written them.

use lapin::{BasicProperties, types::FieldTable};

use super::headers;

/// Where a strategy counts the retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counting {
    /// In `x-retry-count`, on our copies.
    Header,
    /// In the broker's `x-death`, per queue and reason, added to `x-retry-count`.
    Deaths {
        /// Whether the broker's delivery count includes dead-letter rounds (quorum queues of RabbitMQ 4.0 to 4.2).
        carried: bool,
        /// Whether a classic queue marks a message as redelivered when it returns from such a round (RabbitMQ 4.3).
        looks_redelivered: bool,
        /// Whether the broker counts on from what a publisher wrote (before RabbitMQ 4.0). Then a count that cannot be true stays so, and
        /// would never come to an end.
        continues_foreign: bool,
    },
    /// In the broker's `x-delivery-count`: every requeue is a retry.
    Deliveries,
}

/// Whether a message was delivered before, and what would have counted that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeliveryPast {
    /// It was not. Counts in its headers came with it.
    None,
    /// It was. The type of its queue is unknown, or one that counts requeues.
    Returned,
    /// It was, by a classic queue, which counts nothing. Counts in its headers came with it.
    Uncounted,
}

impl DeliveryPast {
    pub(crate) fn of(redelivered: bool, is_classic: bool) -> Self {
        match (redelivered, is_classic) {
            (false, _) => Self::None,
            (true, false) => Self::Returned,
            (true, true) => Self::Uncounted,
        }
    }
}

/// What is known about a message before an attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetryState {
    /// Failed attempts so far. The next attempt is this plus one.
    pub retries: u32,
    /// Whether that number comes from a header of ours.
    pub is_counted: bool,
    /// How often a handler deferred it.
    pub deferrals: u32,
    /// How often a consumer crashed while it held the message.
    pub crashes: u32,
    /// The crashes that our own header counts.
    pub own_crashes: u32,
    /// A consumer held it before, and no count that can be believed includes that.
    pub uncounted_crash: bool,
    /// How often it was replayed from a parking queue.
    pub replays: u32,
    /// When its first attempt failed, in seconds since 1970.
    pub first_failed_at: Option<u64>,
    /// When it was published, in seconds since 1970, if the publisher set it.
    pub published_at: Option<u64>,
    /// The exchange it was first published to, if this is our copy.
    pub exchange: Option<String>,
    /// The routing key it was first published with, if this is our copy.
    pub routing_key: Option<String>,
    /// The text of the last failure.
    pub last_error: Option<String>,
    /// Headers that are ignored because they cannot be believed, each with the reason. Each is logged once.
    pub distrusted: Vec<(&'static str, &'static str)>,
}

impl RetryState {
    /// Reads the state of a message from `queue`. Never fails: what cannot be believed counts as absent, and is listed in
    /// [`distrusted`](Self::distrusted).
    #[must_use]
    pub(crate) fn read(
        queue: &str,
        counting: Counting,
        past: DeliveryPast,
        properties: &BasicProperties,
    ) -> Self {
        let mut state = Self {
            published_at: *properties.timestamp(),
            ..Self::default()
        };
        let empty = FieldTable::default();
        let table = properties.headers().as_ref().unwrap_or(&empty);
        if table.inner().is_empty() {
            state.uncounted_crash = past != DeliveryPast::None;
            return state;
        }
        let own = state.believe(headers::COUNT, headers::count(table, headers::COUNT));
        let deaths = headers::death_count(table, queue, "rejected");
        let never_ends = deaths.is_err();
        let deaths = state.believe(headers::DEATH, deaths);
        let returns = if past == DeliveryPast::Returned {
            state.believe(
                headers::DELIVERY_COUNT,
                headers::count(table, headers::DELIVERY_COUNT),
            )
        } else {
            None // any count in the headers came with the message
        };
        state.is_counted = own.is_some();
        state.retries = match counting {
            Counting::Header => {
                // A replayed message counts from the start, whoever counted before.
                let is_replayed = table.contains_key(headers::REPLAYS);
                let legacy = || {
                    let counted = (!is_replayed).then(|| state.legacy(table));
                    counted.flatten()
                };
                own.or(deaths).or_else(legacy).unwrap_or(0)
            }
            Counting::Deaths {
                continues_foreign, ..
            } => {
                let deaths = match continues_foreign && never_ends {
                    true => headers::MOST_COUNTED,
                    false => deaths.unwrap_or(0),
                };
                own.unwrap_or(0).saturating_add(deaths)
            }
            Counting::Deliveries => own.unwrap_or(0).saturating_add(returns.unwrap_or(0)),
        };
        let counted = state
            .believe(headers::CRASHES, headers::count(table, headers::CRASHES))
            .unwrap_or(0);
        state.own_crashes = counted;
        state.crashes = match counting {
            Counting::Header => counted.saturating_add(returns.unwrap_or(0)),
            Counting::Deaths { carried, .. } => {
                let rounds = if carried { deaths.unwrap_or(0) } else { 0 };
                counted.saturating_add(returns.unwrap_or(0).saturating_sub(rounds))
            }
            // A crash cannot be told from a retry here. The retries limit both.
            Counting::Deliveries => counted,
        };
        // A quorum queue counts requeues; a classic queue passes on whatever count the message has. A message that is not our copy may
        // have brought a count along, from the quorum queue that dead-lettered it or from its publisher. So from the second requeue on, or
        // with a death in another queue, we count the crash ourselves.
        let foreign = !table.contains_key(headers::PROTOCOL)
            && (returns.is_some_and(|returns| returns > 1)
                || (table.contains_key(headers::DEATH) && deaths.is_none()));
        state.uncounted_crash = past != DeliveryPast::None
            && match counting {
                Counting::Header => {
                    past == DeliveryPast::Uncounted
                        || foreign
                        || (returns.is_none() && !table.contains_key(headers::ACQUIRED_COUNT))
                }
                Counting::Deaths {
                    looks_redelivered, ..
                } => {
                    let is_told = past == DeliveryPast::Uncounted && !looks_redelivered;
                    returns.is_none() && (is_told || deaths.is_none())
                }
                Counting::Deliveries => false,
            };
        state.deferrals = state
            .believe(
                headers::DEFERRALS,
                headers::count(table, headers::DEFERRALS),
            )
            .unwrap_or(0);
        state.replays = state
            .believe(headers::REPLAYS, headers::count(table, headers::REPLAYS))
            .unwrap_or(0);
        state.first_failed_at = state.believe(
            headers::FIRST_FAILED_AT,
            headers::timestamp(table, headers::FIRST_FAILED_AT),
        );
        let is_handled = own.is_some() || state.deferrals > 0 || counted > 0 || state.replays > 0;
        // A walk through the parking queue also copies messages that no handler ever had.
        if is_handled || table.contains_key(headers::WALK) {
            state.exchange = headers::string(table, headers::EXCHANGE);
            state.routing_key = headers::string(table, headers::ROUTING_KEY);
        }
        if is_handled {
            state.last_error = headers::string(table, headers::ERROR);
        }
        state
    }

    /// The number of the next attempt: 1 on first delivery.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.retries.saturating_add(1)
    }

    /// Whether it was replayed, and nothing has happened to it since.
    pub(crate) fn is_fresh_replay(&self) -> bool {
        self.replays > 0 && self.retries == 0 && self.deferrals == 0 && self.crashes == 0
    }

    fn legacy(&mut self, table: &FieldTable) -> Option<u32> {
        self.believe(
            headers::LEGACY_RETRIES,
            headers::count(table, headers::LEGACY_RETRIES),
        )
    }

    fn believe<T>(
        &mut self,
        header: &'static str,
        read: Result<Option<T>, &'static str>,
    ) -> Option<T> {
        read.unwrap_or_else(|why| {
            self.distrusted.push((header, why));
            None
        })
    }
}
