//! A cluster, and a master that Sentinels watch.

use std::{collections::HashSet, time::Duration};

use retryrmq_serve::store::{
    Error, Store,
    redis::{Configuration, Mode, RedisStore},
};

use crate::{
    crashing::waiting,
    message_drafts::{all, many},
    server::{Servers, available, eventually, kinds},
};

/// The server, by its number, that has the store's slot as its master, if there is one.
fn owner(servers: &Servers) -> Option<usize> {
    let slot: u32 = servers
        .cli(1, &["cluster", "keyslot", "{retryrmq:/}:due"])
        .parse()
        .unwrap();
    let nodes = servers.cli(1, &["cluster", "nodes"]);
    let address: String = nodes
        .lines()
        .filter(|node| node.contains("master") && !node.contains("fail"))
        .find_map(|node| {
            let words: Vec<_> = node.split_whitespace().collect();
            let has = words.iter().skip(8).any(|range| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                let (first, last) = (first.parse(), last.parse());
                matches!((first, last), (Ok(first), Ok(last)) if (first..=last).contains(&slot))
            });
            has.then(|| words[1].split('@').next().unwrap().to_owned())
        })?;
    (1..=6).find(|n| servers.address(*n) == address)
}

fn in_cluster(servers: &Servers, seeds: &[usize]) -> RedisStore {
    RedisStore::new(
        &Configuration {
            mode: Mode::Cluster,
            addresses: seeds.iter().map(|n| servers.address(*n)).collect(),
            ..Configuration::default()
        },
        "/",
    )
    .unwrap()
}

#[tokio::test]
async fn a_cluster_is_followed_through_moves_and_failovers() {
    if !available() {
        return;
    }
    for kind in kinds("a_cluster_is_followed_through_moves_and_failovers") {
        let servers = Servers::new(kind);
        servers.tell("cluster", 0, &[]);
        let store = in_cluster(&servers, &[1, 2, 3, 4, 5, 6]);
        let hour = Duration::from_secs(3_600);
        let mut confirmed: HashSet<String> = HashSet::new();
        let batch = many("before", 300, hour);
        store.keep(&batch).await.unwrap();
        confirmed.extend(batch.iter().map(|kept| kept.id().to_string()));
        assert_eq!(waiting(&store).await, confirmed);

        // A failover that somebody orders loses nothing, and is followed: the old master answers MOVED, or READONLY.
        let old = owner(&servers).expect("a master of the slot");
        let number = |text: &str| (1..=6).find(|n| servers.address(*n) == text);
        let replica = eventually("the master knows its replica", || async {
            let myself = servers.cli(old, &["cluster", "myid"]);
            let nodes = servers.cli(old, &["cluster", "nodes"]);
            nodes
                .lines()
                .filter(|node| node.contains("slave"))
                .filter(|node| node.split_whitespace().nth(3) == Some(&myself))
                .find_map(|node| number(node.split_whitespace().nth(1)?.split('@').next()?))
        })
        .await;
        eventually("failed over", || async {
            servers.cli(replica, &["cluster", "failover"]);
            tokio::time::sleep(Duration::from_millis(500)).await;
            servers
                .cli(replica, &["role"])
                .starts_with("master")
                .then_some(())
        })
        .await;
        let batch = many("after", 300, hour);
        eventually("kept at the new master", || async {
            store.keep(&batch).await.ok()
        })
        .await;
        confirmed.extend(batch.iter().map(|kept| kept.id().to_string()));
        eventually("the others have heard of it", || async {
            (owner(&servers) == Some(replica)).then_some(())
        })
        .await;
        assert_eq!(waiting(&store).await, confirmed);

        // One that is killed is replaced by its replica, once that has everything.
        eventually("replicated", || async {
            let offset = |n| {
                let info = servers.cli(n, &["info", "replication"]);
                info.lines().find_map(|line| {
                    line.strip_prefix("master_repl_offset:")
                        .map(|at| at.trim().to_owned())
                })
            };
            (servers.cli(old, &["role"]).starts_with("slave") && offset(old) == offset(replica))
                .then_some(())
        })
        .await;
        servers.tell("kill", replica, &[]);
        let more = many("killed", 10, Duration::ZERO);
        eventually("kept after the kill", || async {
            store.keep(&more).await.ok()
        })
        .await;
        confirmed.extend(more.iter().map(|kept| kept.id().to_string()));
        assert_eq!(waiting(&store).await, confirmed);
        assert_eq!(store.claim(&all()).await.unwrap().due.len(), 10);

        // Any node knows the way.
        let other = in_cluster(
            &servers,
            &[(1..=6).find(|n| *n != replica && *n != old).unwrap()],
        );
        // It hears a moment later than others of who is gone.
        eventually("it knows the way", || async { other.health().await.ok() }).await;
    }
}

#[tokio::test]
async fn a_master_is_found_by_its_sentinels() {
    if !available() {
        return;
    }
    for kind in kinds("a_master_is_found_by_its_sentinels") {
        let servers = Servers::new(kind);
        servers.start(0, &[]);
        let master = servers.address(0);
        let (host, port) = master.split_once(':').unwrap();
        servers.start(
            1,
            &[
                &format!("replicaof {host} {port}"),
                "repl-diskless-sync-delay 0",
            ],
        );
        let watch = format!("sentinel monitor main {host} {port} 1");
        servers.tell(
            "sentinel",
            2,
            &[
                &watch,
                "sentinel down-after-milliseconds main 5000",
                "sentinel failover-timeout main 10000",
            ],
        );
        let with = |master: &str| {
            RedisStore::new(
                &Configuration {
                    mode: Mode::Sentinel,
                    addresses: vec!["127.0.0.1:1".to_owned(), servers.address(2)],
                    master: Some(master.to_owned()),
                    replicas: 1,
                    ..Configuration::default()
                },
                "/",
            )
            .unwrap()
        };
        let why = with("other").health().await.unwrap_err();
        assert!(
            matches!(&why, Error::Configuration(why) if why.contains("`other`")),
            "{why}"
        );
        let store = with("main");
        let batch = many("before", 100, Duration::from_secs(3_600));
        eventually("kept on both", || async { store.keep(&batch).await.ok() }).await;
        eventually("the replica known", || async {
            servers
                .cli(2, &["sentinel", "replicas", "main"])
                .contains(&servers.address(1))
                .then_some(())
        })
        .await;
        servers.tell("kill", 0, &[]);
        let alone = RedisStore::new(
            &Configuration {
                mode: Mode::Sentinel,
                addresses: vec![servers.address(2)],
                master: Some("main".to_owned()),
                ..Configuration::default()
            },
            "/",
        )
        .unwrap();
        eventually("the other leads", || async { alone.health().await.ok() }).await;
        assert_eq!(waiting(&alone).await.len(), 100);
        alone.keep(&many("after", 5, Duration::ZERO)).await.unwrap();
        // It was to be on a replica, too, and there is none.
        assert!(matches!(
            store.keep(&many("more", 1, Duration::ZERO)).await,
            Err(Error::NotDurable(_))
        ));
    }
}
