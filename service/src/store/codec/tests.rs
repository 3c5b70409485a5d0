use proptest::prelude::*;
use retryrmq::types::FieldArray;
use retryrmq_harness::amqp_values::{any_table, any_value};

use super::*;

fn any_properties() -> impl Strategy<Value = BasicProperties> {
    let texts = prop::collection::vec(prop::option::of("\\PC{0,60}"), 10);
    let numbers = any::<(Option<u8>, Option<u8>, Option<u64>)>();
    (texts, numbers, prop::option::of(any_table(any_value()))).prop_map(
        |(texts, (mode, priority, timestamp), headers)| {
            let mut made = BasicProperties::default();
            let set = [
                BasicProperties::with_content_type,
                BasicProperties::with_content_encoding,
                BasicProperties::with_correlation_id,
                BasicProperties::with_reply_to,
                BasicProperties::with_expiration,
                BasicProperties::with_message_id,
                BasicProperties::with_type,
                BasicProperties::with_user_id,
                BasicProperties::with_app_id,
                BasicProperties::with_cluster_id,
            ];
            for (text, set) in texts.into_iter().zip(set) {
                if let Some(text) = text {
                    made = set(made, text.as_str().into());
                }
            }
            if let Some(mode) = mode {
                made = made.with_delivery_mode(mode);
            }
            if let Some(priority) = priority {
                made = made.with_priority(priority);
            }
            if let Some(timestamp) = timestamp {
                made = made.with_timestamp(timestamp);
            }
            if let Some(headers) = headers {
                made = made.with_headers(headers);
            }
            made
        },
    )
}

proptest! {
    #[test]
    fn every_message_comes_back_to_the_last_bit(
        made in any_properties(),
        (exchange, routing_key) in ("\\PC{0,60}", "\\PC{0,60}"),
        (delay, body, record) in any::<(u32, Vec<u8>, Vec<u8>)>(),
    ) {
        let draft = MessageDraft {
            exchange,
            routing_key,
            delay: Duration::from_millis(delay.into()),
            properties: made,
            body,
            record,
            redelivered: false,
            named_by: None,
        };
        let encoded = properties(&draft.properties).unwrap();
        let mut bytes = head(&draft, &encoded);
        // The scripts go by this to leave a body out.
        let rest = u32::from_be_bytes(bytes[1..5].try_into().unwrap());
        prop_assert_eq!(5 + rest as usize, bytes.len());
        // A list is drawn from the head alone.
        let alone = read(&bytes).unwrap();
        prop_assert_eq!(&alone.routing_key, &draft.routing_key);
        prop_assert!(alone.body.is_empty());
        bytes.extend(&draft.body);
        let back = read(&bytes).unwrap();
        // NaN is not equal to itself, but its bytes are.
        prop_assert_eq!(properties(&back.properties).unwrap(), encoded);
        prop_assert_eq!(format!("{back:?}"), format!("{draft:?}"));
    }

    #[test]
    fn any_bytes_are_read_or_refused(mut bytes: Vec<u8>, version in 0u8..3) {
        if let Some(first) = bytes.first_mut() {
            *first = version;
        }
        let _ = read(&bytes);
    }

    #[test]
    fn what_is_cut_off_or_from_another_version_is_refused(made in any_properties(), at in any::<prop::sample::Index>()) {
        let draft = MessageDraft { routing_key: "orders".to_owned(), ..MessageDraft::default() };
        let encoded = properties(&made).unwrap();
        let mut bytes = head(&draft, &encoded);
        prop_assert!(read(&bytes[..at.index(bytes.len())]).is_err());
        bytes[0] = VERSION + 1;
        prop_assert!(read(&bytes).unwrap_err().contains("version 2"));
    }
}

#[test]
fn a_short_string_is_refused_however_deep() {
    let mut inner = FieldTable::default();
    inner.insert("s".into(), AMQPValue::ShortString("text".into()));
    let array = FieldArray::from(vec![AMQPValue::FieldTable(inner)]);
    let mut headers = FieldTable::default();
    headers.insert("a".into(), AMQPValue::FieldArray(array));
    let why = properties(&BasicProperties::default().with_headers(headers)).unwrap_err();
    assert!(why.to_string().contains("short string"), "{why}");
}

#[test]
fn a_delay_is_rounded_up() {
    assert_eq!(milliseconds(Duration::from_micros(1_001)), 2);
    assert_eq!(milliseconds(Duration::from_millis(7)), 7);
    assert_eq!(milliseconds(Duration::ZERO), 0);
}
