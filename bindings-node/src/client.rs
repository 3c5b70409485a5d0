//! The client.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use napi::bindgen_prelude::{Either, Null};
use napi_derive::napi;
use retryrmq::ClientOptions;
use tokio::task::AbortHandle;

use crate::{
    credentials,
    errors::{Result, about, thrown},
    notification_queue::NotificationQueue,
    notifier::Answer,
    object_count::{LiveObject, ObjectKind},
    operation::{begin, begin_abortable},
    options::Options,
    publish,
};

/// A connection or a subscription that is being made. It is given up when its environment ends.
#[napi]
pub struct Connecting(Option<AbortHandle>);

#[napi]
impl Connecting {
    /// Tries no more.
    #[napi(catch_unwind)]
    pub fn give_up(&self) {
        if let Some(going_on) = &self.0 {
            going_on.abort();
        }
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// Starts to connect; the answer is a `Client`. The login is asked from the function with the number `credentials`, if there is one.
#[napi(catch_unwind)]
#[allow(clippy::too_many_arguments)] // only one place in the TypeScript half calls it
pub fn connect(
    notifications: &NotificationQueue,
    ticket: f64,
    url: String,
    app_version: String,
    queue_type: Option<String>,
    wait: bool,
    end_when_refused: bool,
    credentials: Option<f64>,
) -> Result<Connecting> {
    check_url(url.clone())?;
    let queue_type = queue_type
        .map(|text| text.parse().map_err(|error| about("queueType", &error)))
        .transpose()?
        .unwrap_or_default();
    let mut options = ClientOptions::new()
        .app_version(app_version)
        .queue_type(queue_type)
        .wait(wait)
        .end_when_refused(end_when_refused);
    options.credentials =
        credentials.map(|function| credentials::provider(&notifications.notifier, function));
    begin_abortable(
        &notifications.notifier,
        ticket,
        async move { retryrmq::Client::connect_with(&url, options).await },
        Answer::Client,
    )
    .map(Connecting)
}

/// Throws for an address that cannot be used. Nothing is tried.
#[napi(catch_unwind)]
pub fn check_url(url: String) -> Result<()> {
    url.parse::<retryrmq::Addresses>().map(drop).map_err(thrown)
}

/// Whether anybody listens to the events of a subscription.
#[napi]
pub struct ListenerFlag(Arc<AtomicBool>);

#[napi]
impl ListenerFlag {
    /// Without a listener.
    #[napi(constructor, catch_unwind)]
    pub fn new() -> Self {
        Self(Arc::default())
    }

    /// There is a listener from now on.
    #[napi(catch_unwind)]
    pub fn begin(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A connected client.
#[napi]
pub struct Client {
    inner: retryrmq::Client,
    _alive: LiveObject,
}

impl Client {
    pub(crate) fn new(client: retryrmq::Client) -> Self {
        Self {
            inner: client,
            _alive: LiveObject::new(ObjectKind::Client),
        }
    }
}

#[napi]
impl Client {
    /// Subscribes; the answer is a `Subscription`. Its events carry `id`.
    #[napi(catch_unwind)]
    pub fn subscribe(
        &self,
        notifications: &NotificationQueue,
        ticket: f64,
        options: &Options,
        id: f64,
        listening: &ListenerFlag,
    ) -> Result<Connecting> {
        let told = Arc::downgrade(&notifications.notifier);
        let listening = Arc::clone(&listening.0);
        let consumer = options
            .consumer
            .clone()
            .client(self.inner.clone())
            .on_event(move |event| {
                if listening.load(Ordering::Relaxed)
                    && let Some(notifier) = told.upgrade()
                {
                    notifier.event(id, event);
                }
            });
        begin_abortable(
            &notifications.notifier,
            ticket,
            consumer.subscribe(),
            Answer::Subscription,
        )
        .map(Connecting)
    }

    /// Publishes; done after the broker's confirm.
    #[napi(catch_unwind)]
    pub fn publish(
        &self,
        notifications: &NotificationQueue,
        ticket: f64,
        message: &[u8],
    ) -> Result<()> {
        let message = publish::read(message)?;
        let client = self.inner.clone();
        begin(
            &notifications.notifier,
            ticket,
            async move { client.publish(message).await },
            |()| Answer::Nothing,
        )
    }

    /// Starts a walk through the messages parked for a queue; the answer is a `Walk`.
    #[napi(catch_unwind)]
    pub fn parked(
        &self,
        notifications: &NotificationQueue,
        ticket: f64,
        queue: String,
    ) -> Result<()> {
        let parked = self.inner.parked(queue);
        begin(
            &notifications.notifier,
            ticket,
            async move { parked.browse().await },
            |browse| Answer::Walk(Box::new(browse)),
        )
    }

    /// Closes both connections.
    #[napi(catch_unwind)]
    pub fn close(&self, notifications: &NotificationQueue, ticket: f64) -> Result<()> {
        let client = self.inner.clone();
        begin(
            &notifications.notifier,
            ticket,
            async move {
                client.close().await;
                Ok::<_, retryrmq::Error>(())
            },
            |()| Answer::Nothing,
        )
    }

    /// All counters in the OpenMetrics text format.
    #[napi(catch_unwind)]
    pub fn metrics_text(&self) -> String {
        self.inner.metrics_text()
    }

    /// Why a connection is not open; `null` if both are.
    #[napi(catch_unwind)]
    pub fn trouble(&self) -> Either<String, Null> {
        match self.inner.health() {
            Ok(()) => Either::B(Null),
            Err(error) => Either::A(error.to_string()),
        }
    }

    /// Throws the error with which the client ended by itself, if it did.
    #[napi(catch_unwind)]
    pub fn check_end(&self) -> Result<()> {
        match self.inner.end() {
            Some(error) => Err(thrown(error)),
            None => Ok(()),
        }
    }

    /// How often a connection was lost and reconnected.
    #[napi(getter, catch_unwind)]
    pub fn reconnects(&self) -> f64 {
        self.inner.reconnects() as f64
    }

    /// The broker's product.
    #[napi(getter, catch_unwind)]
    pub fn product(&self) -> String {
        self.inner.server().product.clone()
    }

    /// The broker's version.
    #[napi(getter, catch_unwind)]
    pub fn version(&self) -> String {
        self.inner.server().version.clone()
    }
}
