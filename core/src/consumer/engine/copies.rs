//! Copies on their way to a waiting or parking queue: confirmed before their originals are acknowledged.

use std::sync::Arc;

use tokio::time::Instant;
use tracing::warn;

use super::{
    super::{Token, agenda::Task, session::Return},
    Copying, Engine, FIRST_PAUSE, LONGEST_PAUSE, Mail, Phase, TRIES,
};
use crate::{
    Error, ErrorKind, Result,
    publish::Job,
    retry::{Failure, ParkReason},
    telemetry::Event,
    topology::{self, Route, parking_queue},
};

impl Engine {
    pub(super) fn detour(&mut self, token: Token, crashes: u32) {
        let Some(entry) = self.entries.get_mut(token) else {
            return;
        };
        let received = Arc::clone(&entry.received);
        let event = Event::Detoured {
            queue: self.queue(),
            message_id: received.message_id(),
            crashes,
        };
        let Route::Copy {
            exchange,
            routing_key,
            expiration,
            mandatory,
            ..
        } = topology::detour(
            &self.name,
            self.options.rules.otherwise.delays().first().copied(),
        )
        else {
            return;
        };
        let properties = self.stamp(&received).detour(crashes, expiration);
        self.copy(
            token,
            Copying {
                exchange,
                routing_key,
                properties,
                mandatory,
                event,
                tries: 0,
            },
        );
    }

    pub(super) async fn park(&mut self, token: Token, reason: ParkReason, failure: &Failure) {
        let Some(entry) = self.entries.get_mut(token) else {
            return;
        };
        let received = Arc::clone(&entry.received);
        let event = Event::Parked {
            queue: self.queue(),
            message_id: received.message_id(),
            attempt: received.state.attempt(),
            reason,
            error: failure.error.clone(),
        };
        if !self.options.park {
            warn!(queue = %self.name, %reason, error = failure.error, "a message is given up and dropped, because `park` is off");
            self.happened(&event);
            self.release(token);
            return;
        }
        let properties = self.stamp(&received).parked(reason, failure);
        let routing_key = parking_queue(&self.name);
        self.copy(
            token,
            Copying {
                exchange: String::new(),
                routing_key,
                properties,
                mandatory: true,
                event,
                tries: 0,
            },
        );
    }

    /// Publishes a copy; its original stays unacknowledged until the copy is confirmed.
    pub(super) fn copy(&mut self, token: Token, copying: Copying) {
        let Some(entry) = self.entries.get_mut(token) else {
            return;
        };
        let received = Arc::clone(&entry.received);
        entry.phase = Phase::Copying(Box::new(copying.clone()));
        let (mail, client, waits) = (
            self.mail.clone(),
            self.client.clone(),
            Arc::clone(&self.waits),
        );
        let done = {
            let mail = mail.clone();
            Box::new(move |result| {
                let _ = mail.send(Mail::Copied(token, result));
            })
        };
        let known = !copying.exchange.is_empty()
            || *copying.routing_key == *self.name
            || waits.safe_from(&copying.routing_key).is_some();
        let job = (|| {
            Ok(Job {
                exchange: topology::name(&copying.exchange)?,
                routing_key: topology::name(&copying.routing_key)?,
                properties: copying.properties,
                body: received,
                mandatory: copying.mandatory,
                done,
            })
        })();
        match job {
            Ok(job) if known => client.publisher().submit(job),
            Ok(job) => {
                tokio::spawn(async move {
                    match waits.ensure(&copying.routing_key).await {
                        Ok(_) => client.publisher().submit(job),
                        Err(error) => (job.done)(Err(error)),
                    }
                });
            }
            Err(error) => {
                let _ = mail.send(Mail::Copied(token, Err(error)));
            }
        }
    }

    pub(super) fn copied(&mut self, token: Token, result: Result<()>) {
        let Some(entry) = self.entries.get_mut(token) else {
            return;
        };
        let Phase::Copying(copying) = &mut entry.phase else {
            return;
        };
        let current = self
            .session
            .as_ref()
            .is_some_and(|session| session.id == entry.session);
        match result {
            Ok(()) => {
                let event = copying.event.clone();
                let safe = self
                    .waits
                    .safe_from(&copying.routing_key)
                    .filter(|safe| *safe > Instant::now());
                self.happened(&event);
                match safe {
                    Some(safe) if current => self.agenda.add(safe, token, Task::Release),
                    Some(_) => self.forget(token), // what took the connection may have emptied the young queue
                    None => self.release(token),
                }
            }
            Err(_) if !current => self.forget(token), // its original comes again, and with it another copy
            // Into its own queue, which is full or gone: it goes back as it is, at the price of a mark.
            Err(error) if matches!(copying.event, Event::Requeued { .. }) => {
                let message_id = entry.received.message_id();
                self.complain(error, message_id);
                self.agenda.add(Instant::now(), token, Task::PutBack);
            }
            Err(error) => {
                copying.tries += 1;
                let tries = copying.tries;
                // Only once: RabbitMQ 4 drops what was returned twenty times, and on older ones it would be parked as
                // what takes consumers down. After that it is held here for as long as it takes.
                let received = Arc::clone(&entry.received);
                let returned = received.redelivered || received.state.own_crashes > 0;
                if error.kind() == ErrorKind::Unroutable {
                    self.waits.forget(&copying.routing_key);
                }
                self.complain(error, received.message_id());
                let pause = (FIRST_PAUSE * 2u32.pow(tries.min(8)))
                    .min(LONGEST_PAUSE)
                    .mul_f64(0.75 + fastrand::f64() / 2.0);
                let task = if tries >= TRIES && !returned {
                    Task::Requeue
                } else {
                    Task::Resubmit
                };
                self.agenda.add(Instant::now() + pause, token, task);
            }
        }
    }

    pub(super) fn complain(&self, error: Error, message_id: Option<String>) {
        warn!(queue = %self.name, %error, "a copy could not be stored; its original is kept, and it is tried again");
        self.counters.publish_failures.inc();
        let (queue, error) = (self.queue(), error.to_string());
        self.options.listener.tell(|| Event::PublishFailed {
            queue,
            message_id,
            error,
        });
    }

    pub(super) async fn perform(&mut self, token: Token, task: Task) {
        let Some(entry) = self.entries.get_mut(token) else {
            return;
        };
        let current = self
            .session
            .as_ref()
            .is_some_and(|session| session.id == entry.session);
        match task {
            Task::Release if current => self.release(token),
            Task::Resubmit if current => {
                if let Phase::Copying(copying) = &entry.phase {
                    let copying = (**copying).clone();
                    self.copy(token, copying);
                }
            }
            Task::PutBack if current => self.give_back(token, Return::Unstarted).await,
            Task::Requeue if current => {
                let message_id = entry.received.message_id();
                let queue = self.queue();
                self.options
                    .listener
                    .tell(|| Event::Requeued { queue, message_id });
                self.give_back(token, Return::Requeue).await;
            }
            // The original comes again. Not remembered as done: a copy in a young queue may have gone with the broker.
            Task::Release | Task::Resubmit | Task::PutBack | Task::Requeue => self.forget(token),
        }
    }
}
