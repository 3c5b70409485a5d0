//! What a message with a delay carries while it waits in the broker, and what is taken off again before it is published.

use std::{collections::BTreeMap, time::Duration};

use retryrmq::{
    BasicProperties, DIRECT_REPLY_TO,
    headers::{
        self, DELAYED_CC as CC, DELAYED_FROM as FROM, DELAYED_KEY as KEY, DELAYED_UNTIL as UNTIL,
        EXPIRATION, REPLAYS, REPLY_TO, USER_ID, WALK,
    },
    types::{AMQPValue, FieldTable, ShortString},
};

/// What a publisher has sent, without what only a copy of ours says.
pub(super) fn as_published(properties: &BasicProperties) -> BasicProperties {
    const OURS: [&str; 6] = [FROM, KEY, UNTIL, CC, EXPIRATION, REPLAYS];
    let Some(headers) = properties.headers() else {
        return properties.clone();
    };
    let headers = headers.inner().iter();
    let headers: BTreeMap<_, _> = headers
        .filter(|(name, _)| !OURS.contains(&name.as_str()))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    properties.clone().with_headers(headers.into())
}

/// Where a message came from, and when it is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DelayHeaders {
    pub(super) from: String,
    pub(super) key: String,
    pub(super) until: u64,
}

impl DelayHeaders {
    /// Reads the stamp of a message that came back from its wait.
    pub(super) fn of(properties: &BasicProperties) -> Option<Self> {
        let headers = properties.headers().as_ref()?.inner();
        let text = |name: &str| match headers.get(name) {
            Some(AMQPValue::LongString(text)) => Some(text.to_string()),
            _ => None,
        };
        let until = match headers.get(UNTIL) {
            Some(AMQPValue::LongLongInt(until)) => u64::try_from(*until).ok()?,
            _ => return None,
        };
        Some(Self {
            from: text(FROM)?,
            key: text(KEY)?,
            until,
        })
    }

    /// The properties of the copy that waits.
    pub(super) fn put_on(&self, properties: &BasicProperties) -> BasicProperties {
        let cc = |name: &ShortString| match name.as_str() {
            "CC" => CC.into(),
            _ => name.clone(),
        };
        let headers = clean(properties);
        let headers = headers.inner().iter();
        let mut headers: FieldTable = headers
            .map(|(name, value)| (cc(name), value.clone()))
            .collect::<BTreeMap<_, _>>()
            .into();
        if let Some(expiration) = properties.expiration() {
            headers.insert(EXPIRATION.into(), text(expiration.as_str()));
        }
        // Of a copy that waits again.
        let own = properties.headers().as_ref();
        for kept in [CC, EXPIRATION] {
            if let Some(value) = own
                .filter(|_| Self::of(properties).is_some())
                .and_then(|own| own.inner().get(kept))
            {
                headers.insert(kept.into(), value.clone());
            }
        }
        headers.insert(FROM.into(), text(&self.from));
        headers.insert(KEY.into(), text(&self.key));
        let until = i64::try_from(self.until).unwrap_or(i64::MAX);
        headers.insert(UNTIL.into(), AMQPValue::LongLongInt(until));
        rebuilt(properties, headers, None)
    }
}

/// The properties with which a message is published at last: those of its publisher, with `x-delay` below zero, as the plugin leaves it.
pub(super) fn take_off(properties: &BasicProperties) -> BasicProperties {
    let plain = plain(properties);
    let Some(delay) = delay(properties).ok().flatten() else {
        return plain;
    };
    let mut headers = plain.headers().clone().unwrap_or_default();
    let ms = i64::try_from(delay.as_millis()).unwrap_or(i64::MAX);
    headers.insert(headers::DELAY.into(), AMQPValue::LongLongInt(-ms));
    plain.with_headers(headers)
}

/// The properties of its publisher.
pub(super) fn plain(properties: &BasicProperties) -> BasicProperties {
    let mut headers = clean(properties);
    let mut expiration = properties.expiration().clone();
    if DelayHeaders::of(properties).is_some() {
        let own = properties.headers().as_ref();
        let own = |name: &str| own.and_then(|own| own.inner().get(name).cloned());
        if let Some(cc) = own(CC) {
            headers.insert("CC".into(), cc);
        }
        if let Some(AMQPValue::LongString(kept)) = own(EXPIRATION) {
            expiration = ShortString::try_new(kept.to_string()).ok().or(expiration);
        }
    }
    rebuilt(properties, headers, expiration)
}

/// The delay that its publisher asks for; nothing where he asks for none.
///
/// # Errors
/// What is wrong with it, in a sentence.
pub(super) fn delay(properties: &BasicProperties) -> Result<Option<Duration>, String> {
    let own = properties.headers().as_ref();
    let Some(value) = own.and_then(|own| own.inner().get(headers::DELAY)) else {
        return Ok(None);
    };
    let number = match value {
        // What JavaScript writes for a number that is no 32-bit integer.
        AMQPValue::Double(number) if number.fract() == 0.0 && number.abs() < 1e15 => {
            Some(*number as i64)
        }
        value => headers::integer(value),
    };
    let number = number
        .ok_or("its header `x-delay` is no whole number of milliseconds; write it as an integer")?;
    let Ok(ms) = u64::try_from(number) else {
        return Err(format!(
            "its header `x-delay` is {number}; a delay is not below zero. A message that was delivered has it so: leave the header out \
             when you publish it again"
        ));
    };
    let delay = Duration::from_millis(ms);
    if delay > retryrmq::MAX_DELAY {
        return Err(format!(
            "its header `x-delay` is {ms} ms, and the longest delay is 365d, {} ms",
            retryrmq::MAX_DELAY.as_millis()
        ));
    }
    Ok(Some(delay))
}

/// The publisher's headers, without ours of the wait and without what the broker writes.
fn clean(properties: &BasicProperties) -> FieldTable {
    const OURS: [&str; 4] = [FROM, KEY, UNTIL, CC];
    let waited = DelayHeaders::of(properties).is_some();
    let kept = |name: &str| {
        !(OURS.contains(&name)
            || headers::is_of_death(name)
            || headers::is_count(name)
            || name == WALK
            // A broker takes it off before it delivers: on a delivery it is an application property of AMQP 1.0.
            || name == "BCC"
            || waited && name == EXPIRATION)
    };
    let Some(headers) = properties.headers() else {
        return FieldTable::default();
    };
    let headers = headers.inner().iter();
    let headers: BTreeMap<_, _> = headers
        .filter(|(name, value)| kept(name.as_str()) && (name.as_str() != "CC" || is_list(value)))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    headers.into()
}

/// Whether a broker takes this `CC`. Publishers of other protocols may have set anything.
fn is_list(value: &AMQPValue) -> bool {
    let AMQPValue::FieldArray(keys) = value else {
        return false;
    };
    let mut keys = keys.as_slice().iter();
    keys.all(|key| matches!(key, AMQPValue::LongString(_)))
}

fn rebuilt(
    properties: &BasicProperties,
    mut headers: FieldTable,
    expiration: Option<ShortString>,
) -> BasicProperties {
    let mut copy = BasicProperties::default().with_delivery_mode(2);
    macro_rules! carry {
        ($($get:ident => $set:ident),* $(,)?) => {$(
            if let Some(value) = properties.$get() {
                copy = copy.$set(value.clone());
            }
        )*};
    }
    carry!(
        content_type => with_content_type, content_encoding => with_content_encoding, priority => with_priority,
        correlation_id => with_correlation_id, message_id => with_message_id, timestamp => with_timestamp,
        kind => with_type, app_id => with_app_id, cluster_id => with_cluster_id,
    );
    match properties.reply_to() {
        Some(address) if address.as_str() == DIRECT_REPLY_TO => {
            headers.insert(REPLY_TO.into(), text(DIRECT_REPLY_TO));
        }
        Some(address) => copy = copy.with_reply_to(address.clone()),
        None => {}
    }
    if let Some(user) = properties.user_id() {
        headers.insert(USER_ID.into(), text(user.as_str()));
    }
    if let Some(expiration) = expiration {
        copy = copy.with_expiration(expiration);
    }
    copy.with_headers(headers)
}

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn published(delay: AMQPValue) -> BasicProperties {
        let mut headers = FieldTable::default();
        headers.insert("x-delay".into(), delay);
        headers.insert(
            "CC".into(),
            AMQPValue::FieldArray(vec![text("elsewhere")].into()),
        );
        headers.insert("kind".into(), text("invoice"));
        headers.insert(FROM.into(), text("forged"));
        BasicProperties::default()
            .with_headers(headers)
            .with_expiration("60000".into())
            .with_message_id("7".into())
            .with_user_id("guest".into())
    }

    #[test]
    fn what_was_put_on_is_taken_off_however_often_it_waits() {
        let stamp = DelayHeaders {
            from: "orders".to_owned(),
            key: "eu.de".to_owned(),
            until: 1_700_000_000_123,
        };
        let original = published(AMQPValue::LongInt(1500));
        assert_eq!(DelayHeaders::of(&original), None, "half a stamp is none");
        let mut waiting = stamp.put_on(&original);
        for _ in 0..3 {
            assert_eq!(DelayHeaders::of(&waiting), Some(stamp.clone()));
            assert_eq!(waiting.expiration(), &None, "it would end the wait");
            let headers = waiting.headers().clone().unwrap();
            assert!(!headers.contains_key("CC"), "it would go elsewhere, too");
            waiting = stamp.put_on(&waiting);
        }
        let out = take_off(&waiting);
        assert_eq!(out.expiration().as_ref().unwrap().as_str(), "60000");
        assert_eq!(out.message_id().as_ref().unwrap().as_str(), "7");
        assert_eq!(out.user_id(), &None);
        let headers = out.headers().clone().unwrap();
        let names: Vec<_> = headers.inner().keys().map(ShortString::as_str).collect();
        assert_eq!(names, ["CC", "kind", "x-delay", "x-retry-user-id"]);
        assert_eq!(headers.inner()["x-delay"], AMQPValue::LongLongInt(-1500));
        assert_eq!(take_off(&original), out, "by either way it is the same");
    }

    #[test]
    fn what_no_broker_would_take_from_us_is_in_no_copy() {
        let mut headers = FieldTable::default();
        headers.insert("CC".into(), text("no list"));
        headers.insert(
            "BCC".into(),
            AMQPValue::FieldArray(vec![text("elsewhere")].into()),
        );
        let sent = BasicProperties::default()
            .with_headers(headers)
            .with_reply_to(DIRECT_REPLY_TO.into());
        let stamp = DelayHeaders {
            from: "orders".to_owned(),
            key: "eu.de".to_owned(),
            until: 5,
        };
        let waiting = stamp.put_on(&sent);
        for copy in [
            take_off(&waiting),
            take_off(&stamp.put_on(&waiting)),
            plain(&sent),
        ] {
            assert_eq!(copy.reply_to(), &None);
            let headers = copy.headers().clone().unwrap();
            assert_eq!(headers.inner().len(), 1, "{headers:?}");
            assert_eq!(headers.inner()[REPLY_TO], text(DIRECT_REPLY_TO));
        }
        let other = BasicProperties::default().with_reply_to("answers".into());
        let kept = take_off(&stamp.put_on(&other));
        assert_eq!(kept.reply_to(), other.reply_to());
    }

    #[test]
    fn a_delay_is_a_whole_number_of_milliseconds_up_to_a_year() {
        for (value, expected) in [
            (AMQPValue::LongInt(0), 0),
            (AMQPValue::ShortShortInt(100), 100),
            (AMQPValue::Double(3_000_000_000.0), 3_000_000_000),
            (AMQPValue::LongLongInt(31_536_000_000), 31_536_000_000),
        ] {
            let delay = delay(&published(value)).unwrap().unwrap();
            assert_eq!(delay.as_millis(), expected);
        }
        assert_eq!(delay(&BasicProperties::default()), Ok(None));
        for (value, words) in [
            (AMQPValue::LongInt(-1), "not below zero"),
            (AMQPValue::LongLongInt(i64::MIN), "not below zero"),
            (AMQPValue::LongLongInt(31_536_000_001), "longest delay"),
            (AMQPValue::Double(1.5), "no whole number"),
            (AMQPValue::Double(f64::NAN), "no whole number"),
            (text("5000"), "no whole number"),
            (AMQPValue::Void, "no whole number"),
        ] {
            let why = delay(&published(value)).unwrap_err();
            assert!(why.contains(words), "{why}");
        }
    }

    #[test]
    fn what_a_publisher_passes_on_of_another_message_is_gone() {
        let mut headers = FieldTable::default();
        for name in [FROM, KEY, CC, EXPIRATION, "kind"] {
            headers.insert(name.into(), text("60000"));
        }
        for name in [UNTIL, REPLAYS] {
            headers.insert(name.into(), AMQPValue::LongLongInt(1));
        }
        let sent = BasicProperties::default()
            .with_headers(headers)
            .with_message_id("7".into());
        let stamp = DelayHeaders {
            from: "orders".to_owned(),
            key: "eu.de".to_owned(),
            until: 5,
        };
        let out = take_off(&stamp.put_on(&as_published(&sent)));
        assert_eq!(out.expiration(), &None, "its publisher set none");
        assert_eq!(out.message_id(), sent.message_id());
        let headers = out.headers().clone().unwrap();
        let names: Vec<_> = headers.inner().keys().map(ShortString::as_str).collect();
        assert_eq!(names, ["kind"]);
    }

    proptest! {
        #[test]
        fn a_stamp_is_read_back(from in "\\PC{0,20}", key in "\\PC{0,20}", until in 0u64..1 << 62) {
            let stamp = DelayHeaders { from, key, until };
            let waiting = stamp.put_on(&BasicProperties::default());
            prop_assert_eq!(DelayHeaders::of(&waiting), Some(stamp));
        }
    }
}
