//! A single waiting message can be listed and cancelled.

use std::time::Duration;

use retryrmq_serve::store::{CancelResult, Destination, Id, Page, Position, Store, TakeResult};

use crate::{
    message_drafts::{all, kept, many},
    server::on_kinds,
};

const HOUR: Duration = Duration::from_secs(3_600);

fn page(from: Option<Position>, limit: usize, destination: Option<&str>) -> Page {
    Page {
        from,
        limit,
        destination: destination.map(|name| Destination::Queue(name.to_owned())),
    }
}

#[tokio::test]
async fn what_waits_is_listed_by_time_page_by_page() {
    on_kinds(&[], |servers| async move {
        let store = servers.store();
        let empty = store.list(&page(None, 10, None)).await.unwrap();
        assert!(empty.messages.is_empty() && empty.next.is_none() && empty.total == 0);
        let batch: Vec<_> = (0..25)
            .rev()
            .map(|hour| {
                kept(
                    if hour % 5 == 0 { "rare" } else { "orders" },
                    &format!("{hour}"),
                    HOUR * hour,
                )
            })
            .collect();
        store.keep(&batch).await.unwrap();
        let mut hours = Vec::new();
        let mut from = None;
        loop {
            let listing = store.list(&page(from, 10, None)).await.unwrap();
            assert_eq!(listing.total, 25);
            for one in &listing.messages {
                assert!(one.message.draft().body.is_empty(), "bodies are left out");
                assert!(one.body_size == 1 || one.body_size == 2);
                assert!(!one.claimed);
                hours.push(one.message.draft().delay.as_secs() / 3_600);
            }
            from = listing.next;
            if from.is_none() {
                break;
            }
        }
        assert_eq!(hours, (0..25).collect::<Vec<_>>());
        let rare = store.list(&page(None, 3, Some("rare"))).await.unwrap();
        let hours: Vec<_> = rare
            .messages
            .iter()
            .map(|one| one.message.draft().delay.as_secs() / 3_600)
            .collect();
        assert_eq!(hours, [0, 5, 10]);
        let further = store.list(&page(rare.next, 3, Some("rare"))).await.unwrap();
        assert_eq!(further.messages.len(), 2, "15 and 20");
    })
    .await;
}

#[tokio::test]
async fn what_goes_while_it_is_listed_hides_nothing_behind_it() {
    on_kinds(&[], |servers| async move {
        let store = servers.store();
        let batch: Vec<_> = (1..=30)
            .map(|hour| kept("orders", &format!("{hour}"), HOUR * hour))
            .collect();
        store.keep(&batch).await.unwrap();
        let mut hours = Vec::new();
        let (mut from, mut all_goes) = (None, false);
        loop {
            let listing = store.list(&page(from, 10, None)).await.unwrap();
            for one in &listing.messages {
                hours.push(one.message.draft().delay.as_secs() / 3_600);
            }
            // First all but the last one, after which the next page begins, then that one, too.
            let shown = listing.messages.len();
            for one in &listing.messages[..shown - usize::from(!all_goes)] {
                let cancelled = store.cancel(one.message.id()).await.unwrap();
                assert_eq!(cancelled, CancelResult::Done);
            }
            // And one more comes before all others.
            let early = kept("orders", "early", HOUR / 2);
            store.keep(&[early]).await.unwrap();
            all_goes = true;
            from = listing.next;
            if from.is_none() {
                break;
            }
        }
        assert_eq!(hours, (1..=30).collect::<Vec<_>>());
    })
    .await;
}

#[tokio::test]
async fn one_is_found_whole_and_cancelled() {
    on_kinds(&[], |servers| async move {
        let store = servers.store();
        let batch = many("orders", 3, HOUR);
        store.keep(&batch).await.unwrap();
        let id = batch[1].id();
        let found = store.find(id).await.unwrap().unwrap();
        assert_eq!(found.message.draft().body, b"1");
        assert!(found.remaining <= HOUR && found.remaining > HOUR / 2);
        assert_eq!(found.body_size, 1);
        assert_eq!(store.cancel(id).await.unwrap(), CancelResult::Done);
        assert_eq!(store.cancel(id).await.unwrap(), CancelResult::Unknown);
        assert!(store.find(id).await.unwrap().is_none());
        assert_eq!(
            store.count().await.unwrap(),
            [(Destination::Queue("orders".to_owned()), 2)]
        );
        let stranger = Id::parse(&format!("{}{}", "A".repeat(22), ".AAAAAAAA")).unwrap();
        assert_eq!(
            store.cancel(&stranger).await.unwrap(),
            CancelResult::Unknown
        );
    })
    .await;
}

#[tokio::test]
async fn what_is_being_published_is_not_cancelled() {
    on_kinds(&[], |servers| async move {
        let store = servers.store();
        let batch = many("orders", 1, Duration::ZERO);
        store.keep(&batch).await.unwrap();
        let due = store.claim(&all()).await.unwrap().due.remove(0);
        assert_eq!(
            store.cancel(batch[0].id()).await.unwrap(),
            CancelResult::TooLate
        );
        assert!(store.list(&page(None, 1, None)).await.unwrap().messages[0].claimed);
        store.release(&[due.lease], HOUR).await.unwrap();
        assert_eq!(
            store.cancel(batch[0].id()).await.unwrap(),
            CancelResult::Done
        );
    })
    .await;
}

#[tokio::test]
async fn one_is_taken_before_it_is_due_by_one_alone_and_can_be_given_back() {
    on_kinds(&[], |servers| async move {
        let store = servers.store();
        let batch = many("orders", 2, HOUR);
        store.keep(&batch).await.unwrap();
        let id = batch[0].id();
        let taken = store.take(id).await.unwrap();
        let TakeResult::Taken {
            message,
            lease,
            remaining,
        } = taken
        else {
            panic!("{taken:?}");
        };
        assert_eq!(message.draft().body, b"0");
        assert!(remaining <= HOUR && remaining > HOUR / 2);
        assert!(matches!(store.take(id).await.unwrap(), TakeResult::TooLate));
        assert_eq!(
            store
                .hasten(&[id.clone(), batch[1].id().clone()])
                .await
                .unwrap(),
            [CancelResult::TooLate, CancelResult::Done]
        );
        let due = store.claim(&all()).await.unwrap().due;
        let due: Vec<_> = due.iter().map(|due| due.message.id()).collect();
        assert_eq!(
            due,
            [batch[1].id()],
            "nobody else gets the one that is taken"
        );
        let leases = [lease];
        assert_eq!(store.release(&leases, remaining).await.unwrap(), [true]);
        let found = store.find(id).await.unwrap().unwrap();
        assert!(!found.claimed && found.remaining > HOUR / 2, "{found:?}");
        let TakeResult::Taken { lease, .. } = store.take(id).await.unwrap() else {
            panic!("it was given back");
        };
        assert_eq!(store.delete(&leases).await.unwrap(), [false]);
        assert_eq!(store.delete(&[lease]).await.unwrap(), [true]);
        assert!(matches!(store.take(id).await.unwrap(), TakeResult::Unknown));
        assert_eq!(
            store.hasten(std::slice::from_ref(id)).await.unwrap(),
            [CancelResult::Unknown]
        );
    })
    .await;
}
