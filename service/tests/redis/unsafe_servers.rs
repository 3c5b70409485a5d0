//! A Redis that would lose messages is refused, and one that is full or away stops the intake and nothing else.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use retryrmq_serve::store::{
    Error, Store,
    redis::{Configuration, RedisStore},
};

use crate::{
    message_drafts::{all, kept, many},
    server::{eventually, on_kinds},
};

#[tokio::test]
async fn settings_that_lose_messages_are_refused_with_the_line_to_change() {
    on_kinds(&["appendonly no"], |servers| async move {
        let store = servers.store();
        let message = [kept("orders", "a", Duration::ZERO)];
        let why = store.keep(&message).await.unwrap_err();
        assert!(
            matches!(&why, Error::Unfit(why) if why.contains("appendonly yes")),
            "{why}"
        );
        servers.cli(0, &["config", "set", "appendonly", "yes"]);
        servers.cli(0, &["config", "set", "maxmemory-policy", "allkeys-lru"]);
        let why = store.health().await.unwrap_err();
        assert!(
            matches!(&why, Error::Unfit(why) if why.contains("noeviction")),
            "{why}"
        );
        servers.cli(0, &["config", "set", "maxmemory-policy", "noeviction"]);
        eventually("well", || async { store.health().await.ok() }).await;
        store.keep(&message).await.unwrap();
        // Also one that is changed while we are connected.
        servers.cli(0, &["config", "set", "appendonly", "no"]);
        assert!(matches!(store.health().await, Err(Error::Unfit(_))));
        let why = store.keep(&message).await.unwrap_err();
        assert!(matches!(why, Error::Unfit(_)), "{why}");
    })
    .await;
}

#[tokio::test]
async fn a_full_redis_takes_nothing_gives_out_everything_and_is_well_again() {
    on_kinds(&["maxmemory 100mb"], |servers| async move {
        let store = servers.store();
        let first = many("orders", 500, Duration::ZERO);
        store.keep(&first).await.unwrap();
        servers.cli(0, &["config", "set", "maxmemory", "1"]);
        let more = [kept("orders", "more", Duration::ZERO)];
        let why = store.keep(&more).await.unwrap_err();
        assert!(
            matches!(&why, Error::Full(why) if why.contains("maxmemory")),
            "{why}"
        );
        assert!(matches!(store.health().await, Err(Error::Full(_))));
        let claim = store.claim(&all()).await.unwrap();
        assert_eq!(claim.due.len(), 500, "what waits still goes out");
        let leases: Vec<_> = claim.due.into_iter().map(|due| due.lease).collect();
        let extended: Vec<_> = store
            .extend(&leases)
            .await
            .unwrap()
            .into_iter()
            .flatten()
            .collect();
        assert_eq!(extended.len(), 500);
        assert_eq!(
            store.release(&extended[..1], Duration::ZERO).await.unwrap(),
            [true]
        );
        assert_eq!(store.delete(&extended[1..]).await.unwrap(), [true; 499]);
        assert!(
            store
                .list(&retryrmq_serve::store::Page {
                    from: None,
                    limit: 9,
                    destination: None
                })
                .await
                .is_ok()
        );
        servers.cli(0, &["config", "set", "maxmemory", "100mb"]);
        store.health().await.unwrap();
        store.keep(&more).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_redis_that_comes_back_is_used_again() {
    on_kinds(&[], |servers| async move {
        let store = servers.store();
        store
            .keep(&many("orders", 10, Duration::ZERO))
            .await
            .unwrap();
        servers.tell("kill", 0, &[]);
        let message = [kept("orders", "later", Duration::ZERO)];
        let why = store.keep(&message).await.unwrap_err();
        assert!(matches!(why, Error::Away(_)), "{why}");
        assert!(matches!(store.claim(&all()).await, Err(Error::Away(_))));
        assert!(store.health().await.is_err());
        servers.start(0, &[]);
        eventually("well", || async { store.health().await.ok() }).await;
        store.keep(&message).await.unwrap();
        assert_eq!(store.claim(&all()).await.unwrap().due.len(), 11);
    })
    .await;
}

/// While it reads its file, it says that it has none. That is nothing for its operator to change.
#[tokio::test]
async fn a_redis_that_still_reads_its_file_is_waited_for() {
    on_kinds(&[], |servers| async move {
        let store = servers.store();
        store.health().await.unwrap();
        let fill = "for n = 1, 6000 do redis.call('set', KEYS[1] .. n, n) end";
        servers.cli(0, &["eval", fill, "1", "filling"]);
        servers.tell("kill", 0, &[]);
        // A millisecond for each command; in between it answers.
        servers.start(0, &["key-load-delay 1000"]);
        let reading = AtomicUsize::new(0);
        eventually("well", || {
            let health = store.health();
            let reading = &reading;
            async move {
                match health.await {
                    Ok(_) => Some(()),
                    Err(Error::Away(why)) => {
                        let is_reading = why.contains("still reading its file");
                        reading.fetch_add(usize::from(is_reading), Ordering::Relaxed);
                        None
                    }
                    Err(why) => panic!("{why}"),
                }
            }
        })
        .await;
        assert!(reading.into_inner() > 0, "it was never seen reading");
    })
    .await;
}

#[tokio::test]
async fn a_redis_that_hangs_is_given_up() {
    on_kinds(&[], |servers| async move {
        let store = RedisStore::new(
            &Configuration {
                timeout: Duration::from_secs(2),
                fsync: false,
                ..servers.configuration()
            },
            "/",
        )
        .unwrap();
        let message = [kept("orders", "a", Duration::ZERO)];
        store.keep(&message).await.unwrap();
        servers.cli(0, &["client", "pause", "600000", "all"]);
        assert!(matches!(store.keep(&message).await, Err(Error::Away(_))));
        assert!(matches!(store.claim(&all()).await, Err(Error::Away(_))));
        servers.tell("kill", 0, &[]);
        servers.start(0, &[]);
        eventually("well", || async { store.health().await.ok() }).await;
    })
    .await;
}

#[tokio::test]
async fn replicas_that_are_not_there_are_missed() {
    on_kinds(&[], |servers| async move {
        let with = |replicas_fsync| {
            RedisStore::new(
                &Configuration {
                    replicas: 1,
                    replicas_fsync,
                    timeout: Duration::from_secs(3),
                    ..servers.configuration()
                },
                "/",
            )
            .unwrap()
        };
        let message = [kept("orders", "a", Duration::ZERO)];
        for store in [with(true), with(false)] {
            let why = store.keep(&message).await.unwrap_err();
            assert!(
                matches!(&why, Error::NotDurable(why) if why.contains("0 of 1")),
                "{why}"
            );
        }
        let master = servers.address(0);
        let (host, port) = master.split_once(':').unwrap();
        servers.start(1, &[&format!("replicaof {host} {port}")]);
        for store in [with(true), with(false)] {
            // The same value, so that it is stored once whatever became of it before.
            eventually("confirmed by the replica", || async {
                store.keep(&message).await.ok()
            })
            .await;
        }
        assert_eq!(servers.cli(0, &["zcard", "{retryrmq:/}:due"]), "1");
        // A replica itself takes nothing.
        let replica = RedisStore::new(
            &Configuration {
                addresses: vec![servers.address(1)],
                ..servers.configuration()
            },
            "/",
        )
        .unwrap();
        let why = replica.keep(&message).await.unwrap_err();
        assert!(
            matches!(&why, Error::Away(why) if why.contains("is a replica")),
            "{why}"
        );
        // One address of several is enough.
        let either = RedisStore::new(
            &Configuration {
                addresses: vec![
                    "127.0.0.1:1".to_owned(),
                    servers.address(1),
                    servers.address(0),
                ],
                ..servers.configuration()
            },
            "/",
        )
        .unwrap();
        either.keep(&message).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn what_is_known_is_confirmed_only_when_it_is_as_safe_as_what_is_new() {
    on_kinds(&[], |servers| async move {
        let with = |replicas| {
            let configuration = Configuration {
                replicas,
                timeout: Duration::from_secs(3),
                ..servers.configuration()
            };
            RedisStore::new(&configuration, "/").unwrap()
        };
        let master = servers.address(0);
        let (host, port) = master.split_once(':').unwrap();
        servers.start(
            1,
            &[&format!("replicaof {host} {port}"), "repl-timeout 3600"],
        );
        let first = [kept("orders", "first", Duration::ZERO)];
        let strict = with(1);
        eventually("kept on both", || async { strict.keep(&first).await.ok() }).await;
        // The replica takes in nothing more, and the master does not see that yet.
        let pid = std::fs::read_to_string(servers.data(1).join("../pid")).unwrap();
        let pid = pid.split_whitespace().next().unwrap().to_owned();
        let signal = |name: &str| {
            let sent = std::process::Command::new("kill")
                .args([name, &pid])
                .status();
            assert!(sent.unwrap().success());
        };
        signal("-STOP");
        let batch = [kept("orders", "second", Duration::ZERO)];
        with(0).keep(&batch).await.unwrap();
        // The connection that asks now has not written the message.
        for store in [&strict, &with(1)] {
            let why = store.keep(&batch).await.unwrap_err();
            assert!(
                matches!(&why, Error::NotDurable(why) if why.contains("0 of 1")),
                "{why}"
            );
        }
        signal("-CONT");
        eventually("kept on both", || async { strict.keep(&batch).await.ok() }).await;
    })
    .await;
}

#[tokio::test]
async fn logins_are_checked_and_no_password_is_printed() {
    on_kinds(&["requirepass hunter2"], |servers| async move {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        let store = RedisStore::new(
            &Configuration {
                password_file: Some(file.clone()),
                ..servers.configuration()
            },
            "/",
        )
        .unwrap();
        let message = [kept("orders", "a", Duration::ZERO)];
        let why = store.keep(&message).await.unwrap_err();
        assert!(matches!(why, Error::Configuration(_)), "{why}");
        std::fs::write(&file, "hunter3").unwrap();
        let why = store.keep(&message).await.unwrap_err();
        assert!(why.to_string().contains("`password_file`"), "{why}");
        let bare = servers.store();
        let unsaid = bare.keep(&message).await.unwrap_err();
        assert!(unsaid.to_string().contains("`password_file`"), "{unsaid}");
        std::fs::write(&file, "hunter2\n").unwrap();
        store.keep(&message).await.unwrap();
        for said in [why, unsaid] {
            assert!(!format!("{said:?}").contains("hunter"), "{said:?}");
        }
    })
    .await;
}

/// What `docs/redis-store.md` says that a user needs.
const PERMISSIONS: &str = "+eval +waitaof +wait +info +config|get +time +zadd +zrem +zscore +zcard +zrange +hget +hset +hdel \
                           +hexists +hstrlen +hincrby +hgetall +set";

#[tokio::test]
async fn a_user_needs_what_the_documentation_says_and_is_told_what_is_missing() {
    let page = include_str!("../../../docs/redis-store.md").replace('\n', " ");
    assert!(page.contains(PERMISSIONS), "the page says something else");
    let none = "user none on >hunter2 ~{retryrmq:/}:* +info";
    let full = format!("user full on >hunter2 ~{{retryrmq:* {PERMISSIONS}");
    on_kinds(&[none, &full], |servers| async move {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "hunter2").unwrap();
        let user = |name: &str| {
            let configuration = Configuration {
                username: Some(name.to_owned()),
                password_file: Some(file.path().to_owned()),
                appendfsync_always: true,
                ..servers.configuration()
            };
            RedisStore::new(&configuration, "/").unwrap()
        };
        let why = user("none").health().await.unwrap_err();
        assert!(why.to_string().contains("lacks a permission"), "{why}");
        let store = user("full");
        store.health().await.unwrap();
        let batch = many("orders", 3, Duration::ZERO);
        // The second time is of what is known.
        store.keep(&batch).await.unwrap();
        store.keep(&batch).await.unwrap();
        let page = retryrmq_serve::store::Page {
            from: None,
            limit: 9,
            destination: None,
        };
        assert_eq!(store.list(&page).await.unwrap().messages.len(), 3);
        store.find(batch[0].id()).await.unwrap().unwrap();
        store.cancel(batch[0].id()).await.unwrap();
        let due = store.claim(&all()).await.unwrap().due;
        let leases: Vec<_> = due.into_iter().map(|due| due.lease).collect();
        assert_eq!(
            store.release(&leases[..1], Duration::ZERO).await.unwrap(),
            [true]
        );
        assert!(store.extend(&leases[1..]).await.unwrap()[0].is_some());
        store.delete(&leases[..1]).await.unwrap();
        store.count().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn what_is_no_redis_is_refused() {
    // Bound and never read: it takes connections and answers nothing.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let store = RedisStore::new(
        &Configuration {
            addresses: vec![silent.local_addr().unwrap().to_string()],
            timeout: Duration::from_millis(200),
            ..Configuration::default()
        },
        "/",
    )
    .unwrap();
    assert!(matches!(store.health().await, Err(Error::Away(_))));
}
