//! A single waiting message can be listed and cancelled.

use std::time::Duration;

use retryrmq_serve::store::{Cancelled, Id, Line, Page, Store};

use crate::{
    drafts::{all, kept, many},
    server::on_every_kind,
};

const HOUR: Duration = Duration::from_secs(3_600);

fn page(from: u64, limit: usize, line: Option<&str>) -> Page {
    Page {
        from,
        limit,
        line: line.map(|name| Line::Queue(name.to_owned())),
    }
}

#[tokio::test]
async fn what_waits_is_listed_by_time_page_by_page() {
    on_every_kind(&[], |servers| async move {
        let store = servers.store();
        let empty = store.list(&page(0, 10, None)).await.unwrap();
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
        let mut from = Some(0);
        while let Some(at) = from {
            let listing = store.list(&page(at, 10, None)).await.unwrap();
            assert_eq!(listing.total, 25);
            for one in &listing.messages {
                assert!(one.message.draft().body.is_empty(), "bodies are left out");
                assert!(one.body_size == 1 || one.body_size == 2);
                assert!(!one.claimed);
                hours.push(one.message.draft().delay.as_secs() / 3_600);
            }
            from = listing.next;
        }
        assert_eq!(hours, (0..25).collect::<Vec<_>>());
        let rare = store.list(&page(0, 3, Some("rare"))).await.unwrap();
        let hours: Vec<_> = rare
            .messages
            .iter()
            .map(|one| one.message.draft().delay.as_secs() / 3_600)
            .collect();
        assert_eq!(hours, [0, 5, 10]);
        assert_eq!(rare.next, Some(11));
    })
    .await;
}

#[tokio::test]
async fn one_is_found_whole_and_cancelled() {
    on_every_kind(&[], |servers| async move {
        let store = servers.store();
        let batch = many("orders", 3, HOUR);
        store.keep(&batch).await.unwrap();
        let id = batch[1].id();
        let found = store.find(id).await.unwrap().unwrap();
        assert_eq!(found.message.draft().body, b"1");
        assert!(found.remaining <= HOUR && found.remaining > HOUR / 2);
        assert_eq!(found.body_size, 1);
        assert_eq!(store.cancel(id).await.unwrap(), Cancelled::Done);
        assert_eq!(store.cancel(id).await.unwrap(), Cancelled::Unknown);
        assert!(store.find(id).await.unwrap().is_none());
        assert_eq!(
            store.count().await.unwrap(),
            [(Line::Queue("orders".to_owned()), 2)]
        );
        let stranger = Id::parse(&format!("{}{}", "A".repeat(22), ".AAAAAAAA")).unwrap();
        assert_eq!(store.cancel(&stranger).await.unwrap(), Cancelled::Unknown);
    })
    .await;
}

#[tokio::test]
async fn what_is_being_published_is_not_cancelled() {
    on_every_kind(&[], |servers| async move {
        let store = servers.store();
        let batch = many("orders", 1, Duration::ZERO);
        store.keep(&batch).await.unwrap();
        let due = store.claim(&all()).await.unwrap().due.remove(0);
        assert_eq!(
            store.cancel(batch[0].id()).await.unwrap(),
            Cancelled::TooLate
        );
        assert!(store.list(&page(0, 1, None)).await.unwrap().messages[0].claimed);
        store.release(&[due.lease], HOUR).await.unwrap();
        assert_eq!(store.cancel(batch[0].id()).await.unwrap(), Cancelled::Done);
    })
    .await;
}
