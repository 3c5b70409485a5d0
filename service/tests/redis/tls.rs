//! TLS with an authority of our own.

use std::time::Duration;

use retryrmq_serve::store::{
    Error, Store,
    redis::{Configuration, RedisStore, Tls},
};

use crate::{
    drafts::kept,
    server::{KINDS, Servers, available},
};

#[tokio::test]
async fn certificates_are_checked_on_both_sides() {
    if !available() {
        return;
    }
    for kind in KINDS {
        let servers = Servers::new(kind);
        let folder = servers.tls();
        servers.start(0, &["tls-auth-clients yes"]);
        let with = |tls: Option<Tls>| {
            RedisStore::new(
                &Configuration {
                    addresses: vec![servers.tls_address(0)],
                    tls,
                    timeout: Duration::from_secs(2),
                    ..Configuration::default()
                },
                "/",
            )
            .unwrap()
        };
        let full = Tls {
            ca_file: Some(folder.join("ca.pem")),
            certificate_file: Some(folder.join("client.pem")),
            key_file: Some(folder.join("client.key")),
        };
        let store = with(Some(full.clone()));
        store
            .keep(&[kept("orders", "a", Duration::ZERO)])
            .await
            .unwrap();
        store.health().await.unwrap();
        for (tls, what) in [
            (None, "plain text"),
            (Some(Tls::default()), "the system's authorities"),
            (
                Some(Tls {
                    certificate_file: None,
                    key_file: None,
                    ..full.clone()
                }),
                "no certificate of ours",
            ),
        ] {
            let why = with(tls).health().await.unwrap_err();
            assert!(matches!(why, Error::Away(_)), "{what}: {why}");
        }
        let missing = with(Some(Tls {
            ca_file: Some(folder.join("none.pem")),
            ..full.clone()
        }));
        let why = missing.health().await.unwrap_err();
        assert!(
            matches!(&why, Error::Configuration(why) if why.contains("none.pem")),
            "{why}"
        );
        // Somebody else's certificate is good for another name only.
        let (_, port) = servers
            .tls_address(0)
            .rsplit_once(':')
            .map(|(a, b)| (a.to_owned(), b.to_owned()))
            .unwrap();
        let named = RedisStore::new(
            &Configuration {
                addresses: vec![format!("127.0.0.2:{port}")],
                tls: Some(full),
                ..Configuration::default()
            },
            "/",
        )
        .unwrap();
        assert!(named.health().await.is_err());
    }
}
