//! The properties of a message.

use retryrmq::{BasicProperties, types::ShortString};

/// Those that are texts, by their AMQP names.
#[must_use]
pub fn texts(properties: &BasicProperties) -> [(&'static str, &Option<ShortString>); 10] {
    [
        ("content_type", properties.content_type()),
        ("content_encoding", properties.content_encoding()),
        ("correlation_id", properties.correlation_id()),
        ("reply_to", properties.reply_to()),
        ("expiration", properties.expiration()),
        ("message_id", properties.message_id()),
        ("type", properties.kind()),
        ("user_id", properties.user_id()),
        ("app_id", properties.app_id()),
        ("cluster_id", properties.cluster_id()),
    ]
}
