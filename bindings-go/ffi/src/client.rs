//! The client.

use std::sync::Arc;

use retryrmq::ClientOptions;

use crate::{
    byte_buffer::ByteBuffer,
    credentials,
    errors::FfiError,
    notifications,
    object_count::{LiveObject, ObjectKind},
    operation::{Answer, Operation, other},
    options::Options,
    publish::Outgoing,
};

/// What a connection is told.
#[derive(Debug, uniffi::Record)]
pub struct ConnectOptions {
    /// The broker's address.
    pub url: String,
    /// The version of the application.
    pub app_version: String,
    /// The type of the queues in which messages wait and are parked.
    pub queue_type: Option<String>,
    /// Whether to wait for a broker that cannot be reached yet.
    pub wait: bool,
    /// Whether a login that is refused after a loss ends the client.
    pub end_when_refused: bool,
    /// The function that is asked for credentials; none when it is 0.
    pub provider: u64,
}

/// A connected client.
#[derive(Debug, uniffi::Object)]
pub struct Client {
    inner: retryrmq::Client,
    _alive: LiveObject,
}

/// Connects; the answer is a client.
#[uniffi::export]
pub fn connect(options: ConnectOptions, ticket: u64) -> Result<Arc<Operation>, FfiError> {
    options.url.parse::<retryrmq::Addresses>()?;
    let queue_type = options
        .queue_type
        .as_deref()
        .map(str::parse)
        .transpose()?
        .unwrap_or_default();
    let mut client_options = ClientOptions::new()
        .app_version(options.app_version)
        .queue_type(queue_type)
        .wait(options.wait)
        .end_when_refused(options.end_when_refused);
    client_options.credentials =
        (options.provider != 0).then(|| credentials::credentials(options.provider));
    Operation::begin_while_awaited(ticket, async move {
        let client = retryrmq::Client::connect_with(&options.url, client_options).await?;
        Ok(Answer::Client(client))
    })
}

#[uniffi::export]
impl Operation {
    /// The client that was connected.
    pub fn client(&self) -> Result<Arc<Client>, FfiError> {
        match self.take()? {
            Answer::Client(inner) => Ok(Arc::new(Client {
                inner,
                _alive: LiveObject::new(ObjectKind::Client),
            })),
            _ => Err(other()),
        }
    }
}

#[uniffi::export]
impl Client {
    /// Subscribes; the answer is a subscription. Events are told under the number `listener`, unless it is 0.
    pub fn subscribe(
        &self,
        options: Arc<Options>,
        listener: u64,
        ticket: u64,
    ) -> Result<Arc<Operation>, FfiError> {
        let mut consumer = options.consumer.clone().client(self.inner.clone());
        if listener != 0 {
            consumer = consumer.on_event(move |event| notifications::event(listener, event));
        }
        // It waits for as long as the broker is away. Given up halfway it leaves no consumer behind.
        Operation::begin_while_awaited(ticket, async move {
            let subscription = consumer.subscribe().await?;
            Ok(Answer::Subscription(Box::new(subscription)))
        })
    }

    /// Publishes; done when the broker has confirmed.
    pub fn publish(
        &self,
        outgoing: Outgoing,
        body: ByteBuffer,
        ticket: u64,
    ) -> Result<Arc<Operation>, FfiError> {
        let message = outgoing.message(body)?;
        let client = self.inner.clone();
        Operation::begin(ticket, async move {
            client.publish(message).await?;
            Ok(Answer::Nothing)
        })
    }

    /// Walks through the messages parked for a queue; the answer is a walk.
    pub fn parked(&self, queue: ByteBuffer, ticket: u64) -> Result<Arc<Operation>, FfiError> {
        let queue = String::from_utf8(queue.0)
            .map_err(|_| FfiError::option("`queue` is not valid UTF-8"))?;
        let parked = self.inner.parked(queue);
        Operation::begin_while_awaited(ticket, async move {
            let browse = parked.browse().await?;
            Ok(Answer::Walk(Box::new(browse)))
        })
    }

    /// Closes both connections.
    pub fn close(&self, ticket: u64) -> Result<Arc<Operation>, FfiError> {
        let client = self.inner.clone();
        Operation::begin(ticket, async move {
            client.close().await;
            Ok(Answer::Nothing)
        })
    }

    /// All counters in the OpenMetrics text format.
    pub fn metrics_text(&self) -> String {
        self.inner.metrics_text()
    }

    /// Why a connection is not open; none when both are.
    pub fn trouble(&self) -> Option<String> {
        self.inner.health().err().map(|error| error.to_string())
    }

    /// Fails with what the client ended by, if it ended by itself.
    pub fn check_end(&self) -> Result<(), FfiError> {
        match self.inner.end() {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }

    /// How often a connection was re-made.
    pub fn reconnects(&self) -> u64 {
        self.inner.reconnects()
    }

    /// What the broker said of itself: product and version.
    pub fn server(&self) -> Vec<String> {
        let server = self.inner.server();
        vec![server.product.clone(), server.version.clone()]
    }
}
