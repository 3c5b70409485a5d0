//! Getting in, and being told clearly why not.

use std::{fmt::Debug, time::Duration};

use retryrmq::{Address, Client, ClientOptions, Error, ErrorKind, Publish};
use retryrmq_harness::{
    Broker, CutProxy, Permissions, eventually, free_port, on_brokers, on_brokers_where,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::{fixture::DEADLINE, log_capture};

/// The sentence of a refusal, which must be of this kind.
#[track_caller]
pub(crate) fn refused<T: Debug>(result: Result<T, Error>, kind: ErrorKind) -> String {
    let error = result.expect_err("this should have been refused");
    assert_eq!(error.kind(), kind, "{error:?}");
    let sentence = error.to_string();
    assert!(!sentence.contains("Error("), "not for people: {sentence}");
    sentence
}

/// A port on which each connection is handled so.
pub(crate) async fn server<F, Fut>(handle: F) -> u16
where
    F: Fn(TcpStream) -> Fut + Send + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(handle(stream));
        }
    });
    port
}

pub(crate) fn host_and_port(broker: &Broker) -> String {
    let url = broker.url();
    let (_, rest) = url.split_once('@').unwrap();
    rest.split('/').next().unwrap().to_owned()
}

#[tokio::test]
async fn a_url_without_a_vhost_means_the_vhost_slash() {
    on_brokers(|broker| async move {
        let at = host_and_port(&broker);
        for path in ["", "/", "/%2f", "/%2F?heartbeat=10"] {
            let client = Client::connect(&format!("amqp://guest:guest@{at}{path}")).await;
            let client = client.unwrap_or_else(|error| panic!("{path}: {error}"));
            assert_eq!(client.server().product, "RabbitMQ");
            assert_eq!(client.server().version, broker.version().to_string());
            client.close().await;
            let closed = client.publish(Publish::to_queue("q", "x")).await;
            assert_eq!(closed.unwrap_err().kind(), ErrorKind::Closed);
        }
    })
    .await;
}

#[tokio::test]
async fn a_wrong_login_is_told_as_such() {
    on_brokers(|broker| async move {
        let at = host_and_port(&broker);
        let url = format!("amqp://guest:wr0ng-pass@{at}/%2f");
        let why = refused(Client::connect(&url).await, ErrorKind::AuthenticationFailed);
        assert!(why.contains("`guest`") && why.contains(&at), "{why}");
        let url = format!("amqp://nobody:x@{at}/%2f");
        let why = refused(Client::connect(&url).await, ErrorKind::AuthenticationFailed);
        assert!(why.contains("`nobody`"), "{why}");
    })
    .await;
}

#[tokio::test]
async fn an_unknown_or_forbidden_vhost_is_named() {
    on_brokers(|broker| async move {
        let at = host_and_port(&broker);
        let url = format!("amqp://guest:guest@{at}/no-such%2fplace");
        let why = refused(Client::connect(&url).await, ErrorKind::VhostNotFound);
        assert!(
            why.contains("no-such/place") && why.contains("%2f"),
            "{why}"
        );
        let vhost = broker.vhost().await;
        let management = broker.management();
        let user = format!("{}-stranger", vhost.name());
        management.create_user(&user, "pw", "").await.unwrap();
        let result = Client::connect(&vhost.url_as(&user, "pw")).await;
        management.delete_user(&user).await.unwrap();
        let why = refused(result, ErrorKind::VhostNotFound);
        assert!(
            why.contains(vhost.name()) && why.contains("access"),
            "{why}"
        );
    })
    .await;
}

/// A node takes connections before it has all its virtual hosts, and one of them may be down alone.
#[tokio::test]
async fn a_virtual_host_that_is_down_is_waited_for() {
    on_brokers_where(Broker::is_controllable, |broker| async move {
        let vhost = broker.vhost().await;
        let stop = format!(
            "rabbit_vhost_sup_sup:delete_on_all_nodes(<<\"{}\">>).",
            vhost.name()
        );
        broker.ctl(&["eval", &stop]).await;
        let why = refused(Client::connect(vhost.url()).await, ErrorKind::Unreachable);
        assert!(why.contains("is down"), "{why}");
        let waits = ClientOptions::new().wait(true);
        let (url, came) = (vhost.url().to_owned(), Duration::from_secs(120));
        let client = tokio::spawn(async move { Client::connect_with(&url, waits).await });
        broker.ctl(&["restart_vhost", "-p", vhost.name()]).await;
        let client = tokio::time::timeout(came, client).await.unwrap().unwrap();
        client.unwrap().close().await;
    })
    .await;
}

#[tokio::test]
async fn nothing_listens() {
    let port = free_port();
    for host in ["127.0.0.1", "localhost"] {
        let result = Client::connect(&format!("amqp://guest:guest@{host}:{port}")).await;
        let why = refused(result, ErrorKind::Unreachable);
        assert!(why.contains(&format!("{host}:{port}")), "{why}");
    }
    let why = refused(
        Client::connect("amqp://guest:guest@no-such-host.invalid").await,
        ErrorKind::Unreachable,
    );
    assert!(why.contains("no-such-host.invalid:5672"), "{why}");
}

#[tokio::test]
async fn an_ipv6_host_is_a_host() {
    let address: Address = "amqp://u:p@[::1]:5673/v".parse().unwrap();
    assert_eq!(address.to_string(), "amqp://u@[::1]:5673/v");
    // The brokers of the tests listen on 127.0.0.1; a proxy makes one of them reachable by IPv6, where there is any.
    let Ok(listener) = TcpListener::bind("[::1]:0").await else {
        return eprintln!("skipped: this machine has no IPv6");
    };
    let port = listener.local_addr().unwrap().port();
    let broker = retryrmq_harness::brokers().remove(0);
    let target = host_and_port(&broker);
    let proxy = tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut broker = TcpStream::connect(&target).await.unwrap();
            tokio::spawn(async move {
                let _ = tokio::io::copy_bidirectional(&mut client, &mut broker).await;
            });
        }
    });
    let url = format!("amqp://guest:guest@[::1]:{port}");
    Client::connect(&url).await.unwrap().close().await;
    proxy.abort();
    let _ = proxy.await; // and with it the listener
    let why = refused(Client::connect(&url).await, ErrorKind::Unreachable);
    assert!(why.contains(&format!("[::1]:{port}")), "{why}");
}

#[tokio::test]
async fn what_answers_is_not_amqp() {
    let port = server(|mut stream| async move {
        let mut request = [0; 8];
        let _ = stream.read_exact(&mut request).await;
        let _ = stream
            .write_all(
                b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            )
            .await;
    })
    .await;
    let url = format!("amqp://guest:guest@127.0.0.1:{port}");
    let why = refused(Client::connect(&url).await, ErrorKind::Unreachable);
    assert!(why.contains("AMQP"), "{why}");

    let port = server(|stream| async move { drop(stream) }).await;
    let url = format!("amqp://guest:guest@127.0.0.1:{port}");
    let why = refused(Client::connect(&url).await, ErrorKind::Unreachable);
    assert!(why.contains(&port.to_string()), "{why}");
}

#[tokio::test]
async fn the_management_port_is_not_the_amqp_port() {
    on_brokers(|broker| async move {
        let overview = broker.management().overview().await.unwrap();
        let listeners = overview["listeners"].as_array().unwrap();
        let http = listeners
            .iter()
            .find(|listener| listener["protocol"] == "http")
            .and_then(|listener| listener["port"].as_u64());
        let Some(port) = http else {
            return eprintln!("skipped: {broker} does not tell its management port");
        };
        if TcpStream::connect(("127.0.0.1", port as u16))
            .await
            .is_err()
        {
            return eprintln!("skipped: the management port of {broker} is not reachable as such");
        }
        let url = format!("amqp://guest:guest@127.0.0.1:{port}?connection_timeout=3000");
        // This HTTP server waits for the rest of what it takes for a request.
        let why = refused(Client::connect(&url).await, ErrorKind::Timeout);
        assert!(why.contains("AMQP"), "{why}");
    })
    .await;
}

#[tokio::test]
async fn a_server_that_says_nothing_is_not_waited_for_for_ever() {
    let port = server(|stream| async move {
        tokio::time::sleep(DEADLINE).await;
        drop(stream);
    })
    .await;
    for scheme in ["amqp", "amqps"] {
        let url = format!("{scheme}://guest:guest@127.0.0.1:{port}?connection_timeout=300");
        let why = refused(Client::connect(&url).await, ErrorKind::Timeout);
        assert!(why.contains(&format!("127.0.0.1:{port}")), "{why}");
    }
}

#[tokio::test]
async fn the_heartbeat_of_the_url_is_the_connections() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let url = format!("{}?heartbeat=7&name=beating", vhost.url());
        let _client = Client::connect(&url).await.unwrap();
        eventually(DEADLINE, "both connections beat every 7 s", || async {
            let all = broker.management().connections(vhost.name()).await.unwrap();
            let beating = all.iter().filter(|one| {
                one.raw["timeout"] == 7
                    && one
                        .client_name
                        .as_deref()
                        .is_some_and(|name| name.starts_with("beating ("))
            });
            match beating.count() {
                2 => Ok(()),
                other => Err(format!("{other} of {}", all.len())),
            }
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn no_password_is_told_to_anybody() {
    log_capture::start();
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let management = broker.management();
        let user = format!("{}-maria", vhost.name());
        // As it is, as it stands in a URL, and its beginning, which nothing escapes.
        let password = "t0p:s3cret/@ä";
        let secrets = [password, "t0p%3As3cret", "t0p"];
        management.create_user(&user, password, "").await.unwrap();
        management
            .set_permissions(vhost.name(), &user, Permissions::ALL)
            .await
            .unwrap();
        let url = vhost.url_as(&user, password);
        assert!(url.contains("t0p"), "the URL holds what is looked for");

        let mut told: Vec<String> = Vec::new();
        let client = Client::connect(&url).await.unwrap();
        told.push(format!("{client:?}"));
        let consumer = client.consumer("orders").dlx(true);
        told.push(format!("{consumer:?} {:?}", consumer.plan()));
        let subscription = consumer.subscribe().await.unwrap();
        told.push(format!("{subscription:?} {:?}", client.parked("orders")));
        told.push(format!(
            "{:?}",
            client.parked("orders").browse().await.unwrap()
        ));
        told.push(client.metrics_text());
        let unroutable = client.publish(Publish::to_queue("nowhere", "x")).await;
        told.push(format!("{unroutable:?}"));
        client.close().await;

        let wrong = [
            url.replace("t0p", "t0p-and-wrong"),
            format!("{}/nowhere", url.rsplit_once('/').unwrap().0),
            url.replace("amqp://", "amqps://"),
            url.replace("amqp://", "http://"),
            format!("{url}?colour=red"),
            format!("{url}/and/more"),
            url.replace('@', "@[::1"),
            url.replace("amqp://", ""),
            url.replace(&host_and_port(&broker), "127.0.0.1:1"),
        ];
        for url in wrong {
            let error = Client::connect(&url).await.unwrap_err();
            let mut cause: Option<&dyn std::error::Error> = Some(&error);
            while let Some(error) = cause {
                told.push(format!("{error} {error:?}"));
                cause = error.source();
            }
        }
        management.delete_user(&user).await.unwrap();
        let lines = log_capture::lines();
        assert!(
            lines.iter().any(|line| line.contains(&user)),
            "our log was taken down"
        );
        for text in told.iter().chain(&lines) {
            for secret in secrets {
                assert!(!text.contains(secret), "a password is told: {text}");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn no_log_of_the_client_below_holds_the_password() {
    log_capture::start();
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let management = broker.management();
        let (user, password) = (format!("{}-hushed", vhost.name()), "sotto-voce-".repeat(4));
        management.create_user(&user, &password, "").await.unwrap();
        management
            .set_permissions(vhost.name(), &user, Permissions::ALL)
            .await
            .unwrap();
        let watch = log_capture::Watch::for_password(&password);
        let proxy = CutProxy::to(&vhost.url_as(&user, &password)).await;
        let client = Client::connect(proxy.url()).await.unwrap();
        proxy.cut();
        eventually(DEADLINE, "both connections are back", || async {
            client.reconnects() >= 2
        })
        .await;
        client.close().await;
        let url = vhost.url_as(&user, &format!("{password}-wrong"));
        refused(Client::connect(&url).await, ErrorKind::AuthenticationFailed);
        management.delete_user(&user).await.unwrap();
        let leaks = watch.leaks();
        assert!(leaks.is_empty(), "{} lines: {}", leaks.len(), leaks[0]);
    })
    .await;
}

#[tokio::test]
async fn a_broker_that_comes_and_goes_while_connecting_leaves_no_connection_behind() {
    // Half a greeting, then silence: the worst moment, because lapin waits on.
    let port = server(|mut stream| async move {
        let mut request = [0; 8];
        let _ = stream.read_exact(&mut request).await;
        let _ = stream.write_all(&[1, 0, 0, 0, 0, 1]).await;
        // Ends when the client has hung up, which it must.
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(30), stream.read_to_end(&mut rest));
        HUNG_UP.store(ended.await.is_ok(), std::sync::atomic::Ordering::SeqCst);
    })
    .await;
    let url = format!("amqp://guest:guest@127.0.0.1:{port}?connection_timeout=300");
    refused(Client::connect(&url).await, ErrorKind::Timeout);
    eventually(DEADLINE, "the client hangs up", || async {
        HUNG_UP.load(std::sync::atomic::Ordering::SeqCst)
    })
    .await;
}

static HUNG_UP: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// Two connections, each lost, not yet back, and back; however many consumers hang from them, and however often it is tried.
const LINES_OF_AN_OUTAGE: usize = 8;

#[tokio::test]
async fn an_outage_is_a_few_lines_in_the_log_whatever_the_number_of_consumers() {
    log_capture::start();
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let proxy = CutProxy::to(vhost.url()).await;
        let client = Client::connect(proxy.url()).await.unwrap();
        let queue = |number: usize| format!("{}-{number}", vhost.name());
        let mut consumers = Vec::new();
        for number in 0..5 {
            let consumer = client.consumer(queue(number)).dlx(true);
            consumers.push(
                consumer
                    .start(|_| async { Ok::<(), Error>(()) })
                    .await
                    .unwrap(),
            );
        }
        let (_, rest) = proxy.url().split_once('@').unwrap();
        let port = rest.split('/').next().unwrap().to_owned();
        let mine = |line: &String| {
            let heard = ["INFO", "WARN", "ERROR"]
                .iter()
                .any(|level| line.contains(level));
            heard && (line.contains(&port) || line.contains(vhost.name()))
        };
        let before = log_capture::lines()
            .iter()
            .filter(|line| mine(line))
            .count();
        proxy.refuse();
        proxy.cut();
        let accepted = proxy.accepted();
        eventually(DEADLINE, "six tries in vain", || async {
            let tries = proxy.accepted() - accepted;
            (tries >= 6).then_some(()).ok_or(format!("{tries} tries"))
        })
        .await;
        proxy.resume();
        let amqp = vhost.connect().await;
        eventually(DEADLINE, "all consume again", || async {
            for number in 0..5 {
                let there = amqp.consumers(&queue(number)).await;
                if there != Some(1) {
                    return Err(format!("{number}: {there:?}"));
                }
            }
            Ok(())
        })
        .await;
        let lines: Vec<_> = log_capture::lines()
            .into_iter()
            .filter(mine)
            .skip(before)
            .collect();
        let lost = lines.iter().filter(|line| line.contains("connection lost"));
        assert_eq!(lost.count(), 2, "{}", lines.join("\n"));
        assert!(lines.len() <= LINES_OF_AN_OUTAGE, "{}", lines.join("\n"));
        drop(consumers);
        client.close().await;
    })
    .await;
}
