//! Leases: who has a message, for how long, and what holds others back.

use std::{collections::HashSet, time::Duration};

use retryrmq_serve::store::{ClaimRequest, Destination, Exclusion, Store};

use crate::{
    message_drafts::{all, kept, many},
    server::{eventually, on_kinds},
};

#[tokio::test]
async fn no_two_replicas_have_one_message() {
    on_kinds(&[], |servers| async move {
        let (one, other) = (servers.store(), servers.store());
        one.keep(&many("orders", 2_000, Duration::ZERO))
            .await
            .unwrap();
        let few = ClaimRequest { limit: 37, ..all() };
        let mut seen = HashSet::new();
        loop {
            let (mine, yours) = tokio::join!(one.claim(&few), other.claim(&few));
            let (mine, yours) = (mine.unwrap(), yours.unwrap());
            if mine.due.is_empty() && yours.due.is_empty() {
                break;
            }
            for due in mine.due.iter().chain(&yours.due) {
                assert!(seen.insert(due.lease.id.clone()), "{due:?}");
            }
        }
        assert_eq!(seen.len(), 2_000);
    })
    .await;
}

#[tokio::test]
async fn what_a_dead_replica_had_is_due_again_and_its_lease_is_worth_nothing() {
    on_kinds(&[], |servers| async move {
        let (dead, alive) = (
            servers.store_of_leases(Duration::from_secs(5)),
            servers.store(),
        );
        dead.keep(&many("orders", 3, Duration::ZERO)).await.unwrap();
        let lost = dead.claim(&all()).await.unwrap();
        assert_eq!(lost.due.len(), 3);
        let first = alive.claim(&all()).await.unwrap();
        assert!(first.due.is_empty() && first.next.is_some());
        let found = eventually("due again", || async {
            let claim = alive.claim(&all()).await.unwrap();
            (claim.due.len() == 3).then_some(claim.due)
        })
        .await;
        assert!(found.iter().all(|due| due.again));
        // It was not dead, only slow.
        let old: Vec<_> = lost.due.iter().map(|due| due.lease.clone()).collect();
        assert_eq!(dead.delete(&old).await.unwrap(), [false; 3]);
        assert_eq!(dead.extend(&old).await.unwrap(), [None, None, None]);
        assert_eq!(
            dead.release(&old, Duration::ZERO).await.unwrap(),
            [false; 3]
        );
        let new: Vec<_> = found.iter().map(|due| due.lease.clone()).collect();
        assert_eq!(alive.delete(&new).await.unwrap(), [true; 3]);
        assert_eq!(
            alive.delete(&new).await.unwrap(),
            [false; 3],
            "they are gone"
        );
    })
    .await;
}

#[tokio::test]
async fn a_lease_is_extended_and_the_old_one_ends() {
    on_kinds(&[], |servers| async move {
        let store = servers.store();
        store
            .keep(&many("orders", 1, Duration::ZERO))
            .await
            .unwrap();
        let old = store.claim(&all()).await.unwrap().due.remove(0).lease;
        // Its end is told in milliseconds.
        let new = eventually("a later end", || async {
            let new = store
                .extend(std::slice::from_ref(&old))
                .await
                .unwrap()
                .remove(0);
            match new {
                Some(new) if new != old => Some(new),
                _ => None,
            }
        })
        .await;
        assert_eq!(store.delete(&[old, new]).await.unwrap(), [false, true]);
    })
    .await;
}

#[tokio::test]
async fn what_is_given_back_is_due_after_the_pause() {
    on_kinds(&[], |servers| async move {
        let store = servers.store();
        store
            .keep(&many("orders", 2, Duration::ZERO))
            .await
            .unwrap();
        let due = store.claim(&all()).await.unwrap().due;
        let leases: Vec<_> = due.into_iter().map(|due| due.lease).collect();
        let hour = Duration::from_secs(3_600);
        assert_eq!(store.release(&leases[..1], hour).await.unwrap(), [true]);
        assert_eq!(
            store.release(&leases[1..], Duration::ZERO).await.unwrap(),
            [true]
        );
        let claim = store.claim(&all()).await.unwrap();
        assert_eq!(claim.due.len(), 1);
        assert!(
            !claim.due[0].again,
            "it was given back, so it is not out twice"
        );
        assert_eq!(claim.due[0].lease.id, leases[1].id);
        assert!(
            claim.next.unwrap() > Duration::from_secs(20),
            "a lease or the hour"
        );
    })
    .await;
}

#[tokio::test]
async fn a_claim_keeps_to_its_bounds_and_goes_by_time() {
    on_kinds(&[], |servers| async move {
        let store = servers.store();
        let delays = [40, 10, 30, 20].map(Duration::from_millis);
        let batch: Vec<_> = delays
            .iter()
            .map(|delay| kept("orders", &format!("{:0>1000}", delay.as_millis()), *delay))
            .collect();
        store.keep(&batch).await.unwrap();
        eventually("all due", || async {
            let listing = store.list(&page()).await.unwrap();
            listing
                .messages
                .iter()
                .all(|one| one.remaining.is_zero())
                .then_some(())
        })
        .await;
        let claim_request = |limit, bytes| ClaimRequest {
            limit,
            bytes,
            exclusions: Vec::new(),
        };
        let mut order = Vec::new();
        // One by number, one because the bytes are too few for any, two because they suffice for two.
        for (limit, bytes, count) in [(1, 9_999, 1), (9, 10, 1), (9, 2_500, 2)] {
            let claim = store.claim(&claim_request(limit, bytes)).await.unwrap();
            assert_eq!(claim.due.len(), count);
            order.extend(
                claim
                    .due
                    .iter()
                    .map(|due| due.message.draft().delay.as_millis()),
            );
        }
        assert_eq!(order, [10, 20, 30, 40]);
    })
    .await;
}

fn page() -> retryrmq_serve::store::Page {
    retryrmq_serve::store::Page {
        from: None,
        limit: 100,
        destination: None,
    }
}

#[tokio::test]
async fn a_line_on_hold_is_not_in_the_way_of_others() {
    on_kinds(&[], |servers| async move {
        let store = servers.store();
        store
            .keep(&many("gone", 3_000, Duration::ZERO))
            .await
            .unwrap();
        store.keep(&many("fine", 5, Duration::ZERO)).await.unwrap();
        let gone = Destination::Queue("gone".to_owned());
        let claim_request = |pause| ClaimRequest {
            limit: 10,
            bytes: 1 << 20,
            exclusions: vec![Exclusion {
                destination: gone.clone(),
                pause,
            }],
        };
        let claim = store.claim(&claim_request(None)).await.unwrap();
        assert_eq!(claim.due.len(), 5);
        assert!(
            claim
                .due
                .iter()
                .all(|due| due.message.destination() != gone)
        );
        assert!(
            claim.next.unwrap() > Duration::ZERO,
            "what was passed over does not count: {:?}",
            claim.next
        );
        // They stayed where they are.
        assert_eq!(store.claim(&all()).await.unwrap().due.len(), 1_000);
        let hour = Duration::from_secs(3_600);
        let claim = store.claim(&claim_request(Some(hour))).await.unwrap();
        assert!(claim.due.is_empty());
        assert!(
            store.claim(&all()).await.unwrap().due.is_empty(),
            "they were put off"
        );
        assert_eq!(
            store
                .count()
                .await
                .unwrap()
                .iter()
                .map(|(_, count)| count)
                .sum::<u64>(),
            3_005
        );
    })
    .await;
}

#[tokio::test]
async fn a_year_is_not_too_long_and_the_next_is_told() {
    on_kinds(&[], |servers| async move {
        let store = servers.store();
        assert_eq!(store.claim(&all()).await.unwrap().next, None);
        let year = Duration::from_secs(365 * 86_400);
        store.keep(&[kept("orders", "far", year)]).await.unwrap();
        let next = store.claim(&all()).await.unwrap().next.unwrap();
        assert!(
            next <= year && next > year - Duration::from_secs(60),
            "{next:?}"
        );
        store
            .keep(&[kept("orders", "near", Duration::from_secs(90))])
            .await
            .unwrap();
        let next = store.claim(&all()).await.unwrap().next.unwrap();
        assert!(next <= Duration::from_secs(90), "{next:?}");
    })
    .await;
}

#[tokio::test]
async fn what_cannot_be_read_stays_and_hides_nothing() {
    on_kinds(&[], |servers| async move {
        let store = servers.store();
        let batch = many("orders", 3, Duration::ZERO);
        store.keep(&batch).await.unwrap();
        // As a later version might write it: the same bookkeeping, another head.
        let id = batch[1].id().as_str();
        let write =
            r"return redis.call('hset', KEYS[1], ARGV[1], '0000000000001--------\9\0\0\0\2xx')";
        servers.cli(0, &["eval", write, "1", "{retryrmq:/}:kept", id]);
        // And one that has an entry only in the sorted set.
        servers.cli(0, &["hdel", "{retryrmq:/}:kept", batch[2].id().as_str()]);
        assert_eq!(store.list(&page()).await.unwrap().messages.len(), 1);
        let claim = store.claim(&all()).await.unwrap();
        assert_eq!(claim.due.len(), 1);
        let [(lease, why)] = &claim.unreadable[..] else {
            panic!("{claim:?}");
        };
        assert_eq!(lease.id.as_str(), id);
        assert!(why.contains("version 9"), "{why}");
        assert_eq!(servers.cli(0, &["hexists", "{retryrmq:/}:kept", id]), "1");
        assert_eq!(servers.cli(0, &["zcard", "{retryrmq:/}:due"]), "2");
    })
    .await;
}
