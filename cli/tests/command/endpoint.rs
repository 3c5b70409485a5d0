//! HTTP servers for `consume --http`: one that answers as a message's body says, over HTTP/1.1, HTTP/2 and TLS, and one that
//! answers with any bytes.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::{Request, State},
    http::{HeaderMap, Version},
    response::Response,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use retryrmq_harness::eventually;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Notify,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::ring,
        pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
    },
    server::TlsStream,
};

use crate::fixture::DEADLINE;

/// A request that came.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) version: Version,
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    #[track_caller]
    pub(crate) fn json(&self, name: &str) -> Value {
        serde_json::from_str(self.header(name).unwrap()).unwrap()
    }
}

#[derive(Default)]
struct Shared {
    seen: Mutex<Vec<Seen>>,
    /// What held requests wait for.
    go_on: Notify,
}

/// Answers as the body says: `{"status": 500, "headers": {"name": "value"}, "body": "text", "hold": true}`, or 200. The text
/// `$authorization` in it is the request's. Ends when it is dropped.
pub(crate) struct Endpoint {
    address: SocketAddr,
    scheme: &'static str,
    shared: Arc<Shared>,
    serving: tokio::task::JoinHandle<()>,
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Endpoint {
    pub(crate) async fn new() -> Self {
        Self::at("127.0.0.1:0").await
    }

    pub(crate) async fn at(address: &str) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        let router = router(&shared);
        let serving = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self {
            address,
            scheme: "http",
            shared,
            serving,
        }
    }

    /// With a certificate for `localhost` by this authority.
    pub(crate) async fn with_tls(authority: &Authority) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        let router = router(&shared);
        let listener = Tls {
            listener,
            acceptor: authority.acceptor(),
        };
        let serving = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self {
            address,
            scheme: "https",
            shared,
            serving,
        }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        let host = if self.scheme == "https" {
            "localhost"
        } else {
            "127.0.0.1"
        };
        format!("{}://{host}:{}{path}", self.scheme, self.address.port())
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().clone()
    }

    pub(crate) async fn has_seen(&self, count: usize) {
        eventually(DEADLINE, &format!("{count} requests"), || async {
            let seen = self.seen().len();
            (seen >= count).then_some(()).ok_or(seen)
        })
        .await;
    }

    /// Lets those that are held be answered.
    pub(crate) fn go_on(&self) {
        self.shared.go_on.notify_waiters();
    }
}

fn router(shared: &Arc<Shared>) -> Router {
    Router::new()
        .fallback(answer)
        .with_state(Arc::clone(shared))
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap_or_default();
    let wanted: Value = serde_json::from_slice(&body).unwrap_or_default();
    // A batch is answered as its first message says.
    let wanted = match (&wanted[0]["body"], &wanted[0]["data"]) {
        (Value::String(first), _) => serde_json::from_str(first).unwrap_or_default(),
        (_, Value::Object(_)) => wanted[0]["data"].clone(),
        _ => wanted,
    };
    let login = parts.headers.get("authorization").cloned();
    let path = parts.uri.path().to_owned();
    let go_on = shared.go_on.notified();
    shared.seen.lock().unwrap().push(Seen {
        version: parts.version,
        path: path.clone(),
        headers: parts.headers,
        body: body.to_vec(),
    });
    if wanted["hold"] == true {
        go_on.await;
    }
    // Where a redirect has led, all is well.
    let status = match path.as_str() {
        "/moved" => 200,
        _ => wanted["status"].as_u64().unwrap_or(200),
    };
    let mut response = Response::builder().status(u16::try_from(status).unwrap());
    if let Some(headers) = wanted["headers"].as_object() {
        for (name, value) in headers {
            response = response.header(name, value.as_str().unwrap());
        }
    }
    let login = login.map_or_else(String::new, |login| login.to_str().unwrap().to_owned());
    let text = wanted["body"].as_str().unwrap_or_default();
    response
        .body(Body::from(text.replace("$authorization", &login)))
        .unwrap()
}

/// Who signs certificates, for this test alone.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    pub(crate) fn pem(&self) -> String {
        self.0.as_ref().pem()
    }

    fn acceptor(&self) -> TlsAcceptor {
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        TlsAcceptor::from(Arc::new(config))
    }
}

struct Tls {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl axum::serve::Listener for Tls {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let Ok((stream, address)) = self.listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            };
            // Whoever does not trust the certificate ends the handshake.
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

/// How a server misbehaves.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Misbehaviour {
    /// Answers with the body, byte by byte as it is, and closes.
    Echo,
    /// Answers before it has read anything, and closes.
    Hasty,
    /// Begins an answer of this status, and goes on with its body for ever, as fast as it can.
    Endless(u16),
    /// Begins an answer of this status whose body never comes.
    Stuck(u16),
    /// One byte of the answer's head a while, and never all.
    Slow,
}

/// Serves like that from now on; the URL.
pub(crate) async fn rude(how: Misbehaviour) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(misbehave(how, stream)); // an error is the end of the other side
        }
    });
    url
}

async fn misbehave(how: Misbehaviour, mut stream: TcpStream) -> std::io::Result<()> {
    if let Misbehaviour::Hasty = how {
        stream
            .write_all(b"HTTP/1.1 413 Content Too Large\r\nconnection: close\r\ncontent-length: 4\r\n\r\nmuch")
            .await?;
        stream.shutdown().await?;
        // What comes is read, or else the end of the connection would take the answer with it.
        let mut rest = vec![0; 64 * 1024];
        while stream.read(&mut rest).await? > 0 {}
        return Ok(());
    }
    let body = body_of(&mut stream).await?;
    match how {
        Misbehaviour::Hasty => {}
        Misbehaviour::Echo => stream.write_all(&body).await?,
        Misbehaviour::Endless(status) => {
            let head = format!("HTTP/1.1 {status} X\r\ncontent-length: 5000000000\r\n\r\n");
            stream.write_all(head.as_bytes()).await?;
            loop {
                stream.write_all(&[b'x'; 64 * 1024]).await?;
            }
        }
        Misbehaviour::Stuck(status) => {
            let head = format!("HTTP/1.1 {status} X\r\ncontent-length: 10\r\n\r\nabc");
            stream.write_all(head.as_bytes()).await?;
            while stream.read(&mut [0]).await? > 0 {}
        }
        Misbehaviour::Slow => {
            for byte in b"HTTP/1.1 200 OK\r\nx: "
                .iter()
                .chain(std::iter::repeat(&b'y'))
            {
                stream.write_all(&[*byte]).await?;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    stream.shutdown().await
}

/// Reads a request with a `content-length`.
async fn body_of(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let mut chunk = vec![0; 16 * 1024];
        let read = stream.read(&mut chunk).await?;
        if read == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        all.extend_from_slice(&chunk[..read]);
        let Some(end) = all.windows(4).position(|window| window == b"\r\n\r\n") else {
            continue;
        };
        let head = String::from_utf8_lossy(&all[..end]).to_ascii_lowercase();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.unwrap().trim().parse().unwrap();
        if all.len() >= end + 4 + length {
            return Ok(all.split_off(end + 4));
        }
    }
}
