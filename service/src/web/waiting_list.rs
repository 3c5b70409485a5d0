//! What waits for its next attempt, for the page and for the API.

use jiff::Timestamp;
use retryrmq::terminal_escape;

use super::Page;
use crate::{
    history::{Event, HistoryAction},
    store::{Page as Part, Store},
    wait_reason::WaitReason,
};

/// Messages that are listed of the store, and of those that the history knows.
pub(super) const MOST: usize = 200;

/// A message that waits.
pub(super) struct WaitRow {
    pub(super) event: Event,
    pub(super) due: Timestamp,
    pub(super) place: Place,
    /// Where it goes, if not to the queue that it is listed with.
    pub(super) to: Option<Target>,
}

/// The exchange and the routing key of a delayed message; the default exchange has no name.
pub(super) struct Target {
    pub(super) exchange: String,
    pub(super) routing_key: String,
}

/// Where a message waits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Broker,
    Store,
    /// A store that the policy had before.
    FormerStore,
}

impl Place {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Broker => "broker",
            Self::Store => "store",
            Self::FormerStore => "a store that this service does not use",
        }
    }

    /// Whether this service can move what waits there.
    pub(super) fn is_used(self) -> bool {
        self != Self::FormerStore
    }
}

/// All that waits.
pub(super) struct WaitingList {
    /// The first of them.
    pub(super) rows: Vec<WaitRow>,
    /// Messages that the history knows to wait in the broker.
    pub(super) in_broker: usize,
    /// Messages that the history knows to wait in a store that the policy had before.
    pub(super) in_former_store: usize,
    /// Not all that the history knows are listed.
    pub(super) is_cut: bool,
    pub(super) kept: Option<Kept>,
}

/// What waits in a store.
pub(super) struct Kept {
    pub(super) total: u64,
    pub(super) shown: usize,
    pub(super) is_cut: bool,
    pub(super) fault: Option<String>,
}

pub(super) async fn waiting(page: &Page, now: Timestamp) -> WaitingList {
    let mut rows = Vec::new();
    let kept = match &page.store {
        Some(store) => Some(in_store(store.as_ref(), &mut rows, now).await),
        None => None,
    };
    let place = |wait: &Event| match (wait.in_store, &kept) {
        (false, _) => Some(Place::Broker),
        (true, None) => Some(Place::FormerStore),
        // The store has said so itself, or will when it answers.
        (true, Some(_)) => None,
    };
    let waits = page.history.index().waits(now).into_iter();
    let waits: Vec<_> = waits
        .filter_map(|(due, wait)| Some((place(&wait)?, due, wait)))
        .collect();
    rows.extend(waits.iter().take(MOST).map(|(place, due, wait)| WaitRow {
        event: Event::clone(wait),
        due: *due,
        place: *place,
        to: None,
    }));
    rows.sort_by_key(|row| row.due);
    let count = |of: Place| waits.iter().filter(|(place, ..)| *place == of).count();
    WaitingList {
        rows,
        in_broker: count(Place::Broker),
        in_former_store: count(Place::FormerStore),
        is_cut: waits.len() > MOST,
        kept,
    }
}

async fn in_store(store: &impl Store, rows: &mut Vec<WaitRow>, now: Timestamp) -> Kept {
    let part = Part {
        from: None,
        limit: MOST,
        destination: None,
    };
    let listing = match store.list(&part).await {
        Ok(listing) => listing,
        Err(why) => {
            return Kept {
                total: 0,
                shown: 0,
                is_cut: false,
                fault: Some(why.to_string()),
            };
        }
    };
    for listed in &listing.messages {
        // What was brought back early is due now, whatever it was to be.
        let left = i64::try_from(listed.remaining.as_millis()).unwrap_or(i64::MAX);
        let due = now.as_millisecond().saturating_add(left);
        let draft = listed.message.draft();
        let to = match (draft.exchange.as_str(), WaitReason::of(draft)) {
            ("", WaitReason::Next | WaitReason::Same) => None,
            (exchange, _) => Some(Target {
                exchange: terminal_escape::line(exchange).into_owned(),
                routing_key: terminal_escape::line(&draft.routing_key).into_owned(),
            }),
        };
        rows.push(WaitRow {
            event: Event::to_stored_message(HistoryAction::Other, &listed.message),
            due: Timestamp::from_millisecond(due).unwrap_or(now),
            place: Place::Store,
            to,
        });
    }
    let shown = listing.messages.len();
    Kept {
        total: listing.total,
        shown,
        is_cut: listing.total > shown as u64,
        fault: None,
    }
}
