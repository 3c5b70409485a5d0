//! What a message's headers say of its past: the only memory there is, and any publisher may have written it.

use lapin::{BasicProperties, types::FieldTable};

use super::headers;

/// Where a strategy's count of retries is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counting {
    /// In `x-retry-count`, which our copies carry.
    Header,
    /// In the broker's `x-death`, by queue and reason, on top of `x-retry-count`.
    Deaths {
        /// Whether the broker's delivery count holds the dead-letter rounds too (quorum queues of RabbitMQ 4.0 to 4.2).
        carried: bool,
        /// Whether a classic queue hands out as redelivered what came back from such a round (RabbitMQ 4.3).
        looks_redelivered: bool,
    },
    /// In the broker's `x-delivery-count`: every return is a retry.
    Deliveries,
}

/// Whether a message was delivered before, and who would have counted that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Past {
    /// It was not: whatever its headers say of that came with it.
    None,
    /// It was; its queue's type is not known, or is one that counts returns.
    Returned,
    /// It was, by a classic queue, which counts nothing: whatever its headers say of that came with it.
    Uncounted,
}

impl Past {
    pub(crate) fn of(redelivered: bool, is_classic: bool) -> Self {
        match (redelivered, is_classic) {
            (false, _) => Self::None,
            (true, false) => Self::Returned,
            (true, true) => Self::Uncounted,
        }
    }
}

/// What is known of a message before an attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetryState {
    /// Failed attempts so far; the attempt about to be made is this plus one.
    pub retries: u32,
    /// Whether that is what a header of ours says.
    pub is_counted: bool,
    /// Times that a handler deferred it.
    pub deferrals: u32,
    /// Times a consumer went away while holding it.
    pub crashes: u32,
    /// Those of the crashes that we counted ourselves.
    pub own_crashes: u32,
    /// It was with a consumer before, and nothing that can be believed has counted that.
    pub uncounted_crash: bool,
    /// Times it was replayed from a parking queue.
    pub replays: u32,
    /// When its first attempt failed, in seconds since 1970.
    pub first_failed_at: Option<u64>,
    /// When it was published, in seconds since 1970, if its publisher said so.
    pub published_at: Option<u64>,
    /// The exchange it was first published to, if this is a copy of ours.
    pub exchange: Option<String>,
    /// The routing key it was first published with, if this is a copy of ours.
    pub routing_key: Option<String>,
    /// The last failure's text.
    pub last_error: Option<String>,
    /// Headers that are not believed, each with the reason; each deserves one warning.
    pub distrusted: Vec<(&'static str, &'static str)>,
}

impl RetryState {
    /// Reads the state of a message that came from `queue`. Never fails: what cannot be believed counts as absent and
    /// is listed in [`distrusted`](Self::distrusted).
    #[must_use]
    pub(crate) fn read(
        queue: &str,
        counting: Counting,
        past: Past,
        properties: &BasicProperties,
    ) -> Self {
        let mut state = Self {
            published_at: *properties.timestamp(),
            ..Self::default()
        };
        let empty = FieldTable::default();
        let table = properties.headers().as_ref().unwrap_or(&empty);
        if table.inner().is_empty() {
            state.uncounted_crash = past != Past::None;
            return state;
        }
        let own = state.believe(headers::COUNT, headers::count(table, headers::COUNT));
        let deaths = state.believe(
            headers::DEATH,
            headers::death_count(table, queue, "rejected"),
        );
        let returns = if past == Past::Returned {
            state.believe(
                headers::DELIVERY_COUNT,
                headers::count(table, headers::DELIVERY_COUNT),
            )
        } else {
            None // whatever stands there came with the message
        };
        state.is_counted = own.is_some();
        state.retries = match counting {
            Counting::Header => {
                // What was replayed counts from the start, whoever counted before.
                let is_replayed = table.contains_key(headers::REPLAYS);
                let legacy = || {
                    let counted = (!is_replayed).then(|| state.legacy(table));
                    counted.flatten()
                };
                own.or(deaths).or_else(legacy).unwrap_or(0)
            }
            Counting::Deaths { .. } => own.unwrap_or(0).saturating_add(deaths.unwrap_or(0)),
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
            // A crash cannot be told from a retry here; both are bounded by the retries.
            Counting::Deliveries => counted,
        };
        // A quorum queue counts its returns, a classic queue hands on whatever stands there. A message that is no copy
        // of ours may have brought the count along, out of the quorum queue that it was dead-lettered from or out of
        // its publisher's head: past the first return, or with a death elsewhere on it, it is counted by us instead.
        let foreign = !table.contains_key(headers::PROTOCOL)
            && (returns.is_some_and(|returns| returns > 1)
                || (table.contains_key(headers::DEATH) && deaths.is_none()));
        state.uncounted_crash = past != Past::None
            && match counting {
                Counting::Header => {
                    past == Past::Uncounted
                        || foreign
                        || (returns.is_none() && !table.contains_key(headers::ACQUIRED_COUNT))
                }
                Counting::Deaths {
                    looks_redelivered, ..
                } => {
                    let is_told = past == Past::Uncounted && !looks_redelivered;
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
        // A walk through the parking queue copies what nobody has ever handled, too.
        if is_handled || table.contains_key(headers::WALK) {
            state.exchange = headers::string(table, headers::EXCHANGE);
            state.routing_key = headers::string(table, headers::ROUTING_KEY);
        }
        if is_handled {
            state.last_error = headers::string(table, headers::ERROR);
        }
        state
    }

    /// The attempt about to be made: 1 on first delivery.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.retries.saturating_add(1)
    }

    /// Whether it was replayed and nothing has happened to it since.
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
