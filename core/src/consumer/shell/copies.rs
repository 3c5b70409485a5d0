//! Copies on their way. Each is published for the engine once its queue exists and is a safe place, and withdrawn when it is no longer wanted.

use std::{
    collections::HashMap,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use futures_util::FutureExt;
use tokio::{sync::mpsc, time::Instant};

use super::{
    super::{
        Token,
        engine::{Copy, Input},
        engine_time::EngineTime,
    },
    ShellEvent,
};
use crate::{
    Client, Error, ErrorKind, Result,
    publish::{Body, Done, Job, UsedLanes},
    topology::{self, DelayQueues},
};

/// The result of a copy: stored, and from when on it survives a crash of its broker, if it did not when it was sent; or an error.
pub(super) type Stored = Result<Option<Instant>>;

/// The copies of one consumer.
pub(super) struct Copies {
    sender: Sender,
    /// Copies that are not answered yet. A copy that was not sent yet is published only while it is in here.
    under_way: HashMap<Token, Arc<()>>,
    /// Copies whose queue does not exist, or is no safe place yet. Those for one queue are published together, in order.
    waiting: Arc<Mutex<WaitingCopies>>,
}

/// Copies by their queue, and by how often a connection was lost before: those of an earlier session are not sent.
type WaitingCopies = HashMap<(String, u64), Vec<WaitingCopy>>;

/// A copy that was not sent yet.
struct WaitingCopy {
    token: Token,
    copy: Copy,
    body: Body,
    at_once: bool,
    asked: Weak<()>,
}

/// Publishes copies.
#[derive(Clone)]
struct Sender {
    client: Client,
    waits: Arc<DelayQueues>,
    /// Where their answers go.
    mail: mpsc::UnboundedSender<ShellEvent>,
    used: Arc<UsedLanes>,
}

impl Copies {
    pub(super) fn new(
        client: Client,
        waits: Arc<DelayQueues>,
        mail: mpsc::UnboundedSender<ShellEvent>,
    ) -> Self {
        Self {
            sender: Sender {
                client,
                waits,
                mail,
                used: Arc::default(),
            },
            under_way: HashMap::new(),
            waiting: Arc::default(),
        }
    }

    /// Whether publishing copies of this consumer makes no progress. A queue of another consumer may be away for days.
    pub(super) fn are_stalled(&self) -> bool {
        let Sender { client, used, .. } = &self.sender;
        client.publisher().is_stalled(used.all())
    }

    /// Publishes a copy of a message of this work queue. Creates its target first, if that is not known to exist, and waits until the target
    /// is a safe place, unless the copy is to be sent `at_once`. Before that its original could not be acknowledged, and a consumer that is
    /// killed would leave both.
    pub(super) fn publish(
        &mut self,
        token: Token,
        mut copy: Copy,
        at_once: bool,
        body: Body,
        work_queue: &str,
    ) {
        let waits = &self.sender.waits;
        (copy.routing_key, copy.properties) = waits.adapt(copy.routing_key, copy.properties);
        waits.find_marker(target(&copy));
        let asker = Arc::new(());
        let asked = Arc::downgrade(&asker);
        self.under_way.insert(token, asker);
        let one = WaitingCopy {
            token,
            copy,
            body,
            at_once,
            asked,
        };
        let target = target(&one.copy);
        let is_known = || waits.safe_from(target).is_some();
        if target == work_queue || waits.is_safe(target) || at_once && is_known() {
            self.sender.send(one);
        } else {
            self.wait(target.to_owned(), one);
        }
    }

    fn wait(&self, target: String, one: WaitingCopy) {
        let key = (target, self.sender.waits.losses());
        let mut waiting = lock(&self.waiting);
        let is_first = !waiting.contains_key(&key);
        waiting.entry(key.clone()).or_default().push(one);
        if !is_first {
            return;
        }
        let (sender, waiting) = (self.sender.clone(), Arc::clone(&self.waiting));
        tokio::spawn(async move {
            let urgent = || take_urgent(&waiting, &key);
            // Whatever happens, others must not wait behind these for ever.
            let ready = AssertUnwindSafe(sender.is_ready(&key.0, urgent)).catch_unwind();
            let ready = ready.await.unwrap_or_else(|_| {
                let why = "waiting for a queue panicked, which is a bug in retryrmq";
                Err(Error::new(ErrorKind::ConnectionLost, why))
            });
            // Whoever comes next is sent behind them.
            let mut waiting = lock(&waiting);
            for one in waiting.remove(&key).unwrap_or_default() {
                match &ready {
                    Ok(()) => sender.send(one),
                    Err(error) => sender.refuse(one.token, error.duplicate()),
                }
            }
        });
    }

    /// A copy is no longer wanted. It is answered all the same.
    pub(super) fn withdraw(&mut self, token: Token) {
        self.under_way.remove(&token);
    }

    /// The engine's input for an answer.
    pub(super) fn answered(
        &mut self,
        token: Token,
        stored: Stored,
        moment: impl FnOnce(Instant) -> EngineTime,
    ) -> Input {
        self.under_way.remove(&token);
        let stored = stored.map(|safe_from| safe_from.map(moment));
        Input::Copied { token, stored }
    }
}

impl Sender {
    /// Makes sure that a queue exists, sends copies that cannot wait for longer, and waits until the queue is a safe place.
    ///
    /// # Errors
    /// Those of [`DelayQueues::ensure`] and [`DelayQueues::until_safe`], and [`ErrorKind::ConnectionLost`] if the connection of the originals is gone.
    async fn is_ready(&self, target: &str, urgent: impl Fn() -> Vec<WaitingCopy>) -> Result<()> {
        let Self { client, waits, .. } = self;
        let lost = || {
            let why = format!("the connection was lost before the queue `{target}` was ready");
            Error::new(ErrorKind::ConnectionLost, why)
        };
        let connection = client.consuming_now().ok_or_else(lost)?;
        waits.ensure(target).await?;
        if !connection.is_open() {
            return Err(lost());
        }
        waits.find_marker(target);
        waits.mark_when_old(&connection);
        for one in urgent() {
            self.send(one);
        }
        waits.until_safe(target).await?;
        if connection.is_open() {
            Ok(())
        } else {
            Err(lost())
        }
    }

    fn send(&self, one: WaitingCopy) {
        let WaitingCopy {
            token,
            copy,
            body,
            asked,
            ..
        } = one;
        let done = self.answer(token, &copy);
        match done.and_then(|done| job(copy, body, done)) {
            Ok(job) => self
                .used
                .add(self.client.publisher().submit_for(job, asked)),
            Err(error) => self.refuse(token, error),
        }
    }

    fn refuse(&self, token: Token, error: Error) {
        let _ = self.mail.send(ShellEvent::Copied(token, Err(error)));
    }

    /// The callback for a copy's result.
    ///
    /// # Errors
    /// [`ErrorKind::ConnectionLost`] for a copy to the plugin, if there is no connection: nobody could prove that the copy has survived.
    fn answer(&self, token: Token, copy: &Copy) -> Result<Done> {
        let (mail, waits) = (self.mail.clone(), Arc::clone(&self.waits));
        let (target, sent) = (target(copy).to_owned(), Instant::now());
        // The connection before the publish. The one after the confirm may be another, and then the first one's node may have lost the
        // copy.
        let in_plugin = if copy.exchange.is_empty() {
            None
        } else {
            let connection = self.client.publishing_now().ok_or_else(|| {
                let why = "there is no connection to publish on";
                Error::new(ErrorKind::ConnectionLost, why)
            })?;
            Some((connection, topology::hardens(&copy.properties)))
        };
        Ok(Box::new(move |result: Result<()>| {
            let result = result.map_err(|error| {
                if error.kind() != ErrorKind::Unroutable {
                    return error;
                }
                waits.forget(&target);
                // The next try makes it again, so a missing exchange lasts no longer than a missing queue.
                Error::new(error.kind(), error.to_string())
            });
            if let (Some((connection, hardens)), Ok(())) = (in_plugin, &result) {
                tokio::spawn(async move {
                    let lived = connection.lives_until(Instant::now() + hardens).await;
                    let stored = lived.map(|()| None).map_err(|error| {
                        let why = format!(
                            "{error} before the delayed-message plugin had stored the message"
                        );
                        Error::new(error.kind(), why)
                    });
                    let _ = mail.send(ShellEvent::Copied(token, stored));
                });
                return;
            }
            if result.is_ok() && waits.is_asked(&target) {
                tokio::spawn(async move {
                    let stored = Ok(waits.age_from_marker(&target, sent).await);
                    let _ = mail.send(ShellEvent::Copied(token, stored));
                });
                return;
            }
            let stored = result.map(|()| waits.durable_after(&target).filter(|safe| *safe > sent));
            let _ = mail.send(ShellEvent::Copied(token, stored));
        }))
    }
}

/// What must exist for a copy: its queue, or its exchange.
fn target(copy: &Copy) -> &str {
    if copy.exchange.is_empty() {
        &copy.routing_key
    } else {
        &copy.exchange
    }
}

fn job(copy: Copy, body: Body, done: Done) -> Result<Job> {
    Ok(Job {
        exchange: topology::name(&copy.exchange)?,
        routing_key: topology::name(&copy.routing_key)?,
        properties: copy.properties,
        body,
        mandatory: copy.mandatory,
        done,
    })
}

/// Takes those copies to this queue that are to be sent at once. The others go on waiting.
fn take_urgent(waiting: &Mutex<WaitingCopies>, key: &(String, u64)) -> Vec<WaitingCopy> {
    let mut waiting = lock(waiting);
    let Some(all) = waiting.get_mut(key) else {
        return Vec::new();
    };
    let (taken, others) = std::mem::take(all).into_iter().partition(|one| one.at_once);
    *all = others;
    taken
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
