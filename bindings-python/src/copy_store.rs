//! Copies that a contract decided on, for programs that received the original with another library.

use pyo3::{IntoPyObjectExt, PyRef, PyResult, Python, pyclass, pymethods};
use retryrmq::{Error, FailedMessage};

use crate::{errors::raised, object_count::ProcessBound, operation::Operation};

/// What a contract decided for a message: the copy that goes to a queue.
#[pyclass(frozen, module = "retryrmq._native")]
pub(crate) struct Decision {
    message: FailedMessage,
    inner: retryrmq::Decision,
}

impl Decision {
    pub(crate) fn new(message: &retryrmq::Message, inner: retryrmq::Decision) -> Self {
        Self {
            message: FailedMessage::of_queue(message, message.queue()),
            inner,
        }
    }
}

/// Stores the copies of the messages of one queue, on the connections of a client.
#[pyclass(frozen, module = "retryrmq._native")]
pub(crate) struct CopyStore(ProcessBound<retryrmq::Retrier>);

impl CopyStore {
    pub(crate) fn new(py: Python<'_>, client: &retryrmq::Client, queue: String) -> PyResult<Self> {
        let retrier = client.retrier(queue).map_err(|error| raised(py, error))?;
        Ok(Self(ProcessBound::new(retrier)))
    }
}

#[pymethods]
impl CopyStore {
    /// Stores a copy. Done when the copy is safe; the answer is the name of its queue. If the operation is dropped before the copy was sent,
    /// none is sent.
    fn store(&self, py: Python<'_>, decision: PyRef<'_, Decision>) -> PyResult<Operation> {
        self.0
            .check(py, "connect after the fork, in each process")?;
        let retrier = (*self.0).clone();
        let (message, decision) = (decision.message.clone(), decision.inner.clone());
        let work = async move {
            retrier.store(&message, &decision).await?;
            Ok::<_, Error>(decision.queue)
        };
        let stored = Operation::begin(py, work, |py, queue| queue.into_py_any(py))?;
        Ok(stored.given_up_when_dropped())
    }
}
