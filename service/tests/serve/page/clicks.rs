//! The page in a real browser.

use retryrmq_harness::{QueueType, Version, on_brokers_where};

use super::{Visitor, depth, people};
use crate::{
    browser::Browser,
    fixture::{NativeConsumer, Replica, declare, id, policy},
};

#[tokio::test]
async fn in_a_real_browser_somebody_replays_with_clicks_and_nothing_is_wider_than_a_phone() {
    on_brokers_where(|broker| broker.version() >= Version::V4_3, |broker| async move {
        let Some(mut browser) = Browser::start().await else {
            eprintln!("skipped: there is no Chromium here (apt-get install chromium)");
            return;
        };
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let folder = tempfile::tempdir().unwrap();
        let rules = "[defaults]\nrejected = \"park\"\n\n[[rules]]\nqueue = \"mail.*\"\nretry = \"fixed(10m)\"\n";
        let file = policy(&people(folder.path(), rules));
        let replica = Replica::start(&vhost, Some(file.path())).await;
        for queue in ["orders", "mail.out"] {
            declare(&amqp, queue, QueueType::Quorum, true).await;
        }
        let handled = |seen: &crate::fixture::Seen| {
            let headers = seen.properties.headers().as_ref();
            headers.is_some_and(|headers| headers.inner().contains_key("x-retry-replays"))
        };
        let orders = NativeConsumer::start(&vhost, "orders", handled).await;
        let mails = NativeConsumer::start(&vhost, "mail.out", |_| false).await;
        for number in 0..12 {
            let body = format!(r#"{{"order": {number}, "customer": {{"id": 7, "name": "Ann"}}, "token": "t"}}"#);
            amqp.publish_with("orders", body, id(&format!("order-4711-{number}"))).await;
            amqp.publish_with("mail.out", "Hello", id(&format!("mail-{number}"))).await;
        }
        let mut ada = Visitor::with_token(&replica, "ada-0123456789abcdef").await;
        ada.sees("/queues/orders", &["<b>12</b> parked"]).await;
        ada.sees("/queues/mail.out", &["<b>12</b> waiting"]).await;
        let base = format!("http://{}", replica.address());
        browser.looks(1_200, "light").await;
        browser.goes_to(&base).await;
        browser.sees("Your token").await;
        browser.focuses("token").await;
        browser.picture("sign-in").await;
        browser.clicks("#token").await;
        browser.types("ada-0123456789abcdef").await;
        browser.enters().await;
        browser.sees("orders").await;
        // A link on another site leads to the page, not to signing in once more.
        let link = format!("data:text/html,<a id=there href={base}/queues/mail.out?a=b>there</a>");
        browser.goes_to(&link).await;
        browser.sees("there").await;
        browser.clicks("#there").await;
        browser.sees("12 waiting").await;
        assert_eq!(browser.value("location.search").await, "?a=b");
        browser.goes_to(&base).await;
        browser.sees("orders").await;
        let mut shown = vec![("queues", base.clone())];
        browser.clicks("a[href='/queues/orders']").await;
        browser.sees("12 parked").await;
        browser.clicks("a.card").await;
        browser.sees("order-4711-3").await;
        let url = |value: serde_json::Value| value.as_str().unwrap().to_owned();
        shown.push(("queue", format!("{base}/queues/orders")));
        shown.push(("group", url(browser.value("location.href").await)));
        shown.push(("waiting", format!("{base}/waiting")));
        browser.clicks("td a").await;
        browser.sees("customer").await;
        shown.push(("parked", url(browser.value("location.href").await)));
        for (width, scheme) in [(1_200, "light"), (1_200, "dark"), (390, "light"), (390, "dark")] {
            browser.looks(width, scheme).await;
            for (name, address) in &shown {
                browser.goes_to(address).await;
                browser.sees("Waiting").await;
                browser.picture(&format!("{name}-{width}-{scheme}")).await;
                let wide = browser.value("document.documentElement.scrollWidth").await;
                assert!(wide.as_u64().unwrap() <= u64::from(width), "{name} is {wide} wide on {width}");
                let scripts = browser.value("document.scripts.length").await;
                assert_eq!(scripts, 0);
            }
        }
        browser.looks(390, "light").await;
        browser.goes_to(&shown[2].1).await;
        browser.sees("order-4711-3").await;
        for place in [1, 2] {
            browser.clicks(&format!("tr:nth-child({place}) input[type=checkbox]")).await;
        }
        browser.clicks("button[value=replay]").await;
        browser.sees("Replay 2 messages?").await;
        browser.picture("confirm").await;
        // The button has the focus.
        browser.focuses("do").await;
        browser.enters().await;
        browser.sees("replayed to orders").await;
        browser.sees("done").await;
        browser.picture("job").await;
        depth(&amqp, "orders.parked", 10).await;
        // Nobody drops messages by pressing Enter once more.
        browser.goes_to(&shown[2].1).await;
        browser.sees("Drop…").await;
        browser.clicks("button[value=drop]").await;
        browser.sees("Drop 10 messages?").await;
        assert_eq!(browser.value("document.activeElement.tagName").await, "BODY");
        for _ in 0..2 {
            browser.enters().await;
        }
        browser.sees("Drop 10 messages?").await;
        browser.clicks("#do").await;
        browser.sees("done").await;
        depth(&amqp, "orders.parked", 0).await;
        drop((orders, mails));
        assert!(replica.end().await.success());
    })
    .await;
}
