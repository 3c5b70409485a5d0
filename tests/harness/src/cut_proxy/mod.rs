//! A bad network on demand: a TCP proxy between a client and the broker that can be cut, stalled and slowed.

mod pump;

use pump::{Link, Rules};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use url::Url;

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// What the client sends.
    ToBroker,
    /// What the broker sends.
    ToClient,
    /// All of it.
    Both,
}

impl Direction {
    fn covers(self, one: Direction) -> bool {
        self == Direction::Both || self == one
    }
}

/// A proxy on loopback. It lives as long as this value; dropping it cuts what goes through it.
pub struct CutProxy {
    url: Url,
    rules: Arc<watch::Sender<Rules>>,
    accepted: Arc<AtomicUsize>,
    open: Arc<AtomicUsize>,
    closes: Arc<Mutex<Vec<u16>>>,
    listening: JoinHandle<()>,
}

impl CutProxy {
    /// A proxy to the broker at this URL.
    ///
    /// # Panics
    /// When the URL has no host and port, or no port is free.
    pub async fn to(url: &str) -> Self {
        Self::to_any(&[url]).await
    }

    /// A proxy to the nodes of a cluster, as a balancer is one: each connection goes to the next of them that is there.
    ///
    /// # Panics
    /// As [`CutProxy::to`], and when there is no URL.
    pub async fn to_any(urls: &[&str]) -> Self {
        let targets: Vec<_> = urls.iter().map(|url| target(&parse(url))).collect();
        let mut url = parse(urls.first().expect("a proxy is to at least one broker"));
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port is free");
        let port = listener
            .local_addr()
            .expect("the listener has an address")
            .port();
        url.set_host(Some("127.0.0.1"))
            .expect("an amqp URL may have any host");
        url.set_port(Some(port))
            .expect("an amqp URL may have any port");
        let rules = Arc::new(watch::Sender::new(Rules::default()));
        let (accepted, open) = (Arc::default(), Arc::default());
        let closes = Arc::default();
        let listening = tokio::spawn(listen(
            listener,
            targets.into(),
            rules.clone(),
            Arc::clone(&accepted),
            Arc::clone(&open),
            Arc::clone(&closes),
        ));
        CutProxy {
            url,
            rules,
            accepted,
            open,
            closes,
            listening,
        }
    }

    /// The broker's URL, with the proxy's address in it.
    pub fn url(&self) -> &str {
        self.url.as_str()
    }

    /// Cuts every connection with a reset, as a crash or a firewall does. New ones are let through.
    pub fn cut(&self) {
        self.rules.send_modify(|rules| rules.resets += 1);
    }

    /// Closes every connection (FIN), without a word of AMQP. New ones are let through.
    pub fn close(&self) {
        self.rules.send_modify(|rules| rules.closes += 1);
    }

    /// Ends every connection after so many more bytes in this direction, most probably in the middle of a frame. New ones are
    /// let through.
    pub fn cut_after(&self, direction: Direction, bytes: usize) {
        self.rules.send_modify(|rules| {
            rules.each(direction, |way| {
                way.cuts += 1;
                way.bytes = bytes;
            });
        });
    }

    /// Resets new connections from now on, until [`CutProxy::resume`]. Those that are open stay.
    pub fn refuse(&self) {
        self.rules.send_modify(|rules| rules.refuse = true);
    }

    /// Holds back all bytes without closing anything, as a dead peer does, until [`CutProxy::resume`].
    pub fn stall(&self, direction: Direction) {
        self.rules
            .send_modify(|rules| rules.each(direction, |way| way.stalled = true));
    }

    /// Holds back every piece for this long, until [`CutProxy::resume`].
    pub fn delay(&self, direction: Direction, by: Duration) {
        self.rules
            .send_modify(|rules| rules.each(direction, |way| way.delay = by));
    }

    /// Lets everything through again, with what was held back.
    pub fn resume(&self) {
        self.rules.send_modify(Rules::resume);
    }

    /// How many connections were accepted so far, those refused included.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }

    /// How many connections are open now.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// The codes with which the broker has closed connections so far, such as 541 (AMQP `connection.close`).
    ///
    /// # Panics
    /// When a connection has panicked.
    pub fn close_codes(&self) -> Vec<u16> {
        self.closes.lock().expect("no connection panicked").clone()
    }
}

impl Drop for CutProxy {
    fn drop(&mut self) {
        self.listening.abort();
        self.cut();
    }
}

impl fmt::Debug for CutProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CutProxy on port {}",
            self.url.port().unwrap_or_default()
        )
    }
}

type Target = (String, u16);

fn parse(url: &str) -> Url {
    url.parse().expect("the broker's URL is a URL")
}

fn target(url: &Url) -> Target {
    let host = url.host_str().expect("the broker's URL names a host");
    let default_port = if url.scheme() == "amqps" { 5671 } else { 5672 };
    let host = host.trim_matches(['[', ']']).to_owned();
    (host, url.port().unwrap_or(default_port))
}

/// The next of the targets, or the first after it that is there.
async fn reach(targets: &[Target], next: usize) -> Option<TcpStream> {
    for turn in 0..targets.len() {
        if let Ok(broker) = TcpStream::connect(&targets[(next + turn) % targets.len()]).await {
            return Some(broker);
        }
    }
    None
}

async fn listen(
    listener: TcpListener,
    targets: Arc<[Target]>,
    rules: Arc<watch::Sender<Rules>>,
    accepted: Arc<AtomicUsize>,
    open: Arc<AtomicUsize>,
    closes: Arc<Mutex<Vec<u16>>>,
) {
    while let Ok((client, _)) = listener.accept().await {
        let next = accepted.fetch_add(1, Ordering::Relaxed);
        let (rules, targets, open) = (rules.subscribe(), Arc::clone(&targets), Arc::clone(&open));
        let closes = Arc::clone(&closes);
        let since = rules.borrow().clone();
        if since.refuse {
            pump::reset(&client);
            continue;
        }
        tokio::spawn(async move {
            // A broker that is down looks to the client as it would without us.
            let Some(broker) = reach(&targets, next).await else {
                return pump::reset(&client);
            };
            open.fetch_add(1, Ordering::Relaxed);
            Link {
                client,
                broker,
                rules,
                since,
                closes,
            }
            .run()
            .await;
            open.fetch_sub(1, Ordering::Relaxed);
        });
    }
}
