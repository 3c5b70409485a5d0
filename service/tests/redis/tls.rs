//! TLS with an authority of our own.

use std::time::Duration;

use retryrmq_serve::store::{
    Error, Store,
    redis::{Configuration, Mode, RedisStore, Tls},
};

use crate::{
    message_drafts::kept,
    server::{Servers, available, eventually, kinds},
};

#[tokio::test]
async fn certificates_are_checked_on_both_sides() {
    if !available() {
        return;
    }
    for kind in kinds("certificates_are_checked_on_both_sides") {
        let servers = Servers::new(kind);
        let folder = servers.tls();
        servers.start(0, &["tls-auth-clients yes"]);
        let with = |tls: Option<Tls>| {
            RedisStore::new(
                &Configuration {
                    addresses: vec![servers.tls_address(0)],
                    tls,
                    timeout: Duration::from_secs(5),
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
        // What is in no form that can be used is this side's fault, and told as that.
        let garbage = folder.join("garbage.pem");
        std::fs::write(&garbage, "no certificate").unwrap();
        let [mut authority, mut certificate, mut key] = [full.clone(), full.clone(), full.clone()];
        authority.ca_file = Some(garbage.clone());
        certificate.certificate_file = Some(garbage.clone());
        key.key_file = Some(garbage);
        for odd in [authority, certificate, key] {
            let why = with(Some(odd)).health().await.unwrap_err();
            assert!(
                matches!(&why, Error::Configuration(why) if why.contains("garbage.pem")),
                "{why}"
            );
        }
        // A pipe that nobody writes to is given up in time, and stops nothing else: this runtime has one thread.
        let pipe = folder.join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        let silent = with(Some(Tls {
            ca_file: Some(pipe),
            ..full.clone()
        }));
        let why = silent.health().await.unwrap_err();
        assert!(
            matches!(&why, Error::Away(why) if why.contains("pipe")),
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

/// The addresses that a cluster and Sentinels hand out are those for TLS, and are asked over TLS.
#[tokio::test]
async fn a_cluster_and_a_master_behind_sentinels_are_reached_over_tls() {
    if !available() {
        return;
    }
    for kind in kinds("a_cluster_and_a_master_behind_sentinels_are_reached_over_tls") {
        let servers = Servers::new(kind);
        let folder = servers.tls();
        let tls = Tls {
            ca_file: Some(folder.join("ca.pem")),
            certificate_file: Some(folder.join("client.pem")),
            key_file: Some(folder.join("client.key")),
        };
        servers.start(
            1,
            &[
                "cluster-enabled yes",
                "cluster-config-file nodes.conf",
                "tls-cluster yes",
                "tls-auth-clients yes",
            ],
        );
        servers.cli(1, &["cluster", "addslotsrange", "0", "16383"]);
        servers.start(2, &["tls-auth-clients yes", "tls-replication yes"]);
        let master = servers.tls_address(2);
        let (host, port) = master.split_once(':').unwrap();
        let watch = format!("sentinel monitor main {host} {port} 1");
        servers.tell("sentinel", 3, &[&watch, "tls-replication yes"]);
        for (mode, address, master) in [
            (Mode::Cluster, servers.tls_address(1), None),
            (
                Mode::Sentinel,
                servers.tls_address(3),
                Some("main".to_owned()),
            ),
        ] {
            let configuration = Configuration {
                mode,
                addresses: vec![address],
                master,
                tls: Some(tls.clone()),
                ..Configuration::default()
            };
            let store = RedisStore::new(&configuration, "/").unwrap();
            let batch = [kept("orders", "a", Duration::ZERO)];
            eventually(&format!("kept: {mode:?}"), || async {
                store.keep(&batch).await.ok()
            })
            .await;
            assert_eq!(store.count().await.unwrap().len(), 1);
        }
    }
}
