//! Hands on what happens, and never waits for whoever listens.

use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::metrics::counter::Counter;
use tokio::sync::mpsc::{self, error::TrySendError};

use crate::{ServiceEvent, memory_budget::MemoryBudget};

/// Events that may wait for one listener. Beyond that they are dropped for it, and counted.
const ROOM: usize = 4_096;

/// Where events are told. Clones tell the same listeners.
#[derive(Clone, Debug, Default)]
pub struct EventBus {
    listeners: Arc<Mutex<Vec<mpsc::Sender<ServiceEvent>>>>,
    dropped: Counter,
    /// For the bodies of what is told.
    memory: MemoryBudget,
    without_body: Counter,
}

impl EventBus {
    pub(crate) fn with_memory(memory: MemoryBudget) -> Self {
        Self {
            memory,
            ..Self::default()
        }
    }

    pub(crate) fn memory(&self) -> &MemoryBudget {
        &self.memory
    }

    /// There was no memory for the body of a message that is told.
    pub(crate) fn body_left_out(&self) {
        self.without_body.inc();
    }

    pub(crate) fn without_body_counter(&self) -> Counter {
        self.without_body.clone()
    }

    /// Listens from now on. Whoever reads too slowly misses what does not fit, and holds nobody up.
    #[must_use]
    pub fn listen(&self) -> mpsc::Receiver<ServiceEvent> {
        let (sender, receiver) = mpsc::channel(ROOM);
        self.lock().push(sender);
        receiver
    }

    /// Tells everybody who listens. What is to be told is made only if there is somebody.
    pub fn publish(&self, service_event: impl FnOnce() -> ServiceEvent) {
        let mut listeners = self.lock();
        if listeners.is_empty() {
            return;
        }
        let service_event = service_event();
        listeners.retain(|listener| match listener.try_send(service_event.clone()) {
            Ok(()) => true,
            Err(TrySendError::Full(_)) => {
                self.dropped.inc();
                true
            }
            Err(TrySendError::Closed(_)) => false,
        });
    }

    /// How many were dropped because a listener was slow.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.get()
    }

    pub(crate) fn dropped_counter(&self) -> Counter {
        self.dropped.clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<mpsc::Sender<ServiceEvent>>> {
        self.listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service_event() -> ServiceEvent {
        ServiceEvent::Retried(Box::default())
    }

    #[test]
    fn a_slow_listener_misses_some_and_holds_nobody_up() {
        let event_bus = EventBus::default();
        event_bus.publish(|| unreachable!("nobody listens"));
        let mut slow = event_bus.listen();
        for _ in 0..ROOM + 3 {
            event_bus.publish(service_event);
        }
        assert_eq!(event_bus.dropped(), 3);
        let mut read = 0;
        while slow.try_recv().is_ok() {
            read += 1;
        }
        assert_eq!(read, ROOM);
        drop(slow);
        event_bus.publish(service_event);
        event_bus.publish(|| unreachable!("nobody listens any more"));
        assert_eq!(event_bus.dropped(), 3);
    }
}
