//! The HTTP server of the service and of `retryrmq consume --listen`, and what its clients may use of the process's files and memory: whoever
//! reaches it can connect without a login.
//!
//! A request is served at once, however many connections wait for the rest of a request: above `MAX_CONNECTIONS`, a new connection ends
//! the one that has waited longest, of the address with the most connections.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    pin::{Pin, pin},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes, HttpBody},
    extract::ConnectInfo,
    http::{Request, StatusCode, header::CONTENT_TYPE},
    routing::get,
};
use hyper::{
    body::{Frame, Incoming, SizeHint},
    server::conn::http1,
    service::{Service, service_fn},
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Notify,
    task::JoinSet,
    time::{Instant, Sleep, sleep, timeout},
};
use tracing::{debug, warn};

/// A quarter of the files that most systems let a process open.
const MAX_CONNECTIONS: usize = 256;
/// For the headers of a request, and between two requests.
const HEADER_TIMEOUT: Duration = Duration::from_secs(20);
/// For the body of a request.
const BODY_TIMEOUT: Duration = Duration::from_secs(20);
/// For a client to read an answer.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// The most bytes of headers. Proxies send long lists of groups.
const MAX_HEADERS: usize = 64 << 10;
/// Pause after an error that the next connection would meet as well, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// As Prometheus wants it named.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What probes and Prometheus ask: `/healthz` (the process answers), `/readyz` (503 with the reason of `ready`) and `/metrics`.
pub fn probes(
    ready: impl Fn() -> Result<(), String> + Clone + Send + Sync + 'static,
    metrics: impl Fn() -> String + Clone + Send + Sync + 'static,
) -> Router {
    let ready = move || async move {
        match ready() {
            Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
            Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
        }
    };
    let metrics = move || async move { ([(CONTENT_TYPE, OPENMETRICS)], metrics()) };
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
}

/// Serves until it is dropped, and ends all connections then.
pub async fn serve(listener: TcpListener, router: Router) {
    let connections = Connections::default();
    let mut tasks = JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                if let Some(slot) = connections.admit(peer.ip()) {
                    tasks.spawn(serve_connection(stream, peer, router.clone(), slot));
                }
            }
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                warn!(%error, "cannot accept a connection to --listen");
                sleep(ACCEPT_PAUSE).await;
            }
        }
        while tasks.try_join_next().is_some() {}
    }
}

/// Where an address belongs to: an IPv6 client has all addresses of its /64 network.
#[must_use]
pub fn network(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(address) => {
            let network = u128::from(address) & (u128::MAX << 64);
            Ipv6Addr::from(network).into()
        }
        address => address,
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
    )
}

async fn serve_connection(
    stream: TcpStream,
    peer: SocketAddr,
    router: Router,
    slot: ConnectionSlot,
) {
    let router = TowerToHyperService::new(router);
    let state = Arc::clone(&slot.state);
    let service = service_fn(|request: Request<Incoming>| {
        let working = state.work();
        let body = |body| Body::new(TimedBody::new(body, Arc::clone(&state)));
        let mut request = request.map(body);
        request.extensions_mut().insert(ConnectInfo(peer));
        let response = router.call(request);
        async move {
            let response = response.await;
            drop(working);
            response
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_HEADERS);
    let connection = pin!(http.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        served = connection => {
            if let Err(error) = served {
                debug!(%peer, %error, "an HTTP connection ended");
            }
        }
        () = slot.state.ended() => debug!(%peer, "an HTTP connection that waited for its client was closed"),
    }
}

/// All open connections, by the order in which they came.
#[derive(Clone, Default)]
struct Connections(Arc<Mutex<OpenConnection>>);

#[derive(Default)]
struct OpenConnection {
    next: u64,
    by_number: BTreeMap<u64, (IpAddr, Arc<ConnectionState>)>,
}

impl Connections {
    fn open(&self) -> MutexGuard<'_, OpenConnection> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a connection of this address, unless all others are being answered.
    fn admit(&self, address: IpAddr) -> Option<ConnectionSlot> {
        let address = network(address);
        let mut open = self.open();
        if open.by_number.len() >= MAX_CONNECTIONS {
            let (_, ended) = open
                .longest_waiting()
                .and_then(|number| open.by_number.remove(&number))?;
            ended.end.notify_one();
        }
        let number = open.next;
        open.next += 1;
        let state = Arc::<ConnectionState>::default();
        open.by_number.insert(number, (address, Arc::clone(&state)));
        drop(open);
        Some(ConnectionSlot {
            connections: self.clone(),
            number,
            state,
        })
    }
}

impl OpenConnection {
    /// The connection that has waited longest for its client, of the address that has the most of them.
    fn longest_waiting(&self) -> Option<u64> {
        let mut by_address: HashMap<IpAddr, (usize, Option<(Instant, u64)>)> = HashMap::new();
        for (number, (address, state)) in &self.by_number {
            if let Some(since) = state.waits_since() {
                let (count, longest) = by_address.entry(*address).or_default();
                *count += 1;
                let this = (since, *number);
                *longest = Some(longest.map_or(this, |longest| longest.min(this)));
            }
        }
        let (_, longest) = by_address
            .into_values()
            .max_by_key(|(count, longest)| (*count, Reverse(*longest)))?;
        longest.map(|(_, number)| number)
    }
}

/// The place of a connection among all, until it is dropped.
struct ConnectionSlot {
    connections: Connections,
    number: u64,
    state: Arc<ConnectionState>,
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.connections.open().by_number.remove(&self.number);
    }
}

/// Whether a connection waits for its client.
struct ConnectionState {
    /// Since when; `None` while a request is answered.
    waits_since: Mutex<Option<Instant>>,
    end: Notify,
}

impl Default for ConnectionState {
    fn default() -> Self {
        Self {
            waits_since: Mutex::new(Some(Instant::now())),
            end: Notify::new(),
        }
    }
}

impl ConnectionState {
    fn set(&self, since: Option<Instant>) {
        *self
            .waits_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = since;
    }

    fn waits_since(&self) -> Option<Instant> {
        *self
            .waits_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a request is answered, until the result is dropped.
    fn work(self: &Arc<Self>) -> RequestGuard {
        self.set(None);
        RequestGuard(Arc::clone(self))
    }

    /// Waits until the connection is to end: another one needs its place, or its client does not go on.
    async fn ended(&self) {
        loop {
            let waited = self
                .waits_since()
                .map_or(Duration::ZERO, |since| since.elapsed());
            let rest = IDLE_TIMEOUT.saturating_sub(waited);
            if rest.is_zero() || timeout(rest, self.end.notified()).await.is_ok() {
                return;
            }
        }
    }
}

struct RequestGuard(Arc<ConnectionState>);

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.set(Some(Instant::now()));
    }
}

/// The body of a request, which has to come in time. Until it comes, the connection waits for its client.
struct TimedBody {
    body: Incoming,
    deadline: Pin<Box<Sleep>>,
    connection: Arc<ConnectionState>,
}

impl TimedBody {
    fn new(body: Incoming, connection: Arc<ConnectionState>) -> Self {
        Self {
            body,
            deadline: Box::pin(sleep(BODY_TIMEOUT)),
            connection,
        }
    }
}

impl HttpBody for TimedBody {
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            self.connection.set(None);
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        if self.connection.waits_since().is_none() {
            self.connection.set(Some(Instant::now()));
        }
        self.deadline.as_mut().poll(cx).map(|()| {
            let why = format!("the body did not come within {} s", BODY_TIMEOUT.as_secs());
            Some(Err(why.into()))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    #[tokio::test]
    async fn a_full_server_ends_what_has_waited_longest_of_the_busiest_address() {
        let connections = Connections::default();
        let prober = connections.admit(address(1)).unwrap();
        let mut flood: Vec<_> = (1..MAX_CONNECTIONS)
            .map(|_| connections.admit(address(2)).unwrap())
            .collect();
        let answered = flood[0].state.work();
        let newcomer = connections.admit(address(3)).unwrap();
        let is_ended = |slot: &ConnectionSlot| {
            let numbers = &connections.open().by_number;
            !numbers.contains_key(&slot.number)
        };
        assert!(is_ended(&flood[1]), "the oldest that is not being answered");
        for kept in [&prober, &newcomer, &flood[0], &flood[2]] {
            assert!(!is_ended(kept), "{}", kept.number);
        }
        timeout(IDLE_TIMEOUT, flood[1].state.ended())
            .await
            .expect("its task is told");
        drop(answered);
        flood.truncate(10);
        assert_eq!(connections.open().by_number.len(), 2 + 9);
    }

    #[tokio::test]
    async fn a_newcomer_is_refused_only_while_all_are_being_answered() {
        let connections = Connections::default();
        let slots: Vec<_> = (0..MAX_CONNECTIONS)
            .map(|_| connections.admit(address(1)).unwrap())
            .collect();
        let mut working: Vec<_> = slots.iter().map(|slot| slot.state.work()).collect();
        assert!(connections.admit(address(2)).is_none());
        working.pop();
        assert!(connections.admit(address(2)).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_its_answer_is_left_in_the_end() {
        let state = Arc::<ConnectionState>::default();
        let working = state.work();
        let ended = {
            let state = Arc::clone(&state);
            tokio::spawn(async move { state.ended().await })
        };
        sleep(IDLE_TIMEOUT * 3).await;
        assert!(!ended.is_finished(), "it is being answered");
        drop(working);
        let answered = Instant::now();
        ended.await.unwrap();
        assert!(answered.elapsed() >= IDLE_TIMEOUT);
    }
}
