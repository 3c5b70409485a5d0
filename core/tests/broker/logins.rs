//! Logins that change while a program runs.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use retryrmq::{Client, ClientOptions, Credentials, ErrorKind, Login, RunningConsumer};
use retryrmq_harness::{Permissions, Vhost, eventually, on_brokers};

use crate::fixture::{DEADLINE, Observations, QUEUE, start};

/// A user of this vhost, who is gone with it.
struct User {
    name: String,
}

impl User {
    async fn new(vhost: &Vhost, password: &str) -> Self {
        let name = format!("{}-maria", vhost.name());
        let user = Self { name };
        user.set_password(vhost, password).await;
        vhost
            .broker()
            .management()
            .set_permissions(vhost.name(), &user.name, Permissions::ALL)
            .await
            .unwrap();
        user
    }

    async fn set_password(&self, vhost: &Vhost, password: &str) {
        let management = vhost.broker().management();
        management
            .create_user(&self.name, password, "")
            .await
            .unwrap();
    }
}

/// Somebody who is logged in with the password `old`, and consumes.
async fn consuming(vhost: &Vhost) -> (User, Client, Observations, RunningConsumer) {
    let user = User::new(vhost, "old").await;
    let url = vhost.url_as(&user.name, "old");
    let client = Client::connect(&url).await.unwrap();
    let observations = Observations::default();
    let running = start(client.consumer(QUEUE).dlx(true), &observations, |_| Ok(())).await;
    (user, client, observations, running)
}

/// Has the broker close what a user has open.
pub(crate) async fn cut(vhost: &Vhost) {
    cut_for(vhost, "").await;
}

/// Those of it that are for this.
async fn cut_for(vhost: &Vhost, purpose: &str) {
    let management = vhost.broker().management();
    let all = eventually(DEADLINE, "the connections are known", || async {
        let mut known = management.connections(vhost.name()).await.unwrap();
        known.retain(|connection| connection.client_name.is_some());
        (known.len() >= 2).then_some(known)
    })
    .await;
    for connection in all {
        if connection
            .client_name
            .is_some_and(|name| name.contains(purpose))
        {
            let _ = management.close_connection(&connection.name).await;
        }
    }
}

fn file(vhost: &Vhost, content: &str) -> PathBuf {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-secret", vhost.name()));
    std::fs::write(&file, content).unwrap();
    file
}

/// Events come a moment before the client says so itself.
async fn until_refused(client: &Client) {
    eventually(DEADLINE, "the client is refused", || async {
        match client.health() {
            Err(why) if why.kind() == ErrorKind::AuthenticationFailed => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

async fn until_healthy(client: &Client) {
    eventually(DEADLINE, "the client is back", || async { client.health() }).await;
}

#[tokio::test]
async fn a_password_that_was_changed_is_told_and_not_tried_in_silence() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let (user, client, observations, running) = consuming(&vhost).await;
        user.set_password(&vhost, "new").await;
        cut(&vhost).await;
        let told = observations.event("login_refused").await;
        let said = told.fields().error.unwrap_or_default().to_owned();
        assert!(said.contains(&user.name) && !said.contains("old"), "{said}");
        until_refused(&client).await;
        user.set_password(&vhost, "old").await;
        observations.event("reconnected").await;
        until_healthy(&client).await;
        let told = observations.event_names();
        let refusals = told.iter().filter(|name| **name == "login_refused");
        assert_eq!(refusals.count(), 1, "once an outage: {told:?}");
        running.close().await;
    })
    .await;
}

#[tokio::test]
async fn a_refusal_of_the_connection_that_copies_go_out_on_is_told_by_itself() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let (user, client, observations, running) = consuming(&vhost).await;
        user.set_password(&vhost, "new").await;
        cut_for(&vhost, "(publish)").await;
        observations.event("login_refused").await;
        assert!(
            !observations.event_names().contains(&"disconnected"),
            "it consumes all the time"
        );
        user.set_password(&vhost, "old").await;
        until_healthy(&client).await;
        running.close().await;
    })
    .await;
}

#[tokio::test]
async fn a_consumer_that_needs_a_new_connection_tells_that_it_is_refused_though_the_old_ones_are_open()
 {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let (user, client, observations, running) = consuming(&vhost).await;
        let amqp = vhost.connect().await;
        user.set_password(&vhost, "new").await;
        amqp.delete(QUEUE).await;
        observations.event("login_refused").await;
        until_refused(&client).await;
        user.set_password(&vhost, "old").await;
        observations.event("reconnected").await;
        until_healthy(&client).await;
        running.close().await;
    })
    .await;
}

#[tokio::test]
async fn a_login_that_is_too_large_is_not_waited_for() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let options = ClientOptions::new()
            .credentials(Credentials::new(|| async {
                Ok::<_, std::io::Error>(Login::new("guest", "x".repeat(20_000)))
            }))
            .wait(true);
        let why = Client::connect_with(vhost.url(), options)
            .await
            .unwrap_err();
        assert_eq!(why.kind(), ErrorKind::AuthenticationFailed, "{why}");
        assert!(!why.to_string().contains("xxx"), "{why}");
    })
    .await;
}

#[tokio::test]
async fn a_client_may_end_when_it_is_refused() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let user = User::new(&vhost, "old").await;
        let options = ClientOptions::new().end_when_refused(true);
        let url = vhost.url_as(&user.name, "old");
        let client = Client::connect_with(&url, options).await.unwrap();
        let consumer = client.consumer(QUEUE).dlx(true);
        let run = tokio::spawn(consumer.run(|_| async { Ok::<(), std::io::Error>(()) }));
        let amqp = vhost.connect().await;
        eventually(DEADLINE, "it consumes", || async {
            (amqp.consumers(QUEUE).await == Some(1)).then_some(())
        })
        .await;
        amqp.close().await;
        user.set_password(&vhost, "new").await;
        cut(&vhost).await;
        let why = run.await.unwrap().unwrap_err();
        assert_eq!(why.kind(), ErrorKind::AuthenticationFailed);
    })
    .await;
}

fn in_file(url: &str, file: &Path) -> String {
    format!("{url}?passwordfile={}", file.display())
}

#[tokio::test]
async fn a_password_in_a_file_is_read_at_every_connection() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let user = User::new(&vhost, "old").await;
        let secret = file(&vhost, "old\n");
        let url = in_file(&vhost.url_as(&user.name, "unused"), &secret);
        let client = Client::connect(&url).await.unwrap();
        let observations = Observations::default();
        let running = start(client.consumer(QUEUE).dlx(true), &observations, |_| Ok(())).await;
        user.set_password(&vhost, "new").await;
        std::fs::write(&secret, "new").unwrap();
        cut(&vhost).await;
        observations.event("reconnected").await;
        until_healthy(&client).await;
        assert!(!observations.event_names().contains(&"login_refused"));
        running.close().await;
        client.close().await;
        std::fs::remove_file(&secret).unwrap();
        let why = Client::connect(&url).await.unwrap_err();
        assert_eq!(why.kind(), ErrorKind::AuthenticationFailed);
        assert!(why.to_string().contains("-secret"), "{why}");
    })
    .await;
}

/// An open connection keeps its user, whatever secret it is given.
#[tokio::test]
async fn credentials_of_another_user_are_told_and_do_not_pass_for_a_renewal() {
    crate::log_capture::start();
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let user = User::new(&vhost, "one").await;
        let leases = [
            Login::new(user.name.clone(), "one").expires_in(Duration::from_secs(4)),
            Login::new(format!("{}-other", vhost.name()), "other")
                .expires_in(Duration::from_secs(3_600)),
        ];
        let other = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let now = Arc::clone(&other);
        let credentials = Credentials::new(move || {
            let other = now.load(std::sync::atomic::Ordering::SeqCst);
            let login = leases[usize::from(other)].clone();
            async move { Ok::<_, std::io::Error>(login) }
        });
        let options = ClientOptions::new().credentials(credentials);
        let client = Client::connect_with(vhost.url(), options).await.unwrap();
        other.store(true, std::sync::atomic::Ordering::SeqCst);
        eventually(DEADLINE, "the other user is told of", || async {
            let lines = crate::log_capture::lines();
            let told = lines
                .iter()
                .filter(|line| line.contains("another user's") && line.contains(&user.name));
            (told.count() == 2).then_some(())
        })
        .await;
        client.close().await;
    })
    .await;
}

#[tokio::test]
async fn a_function_is_asked_at_every_connection() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let user = User::new(&vhost, "old").await;
        let password = Arc::new(Mutex::new("old"));
        let (name, current) = (user.name.clone(), Arc::clone(&password));
        let credentials = Credentials::new(move || {
            let login = Login::new(name.clone(), *current.lock().unwrap());
            async move { Ok::<_, std::io::Error>(login) }
        });
        let options = ClientOptions::new().credentials(credentials);
        *password.lock().unwrap() = "wr0ng";
        let why = Client::connect_with(vhost.url(), options.clone()).await;
        let why = why.unwrap_err().to_string();
        assert!(why.contains(&user.name), "not who the URL names: {why}");
        *password.lock().unwrap() = "old";
        let client = Client::connect_with(vhost.url(), options).await.unwrap();
        let observations = Observations::default();
        let running = start(client.consumer(QUEUE).dlx(true), &observations, |_| Ok(())).await;
        user.set_password(&vhost, "new").await;
        *password.lock().unwrap() = "new";
        cut(&vhost).await;
        observations.event("reconnected").await;
        until_healthy(&client).await;
        running.close().await;
    })
    .await;
}

/// Whoever gives a token may want to be asked again long before that ends.
#[tokio::test]
async fn a_token_that_is_given_again_before_its_end_is_not_over() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        // Its end is in the year 5138. To this broker it is a password.
        let token = "e30.eyJleHAiOjk5OTk5OTk5OTk5fQ.c2ln";
        let user = User::new(&vhost, token).await;
        let name = user.name.clone();
        let credentials = Credentials::new(move || {
            let login = Login::new(name.clone(), token).expires_in(Duration::from_secs(4));
            async move { Ok::<_, std::io::Error>(login) }
        });
        let options = ClientOptions::new().credentials(credentials);
        let client = Client::connect_with(vhost.url(), options).await.unwrap();
        let until = std::time::Instant::now() + Duration::from_secs(10);
        while std::time::Instant::now() < until {
            client.health().unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        client.close().await;
    })
    .await;
}
