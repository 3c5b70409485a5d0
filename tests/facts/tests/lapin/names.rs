//! What lapin does with addresses and names before it talks to anybody.

use lapin::types::ShortString;
use lapin::uri::AMQPUri;
use lapin::{Connection, ConnectionProperties};
use std::panic::catch_unwind;

/// Lapin fact 9.
#[test]
fn an_address_that_is_not_understood_becomes_another_one() {
    let parse = |uri: &str| uri.parse::<AMQPUri>().unwrap();
    assert_eq!(
        parse("amqp://u:p@[2001:db8::7]").authority.host,
        "localhost"
    );
    assert_eq!(
        parse("amqp://user@example.org").authority.userinfo.password,
        "guest"
    );
    assert_eq!(parse("amqp://example.org/").vhost, "");
    assert_eq!(parse("amqp://example.org").vhost, "/");
}

/// Lapin fact 10.
#[test]
fn addresses_show_their_password() {
    let uri: AMQPUri = "amqp://user:secret@example.org".parse().unwrap();
    assert!(format!("{uri:?}").contains("secret"));
    assert!(uri.to_string().contains("secret"));
}

/// Lapin fact 10.
#[tokio::test]
async fn an_address_that_is_refused_is_shown_with_its_password() {
    let wrong = Connection::connect(
        "amqp:user:secret@example.org",
        ConnectionProperties::default(),
    )
    .await;
    let error = wrong.expect_err("two slashes are missing");
    assert!(format!("{error:?} {error}").contains("secret"), "{error:?}");
}

/// Lapin fact 14.
#[test]
fn a_name_of_more_than_255_bytes_panics_where_it_is_converted_and_not_where_it_is_tried() {
    let name = "x".repeat(256);
    assert!(ShortString::try_new(name.as_str()).is_err());
    assert!(catch_unwind(|| ShortString::from(name.as_str())).is_err());
}
