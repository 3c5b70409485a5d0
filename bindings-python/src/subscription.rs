//! A running consumer: batches of messages out, ends of attempts in.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use pyo3::{
    Bound, IntoPyObjectExt, PyRef, PyResult, Python, pyclass, pymethods,
    types::{PyDict, PyDictMethods, PyList},
};
use retryrmq::{Delivery, Outcome};
use retryrmq_bindings::{BatchGuard, BatchSize};

use crate::{message::Message, message_source::MessageSource, operation::Operation};

/// A running consumer.
#[pyclass(frozen, weakref, module = "retryrmq._native")]
pub(crate) struct Subscription(Arc<MessageSource>);

impl Subscription {
    pub(crate) fn new(subscription: retryrmq::Subscription) -> Self {
        Self(Arc::new(MessageSource::new(subscription)))
    }

    /// Raises in a forked child, where nothing ever arrives or ends.
    fn here(&self, py: Python<'_>) -> PyResult<()> {
        self.0.subscription.check(
            py,
            "this consumer was started before the process was forked; connect after the fork, in each process",
        )
    }

    fn arrived(&self, py: Python<'_>, most: usize, seconds: f64) -> PyResult<Vec<Delivery>> {
        self.here(py)?;
        let batch = self.0.subscription.try_next_batch(most);
        if !batch.is_empty() {
            return Ok(batch);
        }
        let wait = Duration::from_secs_f64(seconds.clamp(0.0, 3600.0));
        Ok(py.detach(|| self.0.subscription.next_batch_blocking(most, wait)))
    }

    fn messages<'py>(&self, py: Python<'py>, batch: Vec<Delivery>) -> PyResult<Bound<'py, PyList>> {
        let tokens = batch.iter().map(|delivery| delivery.token);
        let guard = BatchGuard::new(tokens, |tokens| self.0.subscription.give_back(tokens));
        let messages = batch
            .into_iter()
            .map(|Delivery { token, message, .. }| {
                Bound::new(py, Message::new(message, token, Some(Arc::clone(&self.0))))
            })
            .collect::<PyResult<Vec<_>>>()?;
        let messages = PyList::new(py, messages)?;
        guard.disarm();
        Ok(messages)
    }
}

/// Messages, each time as many as are good at once. Each thread has its own batches: how quick it is depends on its handlers alone.
#[pyclass(frozen, module = "retryrmq._native")]
pub(crate) struct Batches {
    of: Subscription,
    most: usize,
    size: Mutex<BatchSize>,
}

impl Batches {
    fn size(&self) -> MutexGuard<'_, BatchSize> {
        self.size.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Batches {
    /// Messages that have arrived. Never waits. `ended` is whether the handler that is watched has ended, if there is one; if so, that of the
    /// first message is watched now.
    fn take<'py>(&self, py: Python<'py>, ended: bool) -> PyResult<Bound<'py, PyList>> {
        let (mut size, now) = (self.size(), Instant::now());
        let most = size.next(ended, now).min(self.most);
        let batch = self.of.0.subscription.try_next_batch(most);
        if !batch.is_empty() {
            size.took(batch.len(), now);
        }
        drop(size);
        self.of.messages(py, batch)
    }

    /// Waits for messages, for at most `seconds`. Empty if none came, or no more will come. All handlers of the last batch have ended.
    fn take_blocking<'py>(&self, py: Python<'py>, seconds: f64) -> PyResult<Bound<'py, PyList>> {
        let most = self.size().next(true, Instant::now()).min(self.most);
        let batch = self.of.arrived(py, most, seconds)?;
        self.size().took(batch.len(), Instant::now());
        self.of.messages(py, batch)
    }
}

#[pymethods]
impl Subscription {
    /// The messages that have arrived, at most `most`. Never waits.
    fn take<'py>(&self, py: Python<'py>, most: usize) -> PyResult<Bound<'py, PyList>> {
        let batch = self.0.subscription.try_next_batch(most);
        self.messages(py, batch)
    }

    /// Waits for messages, for at most `seconds`. Empty if none came, or no more will come.
    fn take_blocking<'py>(
        &self,
        py: Python<'py>,
        most: usize,
        seconds: f64,
    ) -> PyResult<Bound<'py, PyList>> {
        let batch = self.arrived(py, most, seconds)?;
        self.messages(py, batch)
    }

    /// The batches of a thread or of an event loop, of at most `most` messages each.
    #[pyo3(signature = (most=None))]
    fn batches(&self, most: Option<usize>) -> Batches {
        Batches {
            of: Self(Arc::clone(&self.0)),
            most: most.unwrap_or(usize::MAX),
            size: Mutex::default(),
        }
    }

    /// Done when there are messages (`True`), or no more will come (`False`).
    fn ready(&self, py: Python<'_>) -> PyResult<Operation> {
        self.here(py)?;
        let source = Arc::clone(&self.0);
        Operation::begin(
            py,
            async move { Ok::<_, retryrmq::Error>(source.subscription.ready().await) },
            |py, more| more.into_py_any(py),
        )
    }

    /// Acknowledges.
    fn ack(&self, messages: Vec<PyRef<'_, Message>>) {
        if self.0.subscription.is_here() {
            self.0
                .subscription
                .settle(messages.iter().map(|message| (message.token, Outcome::Ack)));
        }
    }

    /// Requeues messages that no handler has started.
    fn give_back(&self, messages: Vec<PyRef<'_, Message>>) {
        if self.0.subscription.is_here() {
            self.0
                .subscription
                .give_back(messages.iter().map(|message| message.token));
        }
    }

    /// Starts to close.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.here(py)?;
        self.0.subscription.close();
        Ok(())
    }

    /// Ends now, without waiting for handlers.
    fn abandon(&self, py: Python<'_>) -> PyResult<()> {
        self.here(py)?;
        self.0.subscription.abandon();
        Ok(())
    }

    /// Whether it was asked to close.
    #[getter]
    fn is_closing(&self) -> bool {
        self.0.subscription.is_closing()
    }

    /// Done when everything is settled.
    fn wait_closed(&self, py: Python<'_>) -> PyResult<Operation> {
        self.here(py)?;
        let source = Arc::clone(&self.0);
        Operation::begin(
            py,
            async move { source.subscription.wait_closed().await },
            |py, ()| Ok(py.None()),
        )
    }

    /// The counters of this queue since the client was made.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.here(py)?;
        let stats = self.0.subscription.stats();
        let dict = PyDict::new(py);
        for (name, number) in stats.numbers() {
            dict.set_item(name, number)?;
        }
        Ok(dict)
    }
}
