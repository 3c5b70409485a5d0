//! Users who may do little: what is missing is told as the pattern to grant, and the least that works is enough.

use retryrmq::{Client, ErrorKind, Publish};
use retryrmq_harness::{Broker, Permissions, QueueType, Version, Vhost, on_every_broker};

use crate::{
    connecting::refused,
    fixture::{Observations, PARKED, QUEUE, connect, id, parked, policy, start},
};

const FAMILY: &str = r"^orders(\.retry\.[0-9]+|\.parked|\.unreadable)?$";
pub(crate) const DEFAULT_EXCHANGE: &str = r"^amq\.default$";
const NOTHING: &str = "^$";

/// A user of its own, who goes with the test.
pub(crate) struct User<'a> {
    vhost: &'a Vhost,
    name: String,
}

impl<'a> User<'a> {
    pub(crate) async fn of(vhost: &'a Vhost) -> User<'a> {
        let name = format!("{}-bob", vhost.name());
        vhost
            .broker()
            .management()
            .create_user(&name, "pw", "")
            .await
            .unwrap();
        User { vhost, name }
    }

    pub(crate) async fn may(&self, configure: &str, write: &str, read: &str) {
        let may = Permissions {
            configure,
            write,
            read,
        };
        let management = self.vhost.broker().management();
        management
            .set_permissions(self.vhost.name(), &self.name, may)
            .await
            .unwrap();
    }

    /// A fresh connection: brokers remember what a channel was allowed.
    pub(crate) async fn client(&self) -> Client {
        Client::connect(&self.vhost.url_as(&self.name, "pw"))
            .await
            .unwrap()
    }

    pub(crate) async fn gone(self) {
        self.vhost
            .broker()
            .management()
            .delete_user(&self.name)
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn what_is_missing_is_told_as_the_pattern_to_grant() {
    on_every_broker(|broker: Broker| async move {
        let vhost = broker.vhost().await;
        let user = User::of(&vhost).await;
        let consumer =
            |client: &Client| client.consumer(QUEUE).dlx(true).retry(policy("fixed(1s)"));
        for (configure, write, read) in [
            (NOTHING, NOTHING, NOTHING),
            (NOTHING, DEFAULT_EXCHANGE, FAMILY),
            (FAMILY, NOTHING, FAMILY),
            (FAMILY, DEFAULT_EXCHANGE, NOTHING),
            (r"^orders$", DEFAULT_EXCHANGE, FAMILY),
        ] {
            user.may(configure, write, read).await;
            let why = refused(
                consumer(&user.client().await).subscribe().await,
                ErrorKind::AccessRefused,
            );
            let place = format!("with {configure} {write} {read}: {why}");
            assert!(why.contains(&format!("`{}`", user.name)), "{place}");
            assert!(why.contains(&format!("`{FAMILY}`")), "{place}");
            assert!(
                why.contains("configure") && why.contains("write"),
                "{place}"
            );
        }
        // Exactly what the sentence asks for is enough.
        user.may(FAMILY, DEFAULT_EXCHANGE, FAMILY).await;
        let client = user.client().await;
        let (observations, amqp) = (Observations::default(), vhost.connect().await);
        let _running = start(
            consumer(&client).retry(policy("fixed(100ms, retries=1)")),
            &observations,
            |_| Err("no".into()),
        )
        .await;
        client
            .publish(Publish::to_queue(QUEUE, "1").message_id("a"))
            .await
            .unwrap();
        observations.until("a", 2).await;
        assert_eq!(parked(&amqp).await.id(), Some("a"));
        user.gone().await;
    })
    .await;
}

#[tokio::test]
async fn what_was_made_beforehand_works_with_read_and_write_alone() {
    on_every_broker(|broker: Broker| async move {
        let vhost = broker.vhost().await;
        let user = User::of(&vhost).await;
        let (owner, amqp) = (connect(&vhost).await, vhost.connect().await);
        let consumer = |client: &Client| {
            client
                .consumer(QUEUE)
                .dlx(true)
                .retry(policy("fixed(100ms, retries=1)"))
                .declare(false)
        };
        owner
            .apply_plan(&consumer(&owner).plan().unwrap())
            .await
            .unwrap();
        user.may(NOTHING, DEFAULT_EXCHANGE, FAMILY).await;
        let client = user.client().await;
        let observations = Observations::default();
        let running = start(consumer(&client), &observations, |_| Err("no".into())).await;
        amqp.publish_with(QUEUE, "1", id("a")).await;
        observations.until("a", 2).await;
        assert_eq!(parked(&amqp).await.id(), Some("a"));
        running.close().await;

        // From 4.3 on even looking at a queue takes a permission on it.
        user.may(NOTHING, DEFAULT_EXCHANGE, "^orders$").await;
        let result = consumer(&user.client().await).subscribe().await;
        if broker.version() >= Version::V4_3 {
            let why = refused(result, ErrorKind::AccessRefused);
            assert!(
                why.contains(&format!("read, or any other permission, on `{FAMILY}`")),
                "{why}"
            );
        } else {
            result.unwrap();
        }
        user.may(NOTHING, DEFAULT_EXCHANGE, NOTHING).await;
        let why = refused(
            consumer(&user.client().await).subscribe().await,
            ErrorKind::AccessRefused,
        );
        assert!(why.contains("read"), "{why}");
        user.gone().await;
    })
    .await;
}

#[tokio::test]
async fn publishing_and_browsing_tell_what_they_lack() {
    on_every_broker(|broker: Broker| async move {
        let vhost = broker.vhost().await;
        let user = User::of(&vhost).await;
        let amqp = vhost.connect().await;
        amqp.declare(PARKED, QueueType::Quorum).await;
        amqp.publish(PARKED, "1").await;
        user.may(NOTHING, "^amq.topic$", "^orders$").await;
        let client = user.client().await;
        let why = refused(
            client.publish(Publish::to_queue(QUEUE, "x")).await,
            ErrorKind::AccessRefused,
        );
        assert!(
            why.contains(&format!("write on `{DEFAULT_EXCHANGE}`")),
            "{why}"
        );
        let why = refused(
            client
                .publish(Publish::to_exchange("amq.direct", "k", "x"))
                .await,
            ErrorKind::AccessRefused,
        );
        assert!(why.contains(r"write on `^amq\.direct$`"), "{why}");
        // The neighbour was not hurt.
        let sent = client.publish(Publish::to_exchange("amq.topic", "k", "x").mandatory(false));
        sent.await.unwrap();
        let browsed = async { client.parked(QUEUE).browse().await?.next().await };
        let why = refused(browsed.await, ErrorKind::AccessRefused);
        // Where each look costs a delivery, the permission to undo that is checked first.
        let missing = match broker.version() >= Version::V4_3 {
            true => "needs read",
            false => "needs write on",
        };
        assert!(why.contains(missing), "{why}");
        user.gone().await;
    })
    .await;
}
