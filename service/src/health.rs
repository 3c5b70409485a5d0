//! Whether the service does its work, in a sentence for a probe.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use retryrmq::Client;
use tokio::sync::watch;

/// What the probes are told. Clones share it.
#[derive(Clone, Debug)]
pub struct Health {
    client: watch::Sender<Option<Client>>,
    /// The exchange, the queues and the binding of the intake were there at the last look.
    stands: Arc<AtomicBool>,
    consumes: Arc<AtomicBool>,
    ends: Arc<AtomicBool>,
    /// Why the store takes no messages.
    store: watch::Sender<Option<String>>,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            client: watch::Sender::new(None),
            stands: Arc::default(),
            consumes: Arc::default(),
            ends: Arc::default(),
            store: watch::Sender::new(None),
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
        if !self.stands.load(Ordering::Relaxed) {
            return Err("the intake is not declared; the log says why".to_owned());
        }
        if !self.consumes.load(Ordering::Relaxed) {
            return Err("the intake is not consumed; the log says why".to_owned());
        }
        if let Some(why) = &*self.store.borrow() {
            return Err(format!("what is to wait stays in the intake: {why}"));
        }
        Ok(())
    }

    pub(crate) fn client(&self) -> Option<Client> {
        self.client.borrow().clone()
    }

    pub(crate) fn connected(&self, client: Client) {
        self.client.send_replace(Some(client));
    }

    pub(crate) fn stands(&self, stands: bool) {
        self.stands.store(stands, Ordering::Relaxed);
    }

    pub(crate) fn consumes(&self, consumes: bool) {
        self.consumes.store(consumes, Ordering::Relaxed);
    }

    /// Why the store takes nothing, if it does not.
    pub(crate) fn store(&self, why: Option<String>) {
        self.store.send_replace(why);
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
