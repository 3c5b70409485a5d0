//! The client.

use std::sync::Arc;

use pyo3::{
    Bound, IntoPyObjectExt, PyRef, PyResult, Python, pyclass, pyfunction, pymethods,
    types::{PyDict, PyDictMethods},
};
use retryrmq::{ClientOptions, QueueType};

use crate::{
    copy_store::CopyStore,
    credentials::CredentialProvider,
    errors::raised,
    notification_queue::NotificationQueue,
    object_count::{LiveObject, ObjectKind, ProcessBound},
    operation::Operation,
    options::Options,
    parked::Walk,
    publish::Outgoing,
    subscription::Subscription,
};

/// Connects; the answer is a `Client`. Dropping the operation stops the tries, because nobody else waits for it. Requests for credentials go
/// to `provider`, through the queue of notifications.
#[pyfunction]
#[pyo3(signature = (url, app_version, queue_type, wait, end_when_refused, provider))]
pub(crate) fn connect(
    py: Python<'_>,
    url: &str,
    app_version: String,
    queue_type: Option<&str>,
    wait: bool,
    end_when_refused: bool,
    provider: Option<(PyRef<'_, NotificationQueue>, u64)>,
) -> PyResult<Operation> {
    // First, so that any error drops it and releases the provider.
    let provider = provider.map(|(notifications, provider)| {
        CredentialProvider::new(Arc::clone(&notifications.0), provider)
    });
    let refused = |error: retryrmq::Error| raised(py, error);
    check_url(py, url)?;
    let queue_type = queue_type
        .map(str::parse)
        .transpose()
        .map_err(refused)?
        .unwrap_or_default();
    let mut options = ClientOptions::new()
        .app_version(app_version)
        .queue_type(queue_type)
        .wait(wait)
        .end_when_refused(end_when_refused);
    options.credentials = provider.as_ref().map(CredentialProvider::credentials);
    let url = url.to_owned();
    let connecting = Operation::begin(
        py,
        async move { retryrmq::Client::connect_with(&url, options).await },
        |py, client| Client::new(client, provider).into_py_any(py),
    )?;
    Ok(connecting.given_up_when_dropped())
}

/// Raises for an address that cannot be used. Nothing is tried.
#[pyfunction]
pub(crate) fn check_url(py: Python<'_>, url: &str) -> PyResult<()> {
    url.parse::<retryrmq::Addresses>()
        .map(drop)
        .map_err(|error| raised(py, error))
}

/// Raises for an unknown queue type.
#[pyfunction]
pub(crate) fn check_queue_type(py: Python<'_>, queue_type: &str) -> PyResult<()> {
    queue_type
        .parse::<QueueType>()
        .map(drop)
        .map_err(|error| raised(py, error))
}

/// A connected client.
#[pyclass(frozen, module = "retryrmq._native")]
pub(crate) struct Client {
    inner: ProcessBound<retryrmq::Client>,
    /// Asks for the login, if it is not that of the URL.
    provider: ProcessBound<Option<Arc<CredentialProvider>>>,
    _alive: LiveObject,
}

impl Client {
    fn new(client: retryrmq::Client, provider: Option<Arc<CredentialProvider>>) -> Self {
        Self {
            inner: ProcessBound::new(client),
            provider: ProcessBound::new(provider),
            _alive: LiveObject::new(ObjectKind::Client),
        }
    }

    fn here(&self, py: Python<'_>) -> PyResult<retryrmq::Client> {
        self.inner
            .same_process()
            .map_err(|error| raised(py, error))?;
        Ok((*self.inner).clone())
    }
}

#[pymethods]
impl Client {
    /// Subscribes; the answer is a `Subscription`. Events go to `listener`, through the queue of notifications.
    fn subscribe(
        &self,
        py: Python<'_>,
        options: PyRef<'_, Options>,
        listener: Option<(PyRef<'_, NotificationQueue>, u64)>,
    ) -> PyResult<Operation> {
        let mut consumer = options.consumer.clone().client(self.here(py)?);
        if let Some((notifications, listener)) = listener {
            let notifications = Arc::clone(&notifications.0);
            consumer = consumer.on_event(move |event| {
                notifications.event(listener, event);
            });
        }
        let subscribing = Operation::begin(py, consumer.subscribe(), |py, subscription| {
            Subscription::new(subscription).into_py_any(py)
        })?;
        Ok(subscribing.given_up_when_dropped())
    }

    /// Publishes; done after the broker's confirm.
    fn publish(&self, py: Python<'_>, message: Outgoing<'_>) -> PyResult<Operation> {
        let message = message.message(py)?;
        let client = self.here(py)?;
        Operation::begin(
            py,
            async move { client.publish(message).await },
            |py, ()| Ok(py.None()),
        )
    }

    /// Walks through the messages parked for a queue; the answer is a `Walk`.
    fn parked(&self, py: Python<'_>, queue: String) -> PyResult<Operation> {
        let parked = self.here(py)?.parked(queue);
        Operation::begin(py, async move { parked.browse().await }, |py, walk| {
            Walk::new(walk).into_py_any(py)
        })
    }

    /// Stores copies of messages of `queue` that another library received.
    fn copy_store(&self, py: Python<'_>, queue: String) -> PyResult<CopyStore> {
        CopyStore::new(py, &self.here(py)?, queue)
    }

    /// Closes both connections, and releases the function that gives the credentials.
    fn close(&self, py: Python<'_>) -> PyResult<Operation> {
        let client = self.here(py)?;
        let provider = self.provider.clone();
        Operation::begin(
            py,
            async move {
                client.close().await;
                if let Some(provider) = provider {
                    provider.end();
                }
                Ok::<_, retryrmq::Error>(())
            },
            |py, ()| Ok(py.None()),
        )
    }

    /// All counters in the OpenMetrics text format.
    fn metrics_text(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.here(py)?.metrics_text())
    }

    /// Why a connection is not open; `None` when both are.
    fn trouble(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let health = self.here(py)?.health();
        Ok(health.err().map(|error| error.to_string()))
    }

    /// Raises the error with which the client ended by itself, if it did.
    fn check_end(&self, py: Python<'_>) -> PyResult<()> {
        match self.here(py)?.end() {
            Some(error) => Err(raised(py, error)),
            None => Ok(()),
        }
    }

    /// How often a connection was lost and reconnected.
    #[getter]
    fn reconnects(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.here(py)?.reconnects())
    }

    /// The frame size of the connection that publishes.
    #[getter]
    fn frame_max(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.here(py)?.frame_max())
    }

    /// What the broker said about itself: product and version.
    #[getter]
    fn server<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        dict.set_item("product", &self.inner.server().product)?;
        dict.set_item("version", &self.inner.server().version)?;
        Ok(dict)
    }
}
