//! Writes the headers of a copy: what the next consumer, and a person who looks at a parking queue, will know about the message.

use std::collections::BTreeMap;

use lapin::{
    BasicProperties,
    types::{AMQPValue, ShortString},
};

use super::{
    Failure, Handover, ParkReason, RetryState, counters_of_others,
    fingerprint::fingerprint,
    header_budget::{encoded_size, fit, size_of},
    headers, history,
};
use crate::{Error, ErrorKind, terminal_escape};

/// The headers of a copy while they are written. A finished table cannot lose any.
type Draft = BTreeMap<ShortString, AMQPValue>;

/// The writer of the headers; constant for one consumer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origin {
    pub(crate) host: String,
    pub(crate) app_version: String,
}

/// What is written on a copy of one message.
pub(crate) struct CopyHeaders<'a> {
    pub(crate) origin: &'a Origin,
    pub(crate) properties: &'a BasicProperties,
    /// Where the message was first published. The copy's own exchange and routing key no longer say it.
    pub(crate) exchange: &'a str,
    pub(crate) routing_key: &'a str,
    pub(crate) state: &'a RetryState,
    /// Seconds since 1970.
    pub(crate) now: u64,
    /// The most bytes that all headers and properties of a copy may take, given the frame size of the publishing connection.
    pub(crate) budget: usize,
}

const TYPE_MAX: usize = 255;
const HISTORY_MAX: usize = 8 * 1024;
const STACK_MAX: usize = 16 * 1024;

impl CopyHeaders<'_> {
    /// The copy that waits for retry number `retry`.
    pub(crate) fn retry(
        &self,
        retry: u32,
        failure: &Failure,
        expiration: Option<u64>,
    ) -> BasicProperties {
        let mut copy = self.copy_of_failed(failure);
        // The attempt ended, so this message did not crash its consumer, whatever crashed before.
        copy.remove(headers::CRASHES);
        self.count(&mut copy, headers::COUNT, retry);
        self.failure(&mut copy, failure);
        self.finish_what_waits(copy, expiration)
    }

    /// The copy of a deferred message: it counts the deferral, and uses up no retry.
    pub(crate) fn deferral(&self, deferral: u32, expiration: Option<u64>) -> BasicProperties {
        let mut copy = self.copy();
        self.count(&mut copy, headers::COUNT, self.state.retries);
        self.count(&mut copy, headers::DEFERRALS, deferral);
        copy.remove(headers::CRASHES);
        self.finish_what_waits(copy, expiration)
    }

    /// The copy for a detour, with this number of crashes.
    pub(crate) fn detour(&self, crashes: u32, expiration: Option<u64>) -> BasicProperties {
        let mut copy = self.copy();
        self.count(&mut copy, headers::COUNT, self.state.retries);
        self.count(&mut copy, headers::CRASHES, crashes);
        self.finish_what_waits(copy, expiration)
    }

    /// The parked copy, with its record.
    pub(crate) fn parked(&self, reason: ParkReason, failure: &Failure) -> BasicProperties {
        let mut copy = self.copy_of_failed(failure);
        self.count(&mut copy, headers::COUNT, self.state.retries);
        self.failure(&mut copy, failure);
        self.particulars(&mut copy, failure);
        if self.state.crashes > 0 {
            self.count(&mut copy, headers::CRASHES, self.state.crashes);
        }
        insert(
            &mut copy,
            headers::PARKED_AT,
            AMQPValue::Timestamp(self.now),
        );
        insert(&mut copy, headers::PARKED_REASON, long(reason.as_str()));
        self.finish(copy)
    }

    /// The copy for a service: the counts with which this attempt began, and its failure as a record would have it.
    pub(crate) fn handed_over(
        &self,
        queue: &str,
        handover: &Handover,
        crashes: u32,
        failure: &Failure,
    ) -> BasicProperties {
        let mut copy = self.copy();
        self.count(&mut copy, headers::COUNT, self.state.retries);
        if crashes > 0 || *handover == Handover::Detour {
            self.count(&mut copy, headers::CRASHES, crashes);
        }
        insert(&mut copy, headers::HANDOVER, long(handover.as_str()));
        insert(&mut copy, headers::QUEUE, long(queue));
        if let Some(ms) = handover.after_ms() {
            insert(&mut copy, headers::AFTER, AMQPValue::LongLongInt(ms));
        }
        if handover.is_failure() {
            self.failure(&mut copy, failure);
            self.particulars(&mut copy, failure);
        }
        if let Handover::Park(reason) = handover {
            insert(&mut copy, headers::PARKED_REASON, long(reason.as_str()));
        }
        self.finish(copy)
    }

    /// A fresh copy of a parked message, with the broker's delivery count at 0 again. It keeps the record of its parking, and its deaths:
    /// if the broker parked it, only they say why. `None` if not all of it fits: nothing may be cut from a message that is only looked at.
    pub(crate) fn renewed(&self, walk: &str) -> Option<BasicProperties> {
        let mut copy = self.copy();
        if let Some(original) = self.properties.headers() {
            for (name, value) in original {
                let name_is = name.as_str();
                if headers::is_of_death(name_is)
                    || headers::is_of_parking(name_is)
                    || headers::is_of_handover(name_is)
                {
                    copy.insert(name.clone(), value.clone());
                }
            }
        }
        insert(&mut copy, headers::WALK, long(walk));
        let (properties, names) = carried(self.properties);
        let fits = size_of(&copy) + names <= self.budget + counts(self.budget);
        fits.then(|| properties.with_headers(copy.into()))
    }

    /// The copy that returns from a parking queue to its work queue: one replay more, and no retries used up unless `keep_count` is set.
    ///
    /// # Errors
    /// The names of headers that do not fit. A replay must have all of the publisher's headers; only our own record may be shortened.
    pub(crate) fn replay(
        &self,
        walk: &str,
        keep_count: bool,
    ) -> Result<BasicProperties, Vec<String>> {
        let mut copy = self.copy();
        for name in [
            headers::COUNT,
            headers::DEFERRALS,
            headers::CRASHES,
            headers::FIRST_FAILED_AT,
            headers::FINGERPRINT,
        ] {
            copy.remove(name);
        }
        if !keep_count {
            counters_of_others::reset(&mut copy);
        } else if self.state.retries > 0 {
            self.count(&mut copy, headers::COUNT, self.state.retries);
        }
        insert(&mut copy, headers::WALK, long(walk));
        self.count(
            &mut copy,
            headers::REPLAYS,
            self.state.replays.saturating_add(1),
        );
        self.whole(copy)
    }

    /// The copy of a waiting message that is brought back early. All counts and its past stay as they are.
    ///
    /// # Errors
    /// Those of [`replay`](Self::replay).
    pub(crate) fn released(&self) -> Result<BasicProperties, Vec<String>> {
        let mut copy = self.copy();
        if self.state.retries > 0 {
            self.count(&mut copy, headers::COUNT, self.state.retries);
        }
        self.whole(copy)
    }

    /// The parked copy of a message that is taken out while it waits, with its last failure, if there is one.
    ///
    /// # Errors
    /// Those of [`replay`](Self::replay).
    pub(crate) fn cancelled(&self) -> Result<BasicProperties, Vec<String>> {
        const WHY: &str = "taken out while it waited";
        let mut copy = self.copy();
        self.count(&mut copy, headers::COUNT, self.state.retries);
        if !copy.contains_key(headers::ERROR) {
            insert(&mut copy, headers::ERROR, long(WHY));
        }
        let alike = text(&copy, headers::FINGERPRINT).map(str::to_owned);
        let alike = alike.unwrap_or_else(|| fingerprint_of(&copy));
        for (name, value) in [
            (headers::PARKED_AT, AMQPValue::Timestamp(self.now)),
            (headers::PARKED_REASON, long(ParkReason::Requested.as_str())),
            (headers::FINGERPRINT, long(&alike)),
        ] {
            insert(&mut copy, name, value);
        }
        self.whole(copy)
    }

    /// The properties of a copy, if everything fits that is not our own record.
    fn whole(&self, copy: Draft) -> Result<BasicProperties, Vec<String>> {
        let names: Vec<String> = copy.keys().map(|name| name.as_str().to_owned()).collect();
        let properties = self.finish(copy);
        let kept = properties.headers().as_ref();
        let is_lost = |name: &String| {
            !matches!(name.as_str(), headers::HISTORY | headers::ERROR)
                && !kept.is_some_and(|kept| kept.contains_key(name))
        };
        let lost: Vec<String> = names.into_iter().filter(is_lost).collect();
        if lost.is_empty() {
            Ok(properties)
        } else {
            Err(lost)
        }
    }

    /// The headers of every copy: the message's own, without the broker's and those of an earlier parking, and what each copy of ours has.
    /// If the text of a failure was cut, its fingerprint is kept, because no later copy could compute it.
    fn copy(&self) -> Draft {
        self.copy_without(|_| false)
    }

    /// Like [`copy`](Self::copy), without the history, if that is written anew: it is most of what a message with retries carries.
    fn copy_of_failed(&self, failure: &Failure) -> Draft {
        self.copy_without(|name| name == headers::HISTORY && !failure.is_recorded)
    }

    fn copy_without(&self, is_left_out: impl Fn(&str) -> bool) -> Draft {
        let mut table = Draft::default();
        if let Some(original) = self.properties.headers() {
            for (name, value) in original {
                let name_is = name.as_str();
                let is_of_one_copy =
                    headers::is_of_parking(name_is) || headers::is_of_handover(name_is);
                if !headers::is_brokers_own(name_is) && !is_of_one_copy && !is_left_out(name_is) {
                    table.insert(name.clone(), value.clone());
                }
            }
        }
        if let Some(alike) = self.group_of_what_was_cut() {
            insert(&mut table, headers::FINGERPRINT, long(&alike));
        }
        insert(
            &mut table,
            headers::PROTOCOL,
            AMQPValue::LongLongInt(headers::PROTOCOL_VERSION),
        );
        insert(&mut table, headers::EXCHANGE, long(self.exchange));
        insert(&mut table, headers::ROUTING_KEY, long(self.routing_key));
        for (name, value) in [
            (headers::USER_ID, self.properties.user_id()),
            (headers::EXPIRATION, self.properties.expiration()),
        ] {
            if let Some(value) = value {
                insert(&mut table, name, long(value.as_str()));
            }
        }
        if headers::asks_for_direct_replies(self.properties) {
            insert(
                &mut table,
                headers::REPLY_TO,
                long(headers::DIRECT_REPLY_TO),
            );
        }
        table
    }

    fn failure(&self, table: &mut Draft, failure: &Failure) {
        if failure.is_recorded {
            let alike = self.written(headers::FINGERPRINT);
            if let Some(alike) = alike.filter(|alike| *alike != fingerprint_of(table)) {
                insert(table, headers::FINGERPRINT, long(alike));
            }
            return;
        }
        let first = self.state.first_failed_at.unwrap_or(self.now);
        insert(table, headers::FIRST_FAILED_AT, AMQPValue::Timestamp(first));
        let error = failure.written();
        insert(table, headers::ERROR, long(&error));
        if failure.error_type.is_empty() {
            table.remove(headers::ERROR_TYPE);
        } else {
            insert(
                table,
                headers::ERROR_TYPE,
                long(&cut_middle(&failure.error_type, TYPE_MAX)),
            );
        }
        // Waiting messages are also selected by fingerprint, and it cannot be computed from a cut text.
        table.remove(headers::FINGERPRINT);
        if error.len() < failure.error.len() || failure.error_type.len() > TYPE_MAX {
            let alike = fingerprint(&failure.error_type, &failure.error);
            insert(table, headers::FINGERPRINT, long(&alike));
        }
        let (host, app_version) = (&self.origin.host, &self.origin.app_version);
        let this = history::Written {
            attempt: self.state.attempt(),
            at: self.now,
            error: &error,
            host: &cut_middle(host, 255),
            app_version: &cut_middle(app_version, 255),
        };
        let before = self.properties.headers().as_ref();
        match history::written(before, this, HISTORY_MAX) {
            Some(history) => insert(table, headers::HISTORY, history),
            None => drop(table.remove(headers::HISTORY)),
        }
    }

    /// The fingerprint of the original's failure, if its headers alone would give another one. On a parked message it is that of the
    /// parking.
    fn group_of_what_was_cut(&self) -> Option<String> {
        let table = self.properties.headers().as_ref()?.inner();
        let has_failed = table.contains_key(headers::ERROR) || self.state.retries > 0;
        if table.contains_key(headers::PARKED_REASON) || !has_failed {
            return None;
        }
        let alike = text(table, headers::FINGERPRINT)?;
        let is_sound = alike.len() == 16 && alike.bytes().all(|byte| byte.is_ascii_hexdigit());
        (is_sound && alike != fingerprint_of(table)).then(|| alike.to_owned())
    }

    /// A text in the original's headers.
    fn written(&self, name: &str) -> Option<&str> {
        text(self.properties.headers().as_ref()?.inner(), name)
    }

    /// Adds what only a record has of a failure. If the consumer already wrote it, that is used.
    fn particulars(&self, table: &mut Draft, failure: &Failure) {
        if failure.is_recorded {
            let written = self.properties.headers().as_ref();
            for name in [headers::FINGERPRINT, headers::ERROR_STACK] {
                if let Some(value) = written.and_then(|written| written.inner().get(name)) {
                    insert(table, name, value.clone());
                }
            }
            return;
        }
        let alike = fingerprint(&failure.error_type, &failure.error);
        insert(table, headers::FINGERPRINT, long(&alike));
        if let Some(stack) = &failure.stack {
            insert(
                table,
                headers::ERROR_STACK,
                long(&cut_middle(stack, STACK_MAX)),
            );
        }
    }

    fn count(&self, table: &mut Draft, name: &str, count: u32) {
        insert(table, name, AMQPValue::LongLongInt(count.into()));
    }

    /// Like [`finish`](Self::finish), for a copy that waits: if there is no room for its error, it has the fingerprint instead.
    fn finish_what_waits(&self, mut table: Draft, expiration: Option<u64>) -> BasicProperties {
        let (properties, names) = carried(self.properties);
        let budget = self.budget.saturating_sub(names);
        let is_told =
            table.contains_key(headers::FINGERPRINT) || !table.contains_key(headers::ERROR);
        if !is_told && size_of(&table) > budget {
            let alike = fingerprint_of(&table);
            insert(&mut table, headers::FINGERPRINT, long(&alike));
        }
        fit(&mut table, budget);
        let properties = properties.with_headers(table.into());
        match expiration {
            Some(ms) => properties.with_expiration(ShortString::from(ms.to_string())),
            None => properties,
        }
    }

    /// The properties of the copy: persistent, and small enough for one frame. It has all of the original's properties except `user_id`,
    /// because a broker refuses one that is not the connection's own, a `reply_to` that it refuses from everybody, and `expiration`, which
    /// would end a wait early.
    fn finish(&self, mut table: Draft) -> BasicProperties {
        let (properties, names) = carried(self.properties);
        fit(&mut table, self.budget.saturating_sub(names));
        properties.with_headers(table.into())
    }
}

/// Whether a parked message with these properties can be replaced by a fresh copy; see [`CopyHeaders::renewed`].
pub(crate) fn is_renewable(properties: &BasicProperties, budget: usize) -> bool {
    // For the names of an exchange and a routing key, a mark, and their overhead.
    const ADDED: usize = 900;
    let headers = properties.headers().as_ref().map_or(0, encoded_size);
    headers + carried(properties).1 + ADDED <= budget + counts(budget)
}

/// What a parked message may take beyond a copy's budget. The budget leaves an eighth of a small frame to the broker, and the broker adds
/// only its delivery count.
fn counts(budget: usize) -> usize {
    (budget / 14).min(1_024)
}

/// The properties that every copy keeps, and the bytes that they take.
fn carried(old: &BasicProperties) -> (BasicProperties, usize) {
    let mut new = BasicProperties::default().with_delivery_mode(2);
    let mut names = 0;
    macro_rules! keep {
        ($($get:ident => $set:ident),*) => {$(
            if let Some(value) = old.$get() {
                names += value.as_str().len() + 1;
                new = new.$set(value.clone());
            }
        )*};
    }
    keep!(
        content_type => with_content_type, content_encoding => with_content_encoding,
        correlation_id => with_correlation_id, message_id => with_message_id, kind => with_type, app_id => with_app_id,
        cluster_id => with_cluster_id
    );
    if !headers::asks_for_direct_replies(old) {
        keep!(reply_to => with_reply_to);
    }
    if let Some(priority) = old.priority() {
        new = new.with_priority(*priority);
    }
    if let Some(timestamp) = old.timestamp() {
        new = new.with_timestamp(*timestamp);
    }
    (new, names)
}

/// The properties of a copy after its wait: the broker removes its expiration.
pub(crate) fn waited(copy: &BasicProperties) -> BasicProperties {
    let headers = copy.headers().clone().unwrap_or_default();
    carried(copy).0.with_headers(headers)
}

fn insert(table: &mut Draft, name: &str, value: AMQPValue) {
    table.insert(ShortString::from(name), value);
}

fn long(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

fn text<'a>(table: &'a Draft, name: &str) -> Option<&'a str> {
    table.get(name).and_then(headers::as_text)
}

/// The fingerprint of the failure in the headers.
fn fingerprint_of(table: &Draft) -> String {
    let text = |name| text(table, name).unwrap_or_default();
    fingerprint(text(headers::ERROR_TYPE), text(headers::ERROR))
}

/// Keeps the beginning and the end of a text, which have an error's cause and place.
pub(super) fn cut_middle(text: &str, max: usize) -> String {
    const MARK: &str = " … ";
    if text.len() <= max {
        return text.to_owned();
    }
    let half = (max - MARK.len()) / 2;
    let head = (0..=half)
        .rev()
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(0);
    let tail = (text.len() - half..=text.len())
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(text.len());
    format!("{}{MARK}{}", &text[..head], &text[tail..])
}

/// Why a waiting message was not moved: a copy of it would lose these headers.
pub(crate) fn waiting_headers_cut(lost: &[String]) -> Error {
    let names: Vec<_> = lost
        .iter()
        .take(5)
        .map(|name| format!("`{}`", terminal_escape::line(name)))
        .collect();
    Error::new(
        ErrorKind::TooLarge,
        format!(
            "the headers of a message take more than a copy has room for: it would be without {}. It waits as before, and comes back by itself",
            names.join(", ")
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::Limits;

    #[test]
    fn what_is_renewable_fits_a_frame_of_any_size() {
        let name = "e".repeat(255);
        let state = RetryState::default();
        for frame_max in [4_096, 8_192, 16_384, 65_536, 131_072] {
            let budget = crate::connection::header_room(frame_max);
            let (mut most, room) = (0, Limits::new(frame_max).content_header_max());
            for filler in budget.saturating_sub(3_000)..=room {
                let mut table = Draft::default();
                insert(&mut table, "filler", long(&"x".repeat(filler)));
                let properties = BasicProperties::default()
                    .with_message_id(name.as_str().into())
                    .with_headers(table.into());
                if !is_renewable(&properties, budget) {
                    continue;
                }
                let stamp = CopyHeaders {
                    origin: &Origin::default(),
                    properties: &properties,
                    exchange: &name,
                    routing_key: &name,
                    state: &state,
                    now: 0,
                    budget,
                };
                let copy = stamp.renewed("renewed 0123456789abcdef").expect("it fits");
                most = encoded_size(copy.headers().as_ref().unwrap()) + carried(&copy).1;
                // Class, weight, body size, flags, delivery mode, priority and timestamp.
                assert!(most + 26 <= room, "{frame_max}: {most}");
            }
            assert!(most > 0, "{frame_max}: nothing is renewable");
        }
    }
}
