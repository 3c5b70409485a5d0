//! The service: from its start to its end.

use std::{future::Future, io, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use retryrmq::{Addresses, Client, ClientOptions, Event, Outcome, Subscription};
use tokio::{
    sync::watch,
    task::{AbortHandle, JoinSet},
    time::sleep,
};
use tracing::{info, warn};

use crate::{
    Book, Feed, Health, Metrics,
    http::{self, Desk},
    intake::{Clerk, Fate, INTAKE_QUEUE, Keeper, Tide, plan},
    policy::{Shelf, read_book},
    reporting::{Access, Reporting, Running},
    store::{self, Store, redis::RedisStore},
};

/// How often the exchange and the queues of the intake are looked for, and made where somebody deleted them: what dies meanwhile is
/// dropped by the broker.
const LOOK: Duration = Duration::from_secs(15);

/// As many messages are taken at a time.
const BATCH: usize = 64;

/// What a service is told.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServiceOptions {
    /// The broker and its virtual host; a service serves that one.
    pub url: String,
    /// The policy file.
    pub policy: Option<PathBuf>,
    /// The management API, for the watch; unless given, where the broker is.
    pub management: Option<String>,
    /// A PEM file with the CA of its certificate.
    pub management_ca: Option<PathBuf>,
    /// Where `/metrics`, `/healthz` and `/readyz` are served.
    pub listen: Option<SocketAddr>,
    /// As many dead letters are on their way at a time.
    pub prefetch: u16,
}

impl ServiceOptions {
    /// For the broker at this URL: no policy file, no pages, a prefetch of 100.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            policy: None,
            management: None,
            management_ca: None,
            listen: None,
            prefetch: 100,
        }
    }
}

/// A service that runs.
#[derive(Debug)]
pub struct Service {
    options: ServiceOptions,
    shelf: Arc<Shelf>,
    /// The policy file as it was read.
    seen: Option<Vec<u8>>,
    metrics: Arc<Metrics>,
    feed: Feed,
    health: Health,
    address: Option<SocketAddr>,
    pages: Option<AbortHandle>,
    /// What tells people, for the metrics.
    running: Running,
    /// Where messages wait; in waiting queues without it.
    store: Option<Arc<RedisStore>>,
}

impl Service {
    /// Reads the policy and serves the pages; the broker is not asked yet.
    ///
    /// # Errors
    /// A sentence: a policy file that cannot be read, an address that cannot be had.
    pub async fn new(options: ServiceOptions) -> Result<Self, String> {
        let (mut book, mut seen) = (Book::default(), None);
        if let Some(file) = &options.policy {
            let bytes = tokio::fs::read(file)
                .await
                .map_err(|why| format!("cannot read {}: {why}", file.display()))?;
            book = read_book(file, &bytes)?;
            seen = Some(bytes);
        }
        let store = open_store(&book, &options.url)?;
        let feed = Feed::default();
        let running = Running::default();
        let metrics = Arc::new(Metrics::new(&feed, running.clone()));
        metrics.loaded(true);
        let health = Health::default();
        let (mut address, mut pages) = (None, None);
        if let Some(wanted) = options.listen {
            let taken = |why: io::Error| {
                format!("cannot listen at {wanted}: {why}; name another address with --listen")
            };
            let listener = http::bind(wanted).await.map_err(taken)?;
            address = listener.local_addr().ok();
            let desk = Desk {
                health: health.clone(),
                metrics: Arc::clone(&metrics),
            };
            pages = Some(tokio::spawn(http::serve(listener, desk)).abort_handle());
        }
        Ok(Self {
            shelf: Arc::new(Shelf::new(book, options.policy.clone())),
            options,
            seen,
            metrics,
            feed,
            health,
            address,
            pages,
            running,
            store,
        })
    }

    /// Looks whether the store of the policy file, where it names one, loses nothing. One that is away or full now is waited for: the
    /// intake keeps what is to wait, and [`health`](Self::health) says so.
    ///
    /// # Errors
    /// What somebody has to change first, in a sentence.
    pub async fn prove_store(&self) -> store::Result<()> {
        let Some(store) = &self.store else {
            return Ok(());
        };
        match store.health().await {
            Err(
                why @ (store::Error::Away(_) | store::Error::Full(_) | store::Error::NotDurable(_)),
            ) => {
                warn!(%why, "the store takes no messages yet; they stay in the intake");
                Ok(())
            }
            proven => proven,
        }
    }

    /// Where the pages are served.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Where what happens is told.
    #[must_use]
    pub fn feed(&self) -> &Feed {
        &self.feed
    }

    /// What the probes are told.
    #[must_use]
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// What reads the policy file again; for SIGHUP.
    pub fn reloader(&self) -> impl Fn() + Send + Sync + 'static {
        let shelf = Arc::clone(&self.shelf);
        move || shelf.reload()
    }

    /// Serves until `end`, then drains: takes no more messages, lets those on their way come to their copies, and gives back the others.
    ///
    /// # Errors
    /// What the broker refuses: the login, the virtual host, a queue or exchange of the intake that is of another kind. A broker that
    /// cannot be reached is waited for.
    pub async fn run(self, end: impl Future<Output = ()> + Send) -> retryrmq::Result<()> {
        let mut end = std::pin::pin!(end);
        let client = {
            let options = ClientOptions::new().wait(true);
            tokio::select! {
                connected = Client::connect_with(&self.options.url, options) => connected?,
                () = &mut end => return Ok(()),
            }
        };
        self.health.connected(client.clone());
        let served = self.serve(&client, end).await;
        client.close().await;
        served
    }

    async fn serve(
        &self,
        client: &Client,
        mut end: impl Future<Output = ()> + Unpin,
    ) -> retryrmq::Result<()> {
        client.apply_plan(&plan()).await?;
        self.health.stands(true);
        let health = self.health.clone();
        let (turns, tide) = watch::channel(Tide::default());
        let turned = turns.clone();
        let subscribed = client
            .consumer(INTAKE_QUEUE)
            .prefetch(self.options.prefetch)
            .on_event(move |event| match event {
                Event::Disconnected { .. } => {
                    health.consumes(false);
                    turned.send_modify(|tide| tide.losses += 1);
                }
                Event::Reconnected { .. } => health.consumes(true),
                _ => {}
            })
            .subscribe();
        let subscription = Arc::new(subscribed.await?);
        self.health.consumes(true);
        let keeper = self.keeper(client);
        info!("ready: what dies is retried and parked");
        let clerk = Arc::new(
            Clerk::new(
                client.clone(),
                Arc::clone(&self.shelf),
                Arc::clone(&self.metrics),
                self.feed.clone(),
                self.options.prefetch,
                tide,
            )
            .keeping(keeper.as_ref().map(Keeper::keeping)),
        );
        let mut on_their_way = JoinSet::new();
        let access = Access {
            url: self.options.url.clone(),
            management: self.options.management.clone(),
            management_ca: self.options.management_ca.clone(),
        };
        let shelf = Arc::clone(&self.shelf);
        let reporting = Reporting::new(access, self.feed.clone(), shelf, self.running.clone());
        let mut beside = Box::pin(async {
            tokio::join!(
                self.shelf.mind(self.seen.clone(), &self.metrics),
                self.keep(client),
                reporting.run(client)
            )
        });
        loop {
            let more = tokio::select! {
                biased;
                () = &mut end => break,
                _ = &mut beside => break,
                // Its tasks settle by themselves; here they only leave.
                Some(_) = on_their_way.join_next() => continue,
                more = subscription.ready() => more,
            };
            if !more {
                break; // the client was closed
            }
            for delivery in subscription.try_next_batch(BATCH) {
                let (clerk, subscription) = (Arc::clone(&clerk), Arc::clone(&subscription));
                on_their_way.spawn(async move {
                    match clerk.see_out(&delivery.message).await {
                        Fate::Done => subscription.settle([(delivery.token, Outcome::Ack)]),
                        Fate::Returned => subscription.give_back([delivery.token]),
                    }
                });
            }
        }
        info!("ending: what is on its way comes to its end");
        self.health.ends();
        turns.send_modify(|tide| tide.ends = true);
        let ending = async {
            drain(&subscription, on_their_way).await;
            if let Some(keeper) = keeper {
                keeper.end().await;
            }
        };
        // What is parked until the end is told, too.
        tokio::select! {
            () = ending => {}
            _ = &mut beside => {}
        }
        drop(beside);
        reporting.stop().await;
        Ok(())
    }

    fn keeper(&self, client: &Client) -> Option<Keeper> {
        let store = self.store.as_ref()?;
        let book = self.shelf.book();
        Some(Keeper::start(
            store,
            book.store()?.connections,
            client,
            &self.metrics,
            &self.feed,
            &self.health,
        ))
    }

    /// Keeps the exchange and the queues of the intake where they are.
    async fn keep(&self, client: &Client) {
        loop {
            sleep(LOOK).await;
            let kept = client.apply_plan(&plan()).await;
            self.health.stands(kept.is_ok());
            if let Err(error) = kept {
                warn!(%error, "the intake cannot be looked after");
            }
        }
    }
}

/// The store that the policy names, for the virtual host of this URL. Nothing is connected yet.
fn open_store(book: &Book, url: &str) -> Result<Option<Arc<RedisStore>>, String> {
    let Some(configuration) = book.store() else {
        return Ok(None);
    };
    let addresses: Addresses = url
        .parse()
        .map_err(|why: retryrmq::Error| why.to_string())?;
    let store = RedisStore::new(configuration, addresses.vhost());
    store
        .map(|store| Some(Arc::new(store)))
        .map_err(|why| why.to_string())
}

/// The end: the copies that are on their way are confirmed and their originals acknowledged; the rest is the broker's again.
async fn drain(subscription: &Subscription, mut on_their_way: JoinSet<()>) {
    subscription.close();
    while on_their_way.join_next().await.is_some() {}
    subscription.wait_closed().await;
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Some(pages) = &self.pages {
            pages.abort();
        }
    }
}
