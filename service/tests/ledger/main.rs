//! A ledger of every message of a fleet on a cluster, while somebody kills replicas, nodes and Redis.
//!
//! `make test` keeps them over some hundred messages; `make serve-ledger` over 100 000 (`RETRYRMQ_LEDGER_COUNT`).
#![allow(missing_docs)]

mod cluster;
#[allow(dead_code, reason = "the tests of the service use the rest")]
#[path = "../serve/fixture.rs"]
mod fixture;
mod fleet;
#[allow(dead_code, reason = "the tests of the store use the rest")]
#[path = "../redis/server.rs"]
mod server;

use std::time::{Duration, Instant};

use retryrmq_harness::{Version, brokers};

use crate::{
    cluster::Cluster,
    fixture::{Replica, policy},
    fleet::Fleet,
    server::{Servers, available},
};

/// How many messages.
fn count() -> usize {
    let given = std::env::var("RETRYRMQ_LEDGER_COUNT").ok();
    given.map_or(600, |count| count.parse().expect("a number of messages"))
}

/// How long things are killed at most, for each thousand messages and at least once.
const LONGEST: Duration = Duration::from_secs(900);

/// What is killed while the fleet works.
enum Store {
    Broker,
    /// Redis, with this line in its configuration and this one in the policy.
    Redis(&'static str, &'static str),
}

async fn keep_ledger(store: Store) {
    let brokers = brokers();
    let Some(broker) = brokers
        .iter()
        .rfind(|broker| broker.is_controllable() && broker.version() >= Version::V4_3)
    else {
        eprintln!("skipped: there is no broker of 4.3 or later that may be killed");
        return;
    };
    let (servers, what) = match &store {
        Store::Broker => (None, "the store is the broker".to_owned()),
        Store::Redis(..) if !available() => return,
        Store::Redis(line, _) => {
            let servers = Servers::new("valkey");
            servers.start(0, &[line]);
            (Some(servers), format!("the store is Redis, {line}"))
        }
    };
    let section = match (&store, &servers) {
        (Store::Redis(_, line), Some(servers)) => format!(
            "[store.redis]\naddresses = [\"{}\"]\nlease = \"2s\"\ntimeout = \"3s\"\n{line}\n",
            servers.address(0)
        ),
        _ => String::new(),
    };
    let file = policy(&format!(
        "[defaults]\nretry = \"list(100ms, 300ms)\"\n{section}"
    ));
    let cluster = Cluster::start(broker).await;
    let vhost = cluster.vhost().await;
    let urls = cluster.urls(&vhost);
    let replica = || Replica::start_at(&urls, Some(file.path()), &[]);
    let mut replicas = vec![replica().await, replica().await];
    let fleet = Fleet::start(&vhost, urls.split(',').map(str::to_owned).collect()).await;
    let publishing = fleet.publish(count());

    // Each of them at least once, and again for as long as anything is on its way.
    let mut draws = fastrand::Rng::with_seed(count() as u64);
    let mut kills = [0_u32; 3];
    let (began, longest) = (Instant::now(), LONGEST * (1 + count() as u32 / 1_000));
    for turn in 0.. {
        tokio::time::sleep(Duration::from_millis(draws.u64(500..3_000))).await;
        match turn % 3 {
            0 => {
                let at = draws.usize(..replicas.len());
                replicas.swap_remove(at).kill().await;
                // It comes back to a broker that may be starting.
                replicas.push(replica().await);
            }
            1 => cluster.kill_one(draws.usize(..3)).await,
            _ => {
                let Some(servers) = &servers else { continue };
                servers.tell("kill", 0, &[]);
                tokio::time::sleep(Duration::from_millis(draws.u64(0..1_500))).await;
                servers.start(0, &[]);
            }
        }
        kills[turn % 3] += 1;
        let is_done = publishing.is_finished() && fleet.is_nearly_done();
        // What was parked by mistake never succeeds; what is missing in the end says so.
        if turn >= 2 && (is_done || began.elapsed() > longest) {
            break;
        }
    }
    publishing.await.expect("all is published");
    fleet.settle().await;
    let [replicas_killed, nodes_killed, redis_killed] = kills;
    let what = format!(
        "{what}; {replicas_killed} replicas, {nodes_killed} nodes and {redis_killed} times Redis killed"
    );
    fleet.balance(&what);
    for replica in replicas {
        assert!(replica.end().await.success());
    }
}

#[tokio::test]
async fn nothing_is_lost_of_what_waits_in_the_broker() {
    keep_ledger(Store::Broker).await;
}

#[tokio::test]
async fn nothing_is_lost_of_what_waits_in_redis_that_writes_always() {
    keep_ledger(Store::Redis("appendfsync always", "fsync = true")).await;
}

/// A process that is killed loses nothing that it has written, synced or not; a machine that loses its power would.
#[tokio::test]
#[ignore = "one store more; `make serve-ledger` runs it"]
async fn nothing_is_lost_of_what_waits_in_redis_that_writes_every_second() {
    keep_ledger(Store::Redis("appendfsync everysec", "fsync = false")).await;
}
