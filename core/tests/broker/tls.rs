//! `amqps://`: encrypted or not at all, and only with whom the URL means.

use std::{path::PathBuf, sync::Arc};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use retryrmq::{Client, ErrorKind, Publish};
use retryrmq_harness::{Broker, CutProxy, Direction, QueueType, brokers, eventually, on_brokers};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        RootCertStore, ServerConfig,
        crypto::ring,
        pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
        server::WebPkiClientVerifier,
    },
};

use crate::{
    connecting::refused,
    fixture::{DEADLINE, take},
    log_capture,
};

/// An authority, and what it signed: a server's and a client's certificate, as PEM files.
struct Certificates {
    authority: CertifiedIssuer<'static, KeyPair>,
    name: String,
}

impl Certificates {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        Self {
            authority: CertifiedIssuer::self_signed(params, key).unwrap(),
            name: name.to_owned(),
        }
    }

    fn file(&self, name: &str, content: &str) -> PathBuf {
        let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!(
            "{}-{}-{name}",
            std::process::id(),
            self.name
        ));
        std::fs::write(&file, content).unwrap();
        file
    }

    fn authority_file(&self) -> PathBuf {
        self.file("ca.pem", &self.authority.as_ref().pem())
    }

    fn signed(
        &self,
        names: &[&str],
        usage: ExtendedKeyUsagePurpose,
    ) -> (rcgen::Certificate, KeyPair) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.authority).unwrap(), key)
    }

    /// Certificate and key of a client, as files.
    fn client(&self) -> (PathBuf, PathBuf) {
        let (certificate, key) =
            self.signed(&["client.example"], ExtendedKeyUsagePurpose::ClientAuth);
        (
            self.file("client.pem", &certificate.pem()),
            self.file("client.key", &key.serialize_pem()),
        )
    }

    /// A TLS port before the plain port of the broker; its certificate is for these names.
    async fn before(&self, broker: &Broker, names: &[&str], ask_for_certificate: bool) -> u16 {
        let (certificate, key) = self.signed(names, ExtendedKeyUsagePurpose::ServerAuth);
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = if ask_for_certificate {
            let mut roots = RootCertStore::empty();
            roots.add(self.authority.as_ref().der().clone()).unwrap();
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.unwrap())
        } else {
            builder.with_no_client_auth()
        };
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = builder
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let target = plain_port(broker);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let Ok(mut client) = acceptor.accept(stream).await else {
                        return;
                    };
                    let mut broker = TcpStream::connect(("127.0.0.1", target)).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut broker).await;
                });
            }
        });
        port
    }
}

fn plain_port(broker: &Broker) -> u16 {
    let url: url::Url = broker.url().parse().unwrap();
    url.port().unwrap()
}

#[tokio::test]
async fn with_the_right_authority_everything_works() {
    on_brokers(|broker| async move {
        let Some(tls) = broker.tls() else {
            return eprintln!("skipped: {broker} has no TLS listener that is known");
        };
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare("orders", QueueType::Quorum).await;
        let base = tls.url.trim_end_matches("/%2f").trim_end_matches("/%2F");
        let url = format!(
            "{base}/{}?cacertfile={}",
            vhost.name(),
            tls.authority.display()
        );
        let client = Client::connect(&url).await.unwrap();
        let body = vec![b'x'; 300_000]; // more than a frame, more than a TLS record
        client
            .publish(Publish::to_queue("orders", body.clone()))
            .await
            .unwrap();
        assert_eq!(take(&amqp, "orders", 1).await[0].body, body);
        assert!(format!("{client:?}").contains("amqps://"));
    })
    .await;
}

#[tokio::test]
async fn another_authoritys_certificate_is_refused() {
    on_brokers(|broker| async move {
        let Some(tls) = broker.tls() else {
            return eprintln!("skipped: {broker} has no TLS listener that is known");
        };
        let other = Certificates::new(&format!("other-{}", broker.version())).authority_file();
        let url = format!("{}?cacertfile={}", tls.url, other.display());
        let why = refused(Client::connect(&url).await, ErrorKind::TlsFailed);
        assert!(why.contains("certificate"), "{why}");
        // Nor do the roots of this system know it.
        let error = Client::connect(&tls.url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TlsFailed);
        assert!(
            error
                .to_string()
                .contains("name its CA with ?cacertfile=FILE"),
            "{error}"
        );
    })
    .await;
}

/// A balancer takes connections before its broker does, and `wait` is for that.
#[tokio::test]
async fn a_port_that_hangs_up_during_the_handshake_is_one_that_is_not_there_yet() {
    let file = Certificates::new("hangs-up").authority_file();
    for reads in [false, true] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let hanging_up = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                if reads {
                    let _ = stream.readable().await;
                    let _ = stream.try_read(&mut [0; 4_096]);
                }
            }
        });
        let url = format!(
            "amqps://guest:guest@127.0.0.1:{port}?cacertfile={}",
            file.display()
        );
        let error = Client::connect(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert!(
            error.is_transient() && error.to_string().contains("TLS port"),
            "{error}"
        );
        hanging_up.abort();
    }
}

#[tokio::test]
async fn a_file_without_a_certificate_is_named() {
    let certificates = Certificates::new("files");
    let authority = certificates.authority_file();
    let (certificate, key) = certificates.client();
    let (_, other_key) = Certificates::new("stranger").client();
    let garbage = certificates.file("garbage.pem", "this is no certificate\n");
    let broken = certificates.file(
        "broken.pem",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    );
    let empty = certificates.file("empty.pem", "");
    let missing = garbage.with_extension("missing");
    // Files are read before anything is said to the broker, but after the port was found open.
    let port = plain_port(&brokers()[0]);
    let url = |query: String| format!("amqps://guest:guest@127.0.0.1:{port}?{query}");
    for file in [&garbage, &broken, &empty, &missing, &key] {
        let why = refused(
            Client::connect(&url(format!("cacertfile={}", file.display()))).await,
            ErrorKind::TlsFailed,
        );
        assert!(why.contains(&*file.to_string_lossy()), "{why}");
    }
    for (cert, key) in [
        (&garbage, &key),
        (&certificate, &missing),
        (&certificate, &garbage),
    ] {
        let query = format!(
            "cacertfile={}&certfile={}&keyfile={}",
            authority.display(),
            cert.display(),
            key.display()
        );
        let why = refused(Client::connect(&url(query)).await, ErrorKind::TlsFailed);
        let names = [cert, key].map(|file| why.contains(&*file.to_string_lossy()));
        assert!(names.contains(&true), "{why}");
    }
    let query = format!(
        "cacertfile={}&certfile={}&keyfile={}",
        authority.display(),
        certificate.display(),
        other_key.display()
    );
    let why = refused(Client::connect(&url(query)).await, ErrorKind::TlsFailed);
    assert!(why.contains("fit"), "{why}");
}

#[tokio::test]
async fn tls_to_a_plain_port_fails_and_says_so() {
    on_brokers(|broker| async move {
        let port = plain_port(&broker);
        let ca = Certificates::new(&format!("plain-{}", broker.version())).authority_file();
        let url = format!(
            "amqps://guest:guest@127.0.0.1:{port}?cacertfile={}",
            ca.display()
        );
        let why = refused(Client::connect(&url).await, ErrorKind::TlsFailed);
        assert!(why.contains("amqp://"), "{why}");
    })
    .await;
}

#[tokio::test]
async fn plain_to_a_tls_port_fails_and_says_so() {
    on_brokers(|broker| async move {
        let Some(tls) = broker.tls() else {
            return eprintln!("skipped: {broker} has no TLS listener that is known");
        };
        let url = tls.url.replacen("amqps://", "amqp://", 1);
        let why = refused(Client::connect(&url).await, ErrorKind::Unreachable);
        assert!(why.contains("TLS") || why.contains("AMQP"), "{why}");
    })
    .await;
}

#[tokio::test]
async fn the_name_on_the_certificate_is_checked() {
    let broker = brokers().remove(0);
    let certificates = Certificates::new("names");
    let port = certificates
        .before(&broker, &["rabbit.example"], false)
        .await;
    let ca = certificates.authority_file();
    let url = format!(
        "amqps://guest:guest@127.0.0.1:{port}?cacertfile={}",
        ca.display()
    );
    let why = refused(Client::connect(&url).await, ErrorKind::TlsFailed);
    assert!(why.contains(&format!("127.0.0.1:{port}")), "{why}");
    let named = format!("{url}&server_name_indication=rabbit.example");
    Client::connect(&named).await.unwrap().close().await;
    let named = format!("{url}&server_name_indication=not%20a%20name");
    let why = refused(Client::connect(&named).await, ErrorKind::TlsFailed);
    assert!(why.contains("not a name"), "{why}");
}

#[tokio::test]
async fn a_server_may_ask_for_a_certificate() {
    let broker = brokers().remove(0);
    let certificates = Certificates::new("mutual");
    let port = certificates.before(&broker, &["127.0.0.1"], true).await;
    let ca = certificates.authority_file();
    let url = format!(
        "amqps://guest:guest@127.0.0.1:{port}?cacertfile={}",
        ca.display()
    );
    let (cert, key) = certificates.client();
    let with = |cert: &PathBuf, key: &PathBuf| {
        format!(
            "{url}&certfile={}&keyfile={}",
            cert.display(),
            key.display()
        )
    };
    let client = Client::connect(&with(&cert, &key)).await.unwrap();
    assert_eq!(client.server().product, "RabbitMQ");
    client.close().await;
    let (cert, key) = Certificates::new("impostor").client();
    for url in [url.clone(), with(&cert, &key)] {
        let why = refused(Client::connect(&url).await, ErrorKind::TlsFailed);
        assert!(why.contains("certificate"), "{why}");
    }
}

#[tokio::test]
async fn a_peer_that_stops_reading_is_given_up() {
    log_capture::start();
    on_brokers(|broker| async move {
        let Some(tls) = broker.tls() else {
            return eprintln!("skipped: {broker} has no TLS listener that is known");
        };
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare("orders", QueueType::Classic).await;
        let base = tls.url.trim_end_matches("/%2f").trim_end_matches("/%2F");
        let proxy = CutProxy::to(&format!("{base}/{}", vhost.name())).await;
        let url = format!(
            "{}?cacertfile={}&heartbeat=1",
            proxy.url(),
            tls.authority.display()
        );
        let client = Client::connect(&url).await.unwrap();
        proxy.stall(Direction::Both);
        // More than all buffers on the way hold: what is left to write cannot be written.
        let stuck: Vec<_> = (0..4)
            .map(|_| {
                let client = client.clone();
                let large = Publish::to_queue("orders", vec![b'x'; 16 << 20]);
                tokio::spawn(async move { client.publish(large).await })
            })
            .collect();
        for one in stuck {
            let error = one.await.unwrap().unwrap_err();
            assert!(error.is_transient(), "{error:?}");
        }
        let port = proxy.url().parse::<url::Url>().unwrap().port().unwrap();
        let at = format!("127.0.0.1:{port}/");
        eventually(DEADLINE, "both links know that theirs is lost", || async {
            let lost = |purpose: &str| {
                log_capture::lines().iter().any(|line| {
                    line.contains("connection lost") && line.contains(&at) && line.contains(purpose)
                })
            };
            (lost("publish") && lost("consume"))
                .then_some(())
                .ok_or_else(|| format!("{}, {}", lost("publish"), lost("consume")))
        })
        .await;
        proxy.resume();
        eventually(DEADLINE, "it publishes again", || async {
            client.publish(Publish::to_queue("orders", "y")).await
        })
        .await;
        client.close().await;
    })
    .await;
}
