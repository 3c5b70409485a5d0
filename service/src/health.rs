//! Whether the service does its work, in a sentence for a probe.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use retryrmq::Client;
use tokio::sync::watch;

use crate::queue_names::{HANDOVER_QUEUE, INTAKE_QUEUE};

/// What the probes are told. Clones share it.
#[derive(Clone, Debug)]
pub struct Health {
    client: watch::Sender<Option<Client>>,
    /// Why the exchange, the queues and the binding of the intake were not there at the last look, or the intake is not consumed yet.
    set_intake: watch::Sender<Result<(), String>>,
    /// The queues that are not consumed: all that are to be.
    unconsumed: Arc<Mutex<BTreeSet<&'static str>>>,
    ends: Arc<AtomicBool>,
    /// Why the store takes no messages.
    store: watch::Sender<Option<String>>,
    /// Tasks that have ended on their own and are begun anew, each with a sentence.
    ended: watch::Sender<BTreeMap<&'static str, String>>,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            client: watch::Sender::new(None),
            set_intake: watch::Sender::new(Err("nothing was declared yet".to_owned())),
            unconsumed: Arc::new(Mutex::new([INTAKE_QUEUE, HANDOVER_QUEUE].into())),
            ends: Arc::default(),
            store: watch::Sender::new(None),
            ended: watch::Sender::default(),
        }
    }
}

impl Health {
    /// Whether what dies now is taken care of.
    ///
    /// # Errors
    /// Why not, in a sentence.
    pub fn ready(&self) -> Result<(), String> {
        if self.ends.load(Ordering::Relaxed) {
            return Err("the service is ending".to_owned());
        }
        let Some(client) = self.client() else {
            return Err("the broker has not been reached yet".to_owned());
        };
        client
            .health()
            .map_err(|why| format!("there is no connection to the broker: {why}"))?;
        if let Err(why) = &*self.set_intake.borrow() {
            return Err(format!("the intake is not ready: {why}"));
        }
        let unconsumed = Vec::from_iter(self.unconsumed().iter().copied());
        if !unconsumed.is_empty() {
            let are = if unconsumed.len() > 1 { "are" } else { "is" };
            let queues = unconsumed.join(" and ");
            return Err(format!("{queues} {are} not consumed; the log says why"));
        }
        if let Some(why) = &*self.store.borrow() {
            return Err(format!(
                "messages stay in the intake because the store is unavailable: {why}"
            ));
        }
        if let Some(why) = self.ended.borrow().values().next() {
            return Err(why.clone());
        }
        Ok(())
    }

    pub(crate) fn client(&self) -> Option<Client> {
        self.client.borrow().clone()
    }

    pub(crate) fn connected(&self, client: Client) {
        self.client.send_replace(Some(client));
    }

    /// Whether the intake is declared, and why not.
    pub(crate) fn set_intake(&self, set_intake: Result<(), String>) {
        drop(self.set_intake.send_replace(set_intake));
    }

    /// A task has ended though nobody has asked for it, or works again.
    pub(crate) fn ended(&self, task: &'static str, why: Option<String>) {
        self.ended.send_modify(|ended| {
            match why {
                Some(why) => ended.insert(task, why),
                None => ended.remove(task),
            };
        });
    }

    pub(crate) fn consumes(&self, queue: &'static str, consumes: bool) {
        let mut unconsumed = self.unconsumed();
        if consumes {
            unconsumed.remove(queue);
        } else {
            unconsumed.insert(queue);
        }
    }

    fn unconsumed(&self) -> MutexGuard<'_, BTreeSet<&'static str>> {
        self.unconsumed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the store takes nothing, if it does not.
    pub(crate) fn store(&self, why: Option<String>) {
        self.store.send_replace(why);
    }

    #[cfg(test)]
    pub(crate) fn intake_state(&self) -> Result<(), String> {
        self.set_intake.borrow().clone()
    }

    #[cfg(test)]
    pub(crate) fn troubles(&self) -> Vec<String> {
        self.ended.borrow().values().cloned().collect()
    }

    pub(crate) fn ends(&self) {
        self.ends.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_not_ready_before_the_broker_is_reached_nor_at_the_end() {
        let health = Health::default();
        assert!(health.ready().unwrap_err().contains("not been reached"));
        health.ends();
        assert!(health.ready().unwrap_err().contains("ending"));
    }
}
