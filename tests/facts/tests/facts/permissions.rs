//! What a user needs to be allowed for what the core does, and what a broker says when it is not.

use lapin::options::{BasicPublishOptions, QueueDeclareOptions};
use lapin::{Connection, Result};
use retryrmq_facts::*;
use retryrmq_harness::{Amqp, Permissions, QueueType, Version, Vhost, on_every_broker};

/// Fact 34.
#[tokio::test]
async fn these_permissions_are_enough_to_retry_and_park() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        vhost
            .connect()
            .await
            .declare("work", QueueType::Quorum)
            .await;
        let own = r"^work(\.retry\.[0-9]+|\.parked|\.unreadable)$";
        let read = r"^work(\.retry\.[0-9]+|\.parked|\.unreadable)?$";
        let user = User::new(&vhost, own, r"^amq\.default$", read).await;
        let amqp = user.connect().await;
        let wait = wait_queue(QueueType::Quorum, 50, "work");
        amqp.declare_with("work.retry.50", QueueType::Quorum, wait)
            .await;
        amqp.declare("work.parked", QueueType::Quorum).await;
        amqp.publish("work.retry.50", "").await;
        hold(amqp.channel(), "work")
            .await
            .ack(Default::default())
            .await
            .unwrap();
        user.delete().await;
    })
    .await;
}

/// Fact 34.
#[tokio::test]
async fn making_a_queue_with_a_dead_letter_route_takes_three_permissions_and_declaring_it_again_one()
 {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let admin = vhost.connect().await;
        let wait = wait_queue(QueueType::Quorum, 60_000, "work");
        let queue = format!("queue 'wait' in vhost '{}'", vhost.name());
        let exchange = format!("exchange 'amq.default' in vhost '{}'", vhost.name());
        for (configure, write, read, right, thing) in [
            ("^$", ".*", ".*", "configure", &queue),
            (".*", ".*", "^$", "read", &queue),
            (".*", "^wait$", ".*", "write", &exchange),
        ] {
            let user = User::new(&vhost, configure, write, read).await;
            let amqp = user.connect().await;
            let refused = amqp
                .try_declare_with("wait", QueueType::Quorum, wait.clone())
                .await;
            assert_eq!(refusal(refused), (403, denied(&vhost, right, thing, &user)));
            user.delete().await;
        }
        admin
            .declare_with("wait", QueueType::Quorum, wait.clone())
            .await;
        let user = User::new(&vhost, "^wait$", "^$", "^$").await;
        user.connect()
            .await
            .declare_with("wait", QueueType::Quorum, wait)
            .await;
        user.delete().await;
    })
    .await;
}

/// Fact 34.
#[tokio::test]
async fn publishing_to_a_queue_takes_write_on_the_default_exchange_and_nothing_else() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        vhost
            .connect()
            .await
            .declare("work", QueueType::Quorum)
            .await;
        let user = User::new(&vhost, "^$", "^work$", "^$").await;
        let amqp = user.connect().await;
        let options = BasicPublishOptions {
            mandatory: true,
            ..Default::default()
        };
        let publish = amqp.channel().basic_publish(
            "".into(),
            "work".into(),
            options,
            b"",
            Default::default(),
        );
        let refused = refusal(publish.await.unwrap().await);
        let exchange = format!("exchange 'amq.default' in vhost '{}'", vhost.name());
        assert_eq!(refused, (403, denied(&vhost, "write", &exchange, &user)));
        closed(amqp.channel()).await;
        user.delete().await;

        let user = User::new(&vhost, "^$", r"^amq\.default$", "^$").await;
        user.connect().await.publish("work", "").await;
        user.delete().await;
    })
    .await;
}

/// Fact 34.
#[tokio::test]
async fn consuming_takes_read() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        vhost
            .connect()
            .await
            .declare("work", QueueType::Quorum)
            .await;
        let user = User::new(&vhost, ".*", ".*", "^$").await;
        let amqp = user.connect().await;
        let channel = amqp.new_channel().await;
        let consumed = channel
            .basic_consume("work".into(), "".into(), Default::default(), table([]))
            .await;
        let queue = format!("queue 'work' in vhost '{}'", vhost.name());
        assert_eq!(
            refusal(consumed),
            (403, denied(&vhost, "read", &queue, &user))
        );
        closed(&channel).await;
        user.delete().await;
    })
    .await;
}

/// Fact 35. On 4.3 even "does it exist?" may be refused, and then also for a queue that does not exist.
#[tokio::test]
async fn looking_at_a_queue_takes_any_one_permission_since_4_3() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        vhost
            .connect()
            .await
            .declare("work", QueueType::Quorum)
            .await;
        let new = broker.version() >= Version::V4_3;
        for (configure, write, read) in [("^w", "^$", "^$"), ("^$", "^w", "^$"), ("^$", "^$", "^w")]
        {
            let user = User::new(&vhost, configure, write, read).await;
            look(user.connect().await.connection(), "work")
                .await
                .unwrap();
            user.delete().await;
        }
        let user = User::new(&vhost, "^$", "^$", "^$").await;
        let amqp = user.connect().await;
        let (there, missing) = (
            look(amqp.connection(), "work").await,
            look(amqp.connection(), "missing").await,
        );
        if new {
            for (answer, name) in [(there, "work"), (missing, "missing")] {
                let queue = format!("queue '{name}' in vhost '{}'", vhost.name());
                assert_eq!(
                    refusal(answer),
                    (403, denied(&vhost, "configure", &queue, &user))
                );
            }
        } else {
            there.unwrap();
            assert_eq!(code(missing), 404);
        }
        user.delete().await;
    })
    .await;
}

/// Fact 36.
#[tokio::test]
async fn who_may_not_come_in_is_told_so_in_these_words() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let user = User::new(&vhost, ".*", ".*", ".*").await;
        let login = "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. \
                     For details see the broker logfile.";
        for name in [&*user.name, "nobody-of-this-name"] {
            let refused = Amqp::try_connect(&url(&vhost, name, "wrong", vhost.name())).await;
            assert_eq!(refusal(refused), (403, login.to_owned()));
        }
        let refused = Amqp::try_connect(&url(&vhost, &user.name, "secret", "no-such-vhost")).await;
        assert_eq!(
            refusal(refused),
            (
                530,
                "NOT_ALLOWED - vhost no-such-vhost not found".to_owned()
            )
        );
        let other = broker.vhost().await;
        let refused = Amqp::try_connect(&url(&vhost, &user.name, "secret", other.name())).await;
        let text = format!(
            "NOT_ALLOWED - access to vhost '{}' refused for user '{}'",
            other.name(),
            user.name
        );
        assert_eq!(refusal(refused), (530, text));
        user.delete().await;
    })
    .await;
}

/// A user of one vhost, with these permissions there.
struct User<'a> {
    vhost: &'a Vhost,
    name: String,
}

impl<'a> User<'a> {
    async fn new(vhost: &'a Vhost, configure: &str, write: &str, read: &str) -> Self {
        let management = vhost.broker().management();
        let name = format!("user-of-{}", vhost.name());
        management.create_user(&name, "secret", "").await.unwrap();
        let may = Permissions {
            configure,
            write,
            read,
        };
        management
            .set_permissions(vhost.name(), &name, may)
            .await
            .unwrap();
        User { vhost, name }
    }

    async fn connect(&self) -> Amqp {
        Amqp::connect(&url(self.vhost, &self.name, "secret", self.vhost.name())).await
    }

    async fn delete(self) {
        self.vhost
            .broker()
            .management()
            .delete_user(&self.name)
            .await
            .unwrap();
    }
}

fn url(vhost: &Vhost, user: &str, password: &str, name: &str) -> String {
    let (_, place) = vhost.url().split_once('@').unwrap();
    let (authority, _) = place.split_once('/').unwrap();
    format!("amqp://{user}:{password}@{authority}/{name}")
}

/// The words in which something is denied: 4.x says which right is missing.
fn denied(vhost: &Vhost, right: &str, thing: &str, user: &User<'_>) -> String {
    let right = if vhost.broker().version() < Version::V4_0 {
        String::new()
    } else {
        format!("{right} ")
    };
    format!(
        "ACCESS_REFUSED - {right}access to {thing} refused for user '{}'",
        user.name
    )
}

async fn look(connection: &Connection, queue: &str) -> Result<()> {
    let channel = connection.create_channel().await?;
    let passive = QueueDeclareOptions {
        passive: true,
        ..Default::default()
    };
    let seen = channel
        .queue_declare(queue.into(), passive, table([]))
        .await
        .map(drop);
    if seen.is_err() {
        closed(&channel).await;
    }
    seen
}
