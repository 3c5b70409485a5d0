//! OAuth 2 tokens and client certificates, at brokers that ask for them.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use retryrmq::{Client, ErrorKind, Message, Publish};
use retryrmq_harness::{Broker, Node, eventually, on_brokers_where};
use ring::hmac;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    connecting::{host_and_port, refused},
    fixture::{DEADLINE, Observations, QUEUE, start},
};

const KEY: &[u8] = b"a key that is known to this test and its broker alone";
/// How long a token is good for that is to be renewed. A quarter of it is for late answers.
const LIFETIME: Duration = Duration::from_secs(40);
/// How long one is good for that is to end.
const SHORT: Duration = Duration::from_secs(30);

fn encoded(value: &Value) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(value.to_string())
}

fn token(lifetime: Duration) -> String {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let head = json!({"alg": "HS256", "kid": "k1", "typ": "JWT"});
    let claims = json!({
        "aud": ["rabbitmq"],
        "sub": "orders-service",
        "exp": (now + lifetime).as_secs(),
        "scope": ["rabbitmq.configure:*/*", "rabbitmq.read:*/*", "rabbitmq.write:*/*"],
    });
    let signed = format!("{}.{}", encoded(&head), encoded(&claims));
    let key = hmac::Key::new(hmac::HMAC_SHA256, KEY);
    let signature = hmac::sign(&key, signed.as_bytes());
    format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
}

/// A node that takes tokens.
async fn node(broker: &Broker) -> Node {
    let node = broker
        .own_node(&[
            "plugins = rabbitmq_auth_backend_oauth2",
            "auth_backends.1 = rabbit_auth_backend_oauth2",
            "auth_backends.2 = internal",
            "auth_oauth2.resource_server_id = rabbitmq",
        ])
        .await;
    let key = json!({"kty": "oct", "alg": "HS256", "k": BASE64_URL_SAFE_NO_PAD.encode(KEY)});
    node.ctl(&["add_uaa_key", "k1", &format!("--json={key}")])
        .await;
    node
}

fn file(node: &Node, content: &str) -> PathBuf {
    let name = host_and_port(node).replace(':', "-");
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("{}-{name}-token", std::process::id()));
    std::fs::write(&file, content).unwrap();
    file
}

/// The URL of a node for whoever logs in with the token in a file.
fn url(node: &Node, file: &Path) -> String {
    let at = host_and_port(node);
    format!("amqp://token@{at}/%2f?passwordfile={}", file.display())
}

#[tokio::test]
async fn a_token_is_renewed_before_it_ends() {
    on_brokers_where(Broker::is_controllable, |broker| async move {
        let node = node(&broker).await;
        let secret = file(&node, &token(LIFETIME));
        let url = |file: &Path| url(&node, file);
        let fresh = {
            let secret = secret.clone();
            tokio::spawn(async move {
                loop {
                    sleep(LIFETIME / 8).await;
                    // Whoever reads meanwhile finds the one or the other.
                    let next = secret.with_extension("next");
                    std::fs::write(&next, token(LIFETIME)).unwrap();
                    std::fs::rename(&next, &secret).unwrap();
                }
            })
        };
        let client = Client::connect(&url(&secret)).await.unwrap();
        let handled = Arc::new(Mutex::new(BTreeSet::new()));
        let seen = Arc::clone(&handled);
        let running = client
            .consumer(QUEUE)
            .dlx(true)
            .start(move |message: Message| {
                let id = String::from_utf8_lossy(message.body()).into_owned();
                seen.lock().unwrap().insert(id);
                async { Ok::<(), std::io::Error>(()) }
            })
            .await
            .unwrap();
        // For longer than two tokens live.
        for number in 0..=2 * LIFETIME.as_secs() {
            let text = format!("{number:02}");
            client
                .publish(Publish::to_queue(QUEUE, text.clone()))
                .await
                .unwrap_or_else(|error| panic!("{number}: {error}"));
            eventually(DEADLINE, &format!("{number} is handled"), || async {
                handled.lock().unwrap().contains(&text).then_some(())
            })
            .await;
            sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(client.reconnects(), 0, "the connections stayed open");
        fresh.abort();
        running.close().await;
        client.close().await;
        std::fs::write(&secret, "no.real.token").unwrap();
        refused(
            Client::connect(&url(&secret)).await,
            ErrorKind::AuthenticationFailed,
        );
        std::fs::remove_file(&secret).unwrap();
    })
    .await;
}

/// RabbitMQ closes a connection over a secret that it does not take, and what handlers hold comes again.
#[tokio::test]
async fn a_token_that_the_broker_would_refuse_costs_no_open_connection() {
    on_brokers_where(Broker::is_controllable, |broker| async move {
        // An eighth of it must be long enough for a busy machine to try the whole token.
        let lifetime = LIFETIME * 2;
        let node = node(&broker).await;
        let secret = file(&node, &token(lifetime));
        let url = url(&node, &secret);
        let client = Client::connect(&url).await.unwrap();
        let next = token(lifetime * 100);
        // Torn where nothing but the signature is short of anything.
        std::fs::write(&secret, &next[..next.len() - 7]).unwrap();
        sleep(lifetime * 7 / 8).await;
        std::fs::write(&secret, &next).unwrap();
        sleep(lifetime).await;
        client.health().unwrap();
        assert_eq!(client.reconnects(), 0, "the connections stayed open");
        client.close().await;
        std::fs::write(&secret, token(Duration::ZERO)).unwrap();
        let why = refused(Client::connect(&url).await, ErrorKind::AuthenticationFailed);
        assert!(why.contains("the token has expired"), "{why}");
        std::fs::remove_file(&secret).unwrap();
    })
    .await;
}

/// RabbitMQ 3.10 leaves the connection open, and refuses what is done on it.
#[tokio::test]
async fn a_token_that_is_over_shows_in_the_health() {
    on_brokers_where(Broker::is_controllable, |broker| async move {
        let node = node(&broker).await;
        let secret = file(&node, &token(SHORT));
        let url = url(&node, &secret);
        let client = Client::connect(&url).await.unwrap();
        client.health().unwrap();
        eventually(DEADLINE, "the token is over", || async {
            match client.health() {
                Err(error) if error.kind() == ErrorKind::AuthenticationFailed => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        // On newer versions one connection is closed before the other.
        eventually(DEADLINE, "both are shown to be down", || async {
            let text = client.metrics_text();
            let down = |purpose| format!("retryrmq_connection_up{{purpose=\"{purpose}\"}} 0");
            match text.contains(&down("consume")) && text.contains(&down("publish")) {
                true => Ok(()),
                false => Err(text),
            }
        })
        .await;
        std::fs::write(&secret, token(LIFETIME * 100)).unwrap();
        eventually(DEADLINE, "there is another token", || async {
            client.health().map_err(|error| error.to_string())
        })
        .await;
        client.close().await;
        std::fs::remove_file(&secret).unwrap();
    })
    .await;
}

/// RabbitMQ 3.10 leaves the other connection open, which has nothing to tell.
#[tokio::test]
async fn a_token_that_is_over_is_told_when_no_copy_can_go_out() {
    on_brokers_where(Broker::is_controllable, |broker| async move {
        let node = node(&broker).await;
        let secret = file(&node, &token(SHORT));
        let url = format!("{}&name=over", url(&node, &secret));
        let client = Client::connect(&url).await.unwrap();
        let observations = Observations::default();
        let running = start(client.consumer(QUEUE).dlx(true), &observations, |_| Ok(())).await;
        eventually(DEADLINE, "the token is over", || async {
            client.health().is_err().then_some(())
        })
        .await;
        for open in node.management().connections("/").await.unwrap() {
            if open.client_name.as_deref() == Some("over (publish)") {
                let _ = node.management().close_connection(&open.name).await;
            }
        }
        observations.event("login_refused").await;
        running.close().await;
        client.close().await;
        std::fs::remove_file(&secret).unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_certificate_says_who_it_is() {
    let with_tls = |broker: &Broker| broker.is_controllable() && broker.tls().is_some();
    on_brokers_where(with_tls, |broker| async move {
        let node = broker
            .own_node(&[
                "plugins = rabbitmq_auth_mechanism_ssl",
                "auth_mechanisms.1 = EXTERNAL",
                "auth_mechanisms.2 = PLAIN",
                "ssl_cert_login_from = common_name",
            ])
            .await;
        let tls = node.tls().expect("as its broker");
        let certificates = tls.authority.parent().unwrap();
        let url = format!(
            "{}?cacertfile={}&certfile={}&keyfile={}&auth_mechanism=external",
            tls.url.replacen("guest:guest@", "", 1),
            tls.authority.display(),
            certificates.join("client.pem").display(),
            certificates.join("client.key").display()
        );
        let why = refused(Client::connect(&url).await, ErrorKind::AuthenticationFailed);
        assert!(why.contains("certificate"), "{why}");
        node.ctl(&["add_user", "retryrmq-client", "unused"]).await;
        node.ctl(&["set_permissions", "retryrmq-client", ".*", ".*", ".*"])
            .await;
        let client = Client::connect(&url).await.unwrap();
        let observations = Observations::default();
        let running = start(client.consumer(QUEUE).dlx(true), &observations, |_| Ok(())).await;
        client
            .publish(Publish::to_queue(QUEUE, "x").message_id("one"))
            .await
            .unwrap();
        observations.until("one", 1).await;
        running.close().await;
    })
    .await;
}
