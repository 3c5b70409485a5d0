//! The service: from its start to its end.

use std::{fmt, future::Future, io, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use retryrmq::{Client, ClientOptions, Event, Outcome, Subscription};
use tokio::{
    sync::watch,
    task::{AbortHandle, JoinSet},
    time::sleep,
};
use tracing::{info, warn};

use crate::{
    EventBus, Health, Metrics, ServiceConfig,
    alerting_runtime::{AlertingRuntime, ManagementAccess, RunningTasks},
    config::{ConfigWatcher, read_config},
    delayed::DelayedDispatcher,
    history::History,
    http::{self, ProbeState},
    intake::{ChannelState, DeadLetterHandler, Disposition, ParkedReporter, StoreTasks, plan},
    memory_budget::MemoryBudget,
    queue_names::{HANDOVER_QUEUE, INTAKE_QUEUE},
    startup::begin,
    store::{self, Store, redis::RedisStore},
    supervisor::watch_over,
    web::Page,
};

/// How often the exchange and the queues of the intake are looked for, and made where somebody deleted them: what dies meanwhile is
/// dropped by the broker.
const LOOK: Duration = Duration::from_secs(15);

/// What is consumed.
const QUEUES: [&str; 2] = [INTAKE_QUEUE, HANDOVER_QUEUE];

/// Messages that are taken at a time.
const BATCH: usize = 64;

/// What a service is told. `Debug` shows no URL: each may hold a password.
#[derive(Clone)]
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
    /// Where `/metrics`, `/healthz`, `/readyz` and the page are served.
    pub listen: Option<SocketAddr>,
    /// Whether there is a page for people.
    pub page: bool,
    /// Dead letters that are held at a time, and as many messages that were handed over.
    pub prefetch: u16,
    /// Bytes that decoded bodies may take; a quarter of the memory of the container or the machine by default, 192 MiB at least.
    pub memory: Option<u64>,
}

impl ServiceOptions {
    /// For the broker at this URL: no policy file, nothing served, a prefetch of 100.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            policy: None,
            management: None,
            management_ca: None,
            listen: None,
            page: true,
            prefetch: 100,
            memory: None,
        }
    }
}

impl fmt::Debug for ServiceOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceOptions")
            .field("policy", &self.policy)
            .field("management_ca", &self.management_ca)
            .field("listen", &self.listen)
            .field("prefetch", &self.prefetch)
            .finish_non_exhaustive()
    }
}

/// A service that runs.
#[derive(Debug)]
pub struct Service {
    options: ServiceOptions,
    config_watcher: Arc<ConfigWatcher>,
    /// The policy file as it was read.
    seen: Option<Vec<u8>>,
    metrics: Arc<Metrics>,
    event_bus: EventBus,
    health: Health,
    address: Option<SocketAddr>,
    pages: Option<AbortHandle>,
    page: Option<Page>,
    /// What tells people, for the metrics.
    running: RunningTasks,
    /// Where messages wait; in waiting queues without it.
    store: Option<Arc<RedisStore>>,
    history: History,
}

impl Service {
    /// Reads the policy and serves the pages; the broker is not asked yet.
    ///
    /// # Errors
    /// A sentence: a policy file that cannot be read, an address that cannot be had.
    pub async fn new(options: ServiceOptions) -> Result<Self, String> {
        let (mut service_config, mut seen) = (ServiceConfig::default(), None);
        if let Some(file) = &options.policy {
            let bytes = tokio::fs::read(file)
                .await
                .map_err(|why| format!("cannot read {}: {why}", file.display()))?;
            service_config = read_config(file, &bytes)?;
            seen = Some(bytes);
        }
        let store = service_config.open_store(&options.url)?;
        let memory = options
            .memory
            .map_or_else(MemoryBudget::of_this_machine, MemoryBudget::new);
        let event_bus = EventBus::with_memory(memory.clone());
        let running = RunningTasks::default();
        let metrics = Arc::new(Metrics::new(&event_bus));
        metrics.loaded(true);
        metrics.join(running.registry());
        let history = History::new(service_config.history().clone());
        metrics.join(history.registry());
        let config_watcher = Arc::new(ConfigWatcher::new(&service_config, options.policy.clone()));
        let health = Health::default();
        let (mut address, mut pages, mut page) = (None, None, None);
        if let Some(wanted) = options.listen {
            let taken = |why: io::Error| {
                format!("cannot listen at {wanted}: {why}; name another address with --listen")
            };
            let listener = http::bind(wanted).await.map_err(taken)?;
            address = listener.local_addr().ok();
            let probe_state = ProbeState {
                health: health.clone(),
                metrics: Arc::clone(&metrics),
            };
            page = options.page.then(|| {
                Page::new(
                    config_watcher.components().web(),
                    health.clone(),
                    history.clone(),
                    running.clone(),
                    store.clone(),
                    memory,
                )
            });
            pages =
                Some(tokio::spawn(http::serve(listener, probe_state, page.clone())).abort_handle());
        }
        Ok(Self {
            config_watcher,
            options,
            seen,
            metrics,
            event_bus,
            health,
            address,
            pages,
            page,
            running,
            store,
            history,
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
    pub fn event_bus(&self) -> &EventBus {
        &self.event_bus
    }

    /// What the probes are told.
    #[must_use]
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// What reads the policy file again; for SIGHUP.
    pub fn reloader(&self) -> impl Fn() + Send + Sync + 'static {
        let config_watcher = Arc::clone(&self.config_watcher);
        move || config_watcher.reload()
    }

    /// Serves until `end`, then drains: takes no more messages, lets those on their way come to their copies, and gives back the others.
    ///
    /// # Errors
    /// What the broker refuses: the login, the virtual host, a queue or exchange of the intake that is of another kind. A broker that
    /// cannot be reached, or is not all there yet, is waited for.
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
        let (turns, channel_state) = watch::channel(ChannelState::default());
        let subscribed = begin(&self.health, || async {
            client.apply_plan(&plan()).await?;
            self.subscribe_to_all(client, &turns).await
        });
        let subscriptions = tokio::select! {
            subscribed = subscribed => subscribed?,
            () = &mut end => return Ok(()),
        };
        self.health.set_intake(Ok(()));
        let configs = self.config_watcher.components();
        let parked_reporter = ParkedReporter::new(
            Arc::clone(&self.metrics),
            self.event_bus.clone(),
            configs.reads_bodies(),
        );
        let store_tasks = self.store_tasks(client, &parked_reporter);
        info!("ready: dead-lettered messages are retried, and parked after the last retry");
        let handler = Arc::new(
            DeadLetterHandler::new(
                client.clone(),
                configs.rules(),
                Arc::clone(&self.metrics),
                self.event_bus.clone(),
                parked_reporter.clone(),
                self.options.prefetch,
                channel_state,
            )
            .store_handle(store_tasks.as_ref().map(StoreTasks::store_handle)),
        );
        let dispatcher = DelayedDispatcher::new(
            client,
            configs.delayed(),
            &self.metrics,
            parked_reporter,
            &self.health,
            self.options.prefetch,
        );
        let dispatcher =
            Arc::new(dispatcher.store_handle(store_tasks.as_ref().map(StoreTasks::store_handle)));
        let (stop, stopped) = watch::channel(false);
        let mut delayed = JoinSet::new();
        delayed.spawn(watch_over(
            "what keeps messages with a delay",
            self.health.clone(),
            stopped.clone(),
            move || Arc::clone(&dispatcher).run(stopped.clone()),
        ));
        let mut on_their_way = JoinSet::new();
        let access = ManagementAccess {
            url: self.options.url.clone(),
            management: self.options.management.clone(),
            management_ca: self.options.management_ca.clone(),
        };
        let reporting = AlertingRuntime::new(
            access,
            self.event_bus.clone(),
            configs.alerts(),
            self.running.clone(),
        );
        let mut beside = Box::pin(async {
            tokio::join!(
                self.config_watcher
                    .watch_file(self.seen.clone(), &self.metrics),
                self.keep(client),
                reporting.run(client),
                self.history.run(client, &self.event_bus, configs.digest())
            )
        });
        loop {
            let more = tokio::select! {
                biased;
                () = &mut end => break,
                _ = &mut beside => break,
                // Its tasks settle by themselves; here they only leave.
                Some(_) = on_their_way.join_next() => continue,
                more = subscriptions.ready() => more,
            };
            if !more {
                break; // the client was closed
            }
            // Before they are taken: one that is lost meanwhile comes again.
            let losses = turns.borrow().losses;
            for subscription in &subscriptions.0 {
                for delivery in subscription.try_next_batch(BATCH) {
                    let (handler, subscription) = (Arc::clone(&handler), Arc::clone(subscription));
                    on_their_way.spawn(async move {
                        match handler.handle(&delivery.message, losses).await {
                            Disposition::Done => {
                                subscription.settle([(delivery.token, Outcome::Ack)])
                            }
                            Disposition::Returned => subscription.give_back([delivery.token]),
                        }
                    });
                }
            }
        }
        info!("shutting down: finishing messages in flight");
        self.health.ends();
        turns.send_modify(|channel_state| channel_state.ends = true);
        stop.send_replace(true);
        let ending = async {
            let jobs = async {
                if let Some(page) = &self.page {
                    page.end().await;
                }
            };
            let (drained, ()) = tokio::join!(subscriptions.drain(on_their_way), jobs);
            while delayed.join_next().await.is_some() {}
            if let Some(store_tasks) = store_tasks {
                store_tasks.end().await;
            }
            self.history.settle().await;
            drained
        };
        // What is parked until the end is told, too.
        let ended = tokio::select! {
            ended = ending => ended,
            _ = &mut beside => Ok(()),
        };
        drop(beside);
        reporting.stop().await;
        ended
    }

    /// Consumes the intake, and what clients hand over.
    async fn subscribe_to_all(
        &self,
        client: &Client,
        turns: &watch::Sender<ChannelState>,
    ) -> retryrmq::Result<Subscriptions> {
        let mut subscriptions = Vec::with_capacity(QUEUES.len());
        for queue in QUEUES {
            subscriptions.push(self.subscribe(client, queue, turns).await?);
        }
        Ok(Subscriptions(subscriptions))
    }

    async fn subscribe(
        &self,
        client: &Client,
        queue: &'static str,
        turns: &watch::Sender<ChannelState>,
    ) -> retryrmq::Result<Arc<Subscription>> {
        let (health, turned) = (self.health.clone(), turns.clone());
        let subscribed = client
            .consumer(queue)
            .dlx(false)
            .prefetch(self.options.prefetch)
            // A copy would say neither where a message died nor what is asked for.
            .requeue_unchanged(true)
            .create_unreadable_queue(true)
            .wait(false)
            .on_event(move |event| match event {
                Event::Disconnected { .. } => {
                    health.consumes(queue, false);
                    turned.send_modify(ChannelState::lose);
                }
                Event::Reconnected { .. } => health.consumes(queue, true),
                _ => {}
            })
            .subscribe();
        let subscription = subscribed.await?;
        self.health.consumes(queue, true);
        Ok(Arc::new(subscription))
    }

    fn store_tasks(&self, client: &Client, parked_reporter: &ParkedReporter) -> Option<StoreTasks> {
        let store = self.store.as_ref()?;
        Some(StoreTasks::start(
            store,
            self.config_watcher.store()?.connections,
            client,
            &self.metrics,
            parked_reporter.clone(),
            &self.health,
        ))
    }

    /// Keeps the exchange and the queues of the intake where they are.
    async fn keep(&self, client: &Client) {
        loop {
            sleep(LOOK).await;
            let kept = client.apply_plan(&plan()).await;
            let set_intake = kept.as_ref().map(drop).map_err(ToString::to_string);
            self.health.set_intake(set_intake);
            if let Err(error) = kept {
                warn!(%error, "the intake cannot be looked after");
            }
        }
    }
}

/// What is consumed: what dies, and what clients hand over.
struct Subscriptions(Vec<Arc<Subscription>>);

impl Subscriptions {
    /// Waits until one of them has messages (`true`), or until one will have none any more (`false`).
    async fn ready(&self) -> bool {
        let waiting = self.0.iter().map(|one| Box::pin(one.ready()));
        futures_util::future::select_all(waiting).await.0
    }

    /// The end: the copies that are on their way are confirmed and their originals acknowledged; the rest is the broker's again.
    async fn drain(&self, mut on_their_way: JoinSet<()>) -> retryrmq::Result<()> {
        self.0.iter().for_each(|one| one.close());
        while on_their_way.join_next().await.is_some() {}
        // All of them come to their end, also where one of them broke.
        let ends = self.0.iter().map(|one| one.wait_closed());
        futures_util::future::join_all(ends)
            .await
            .into_iter()
            .collect()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Some(pages) = &self.pages {
            pages.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_password_is_shown() {
        let mut options = ServiceOptions::new("amqp://maria:s3cret@h");
        options.management = Some("http://maria:s3cret@h:15672".to_owned());
        let access = ManagementAccess {
            url: options.url.clone(),
            management: options.management.clone(),
            management_ca: None,
        };
        let shown = format!("{options:?} {access:?}");
        let service = Service::new(options).await.unwrap();
        let shown = format!("{shown} {service:?}");
        assert!(!shown.contains("s3cret"), "{shown}");
    }
}
