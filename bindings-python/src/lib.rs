//! The native half of the Python package `retryrmq`.
//!
//! It converts values, calls the core, and converts the results. All Python code (handlers, loggers, listeners, futures) is run by the
//! Python half. No thread of this half takes the interpreter's lock by itself, so none is inside the interpreter when it ends.

mod client;
mod contract;
mod copy_store;
mod credential_request;
mod credentials;
mod errors;
mod logging;
mod message;
mod message_source;
mod notification_queue;
mod object_count;
mod operation;
mod options;
mod parked;
mod publish;
mod simulation;
mod subscription;
mod values;
mod wakeups;

#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    use crate::{
        client::{Client, check_queue_type, check_url, connect},
        contract::Contract,
        copy_store::{CopyStore, Decision},
        credential_request::CredentialRequest,
        logging::want_lines,
        message::Message,
        notification_queue::NotificationQueue,
        object_count::live_objects,
        operation::Operation,
        options::{Options, default_policy, duration_text, parse_duration, policy},
        parked::{Record, Walk},
        simulation::Simulation,
        subscription::{Batches, Subscription},
        values::time,
    };

    use pyo3::{
        Bound, PyResult,
        types::{PyModule, PyModuleMethods},
    };

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("VERSION", env!("CARGO_PKG_VERSION"))?;
        let usual = retryrmq::Pause::default();
        let duration = retryrmq::format_duration(usual.pause);
        module.add("PAUSE", (usual.failures, usual.window, duration))
    }
}
