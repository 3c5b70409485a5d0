//! What could lose messages, one after the other in the same virtual host: attempts that fail, a consumer that is closed and cut off, a
//! work queue that is missing when messages come back to it, and a replay of everything that is parked.

use crate::environment::Environment;
use crate::handler_script::HandlerScript;
use crate::ledger::Ledger;
use crate::observations::Observations;
use crate::setting::Expectation;
use crate::{DEADLINE, Loss, PARKED, POLICY, QUEUE, Setting, WAITING, inspection};
use retryrmq::{Client, Consumer, ErrorKind, Policy, Publish, Result, RunningConsumer};
use retryrmq_harness::eventually;
use std::{cell::Cell, collections::BTreeSet, time::Instant};

/// How many messages of each fate a batch has.
const EACH: usize = 3;
/// The batch that comes back while its queue is missing.
const HOMELESS: &str = "homeless";
/// How many times in a row nothing is found in any queue, before what is missing counts as gone.
const LOOKS: u32 = 8;

pub(crate) async fn run(environment: &Environment, setting: &Setting) {
    let mut setting_run = SettingRun::begin(environment, setting).await;
    // Beside each other, because a queue that expires is there only while it is used.
    let is_found = Cell::new(false);
    let fault = async {
        setting_run.attempts_fail().await;
        setting_run.the_consumer_ends_and_is_cut_off().await;
        while !is_found.get() {
            setting_run.more_attempts_fail().await;
        }
    };
    let inspection = async {
        inspection::finds(environment, setting).await;
        is_found.set(true);
    };
    tokio::join!(fault, inspection);
    setting_run.the_work_queue_is_missing().await;
    setting_run.what_is_parked_is_replayed().await;
    setting_run.end().await;
}

/// A consumer with short waits.
pub(crate) fn consumer(client: &Client, observations: &Observations) -> Consumer {
    let policy: Policy = POLICY.parse().expect("the text is a policy");
    let consumer = client.consumer(QUEUE).dlx(true).retry(policy);
    consumer.on_event(observations.listener())
}

/// The ids of a batch.
fn batch_of(batch: &str) -> impl Iterator<Item = String> + use<'_> {
    let numbers = 0..EACH;
    numbers.flat_map(move |number| {
        HandlerScript::ALL.map(|handler_script| handler_script.id(batch, number))
    })
}

/// Its body is its id, and spaces up to so many bytes.
fn message(queue: &str, id: &str, size: usize) -> Publish {
    Publish::to_queue(queue, format!("{id:size$}")).message_id(id)
}

/// The messages of one setting, and their consumer.
struct SettingRun<'a> {
    environment: &'a Environment,
    setting: &'a Setting,
    client: Client,
    running: Option<RunningConsumer>,
    observations: Observations,
    ledger: Ledger,
    /// How many batches there were beyond those of the scenarios.
    batches: u32,
}

impl<'a> SettingRun<'a> {
    async fn begin(environment: &'a Environment, setting: &'a Setting) -> Self {
        environment.declare().await;
        let client = Self::insist(setting, "the client connects", || environment.connect()).await;
        let mut setting_run = SettingRun {
            environment,
            setting,
            client,
            running: None,
            observations: Observations::default(),
            ledger: Ledger::default(),
            batches: 0,
        };
        setting_run.start().await;
        setting_run
    }

    async fn start(&mut self) {
        let start = || {
            consumer(&self.client, &self.observations)
                .start(self.observations.handler(self.setting.sizes.1))
        };
        let running = Self::insist(self.setting, "the consumer starts", start).await;
        self.running = Some(running);
    }

    /// Once, or until it succeeds, as whatever starts a program again does, where the broker or a busy machine may close a connection.
    async fn insist<T, F: Future<Output = Result<T>>>(
        setting: &Setting,
        what: &str,
        attempt: impl Fn() -> F,
    ) -> T {
        if setting.cuts_connections() || setting.limits_connections() {
            return eventually(DEADLINE, what, attempt).await;
        }
        attempt()
            .await
            .unwrap_or_else(|why| panic!("{what}: {why}"))
    }

    async fn stop(&mut self) {
        let running = self.running.take().expect("a consumer runs");
        running.close().await;
    }

    async fn attempts_fail(&mut self) {
        self.publish("first").await;
        self.settled("after failed attempts").await;
    }

    async fn the_consumer_ends_and_is_cut_off(&mut self) {
        self.publish("second").await;
        self.stop().await;
        self.offer("third").await;
        let before = self.client.reconnects();
        self.environment.declare().await;
        self.start().await;
        self.environment.cut().await;
        eventually(DEADLINE, "the client connects again", || async {
            self.client.reconnects() > before
        })
        .await;
        self.publish("fourth").await;
        self.settled("after a restart and lost connections").await;
    }

    async fn more_attempts_fail(&mut self) {
        self.batches += 1;
        self.publish(&format!("more-{}", self.batches)).await;
        self.settled("after more failed attempts").await;
    }

    /// Messages come back while the work queue is missing, and wait for it.
    async fn the_work_queue_is_missing(&mut self) {
        // Also what the lost connections have doubled.
        eventually(DEADLINE, "all queues are empty", || self.is_quiet()).await;
        self.stop().await;
        self.environment.amqp.delete(QUEUE).await;
        let ids: Vec<_> = (0..EACH)
            .map(|number| HandlerScript::FailsOnce.id(HOMELESS, number))
            .collect();
        let mut kept = Vec::new();
        for id in ids {
            if self.offer_one(WAITING[0], &id).await {
                kept.push(id);
            }
        }
        if !self.setting.may_lose() {
            assert!(!kept.is_empty(), "{}: no message waits", self.environment);
            self.held(kept.len()).await;
        }
        self.environment.declare().await;
        self.start().await;
        if !self.environment.offers_again_soon() {
            kept.iter().for_each(|id| self.ledger.held(id));
        }
        self.settled("after the work queue was missing").await;
    }

    /// Waits until so many messages are due, and kept.
    async fn held(&self, count: usize) {
        eventually(DEADLINE, "what is due is kept", || async {
            let mut kept = 0;
            let mut ready = 0;
            for name in self.environment.waiting_queues().await {
                let Some(queue) = self.environment.vhost.queue(&name).await else {
                    continue;
                };
                kept += queue.messages().unwrap_or(0);
                ready += queue.ready().unwrap_or(0);
            }
            (kept >= count as u64 && ready == 0)
                .then_some(())
                .ok_or_else(|| format!("{}: {kept} kept, {ready} ready", self.environment))
        })
        .await;
    }

    async fn what_is_parked_is_replayed(&mut self) {
        // A walk may be ended by the broker, with the rest still parked.
        eventually(DEADLINE, "all that is parked is replayed", || {
            self.replay_all()
        })
        .await;
        self.wait_until("everything that was parked is handled", || {
            self.ledger.parked(&self.observations).into_iter().collect()
        })
        .await;
    }

    async fn replay_all(&self) -> Result<()> {
        let walk = async {
            let mut browse = self.client.parked(QUEUE).browse().await?;
            while let Some(record) = browse.next().await? {
                browse.replay(&record).await?;
            }
            browse.close().await
        };
        match walk.await {
            Err(why) if self.setting.may_lose() && why.kind() == ErrorKind::QueueNotFound => Ok(()),
            done => done,
        }
    }

    /// Publishes a batch to a queue that has a consumer.
    async fn publish(&mut self, batch: &str) {
        for id in batch_of(batch) {
            eventually(DEADLINE, "the message is confirmed", || async {
                let message = message(QUEUE, &id, self.setting.sizes.0);
                self.client.publish(message).await
            })
            .await;
            self.ledger.published(&id);
        }
    }

    /// Publishes a batch to a queue without a consumer, which may refuse them, because it is full or gone.
    async fn offer(&mut self, batch: &str) {
        for id in batch_of(batch) {
            self.offer_one(QUEUE, &id).await;
        }
    }

    async fn offer_one(&mut self, queue: &str, id: &str) -> bool {
        let message = message(queue, id, self.setting.sizes.0);
        match self.client.publish(message).await {
            Ok(()) => {
                self.ledger.published(id);
                true
            }
            Err(why) => {
                println!("{}: {id} is not published: {why}", self.environment);
                false
            }
        }
    }

    /// Waits until every message was handled or parked. Where messages may be lost, until all queues are empty.
    async fn settled(&self, when: &str) {
        self.wait_until(when, || self.ledger.unsettled(&self.observations))
            .await;
    }

    async fn wait_until(&self, when: &str, missing: impl Fn() -> Vec<String>) {
        let looks = Cell::new(0);
        eventually(DEADLINE, when, || async {
            let missing = missing();
            let empty = self.setting.is_unsettled() && self.is_quiet().await;
            looks.set(if empty { looks.get() + 1 } else { 0 });
            if missing.is_empty() || looks.get() >= LOOKS {
                return Ok(());
            }
            Err(format!(
                "{}: {missing:?}, {:?}",
                self.environment,
                self.observations.events()
            ))
        })
        .await;
    }

    /// Whether no message is ready, waits or is with the consumer.
    async fn is_quiet(&self) -> bool {
        let outstanding = self
            .running
            .as_ref()
            .map(|running| running.stats().outstanding);
        let mut queues = self.environment.waiting_queues().await;
        queues.push(QUEUE.to_owned());
        for queue in queues {
            if self.environment.amqp.depth(&queue).await.unwrap_or(0) > 0 {
                return false;
            }
        }
        outstanding.unwrap_or(0) == 0
    }

    async fn end(mut self) {
        self.stop().await;
        let mut found = self.look_into_all().await;
        let mut missing = self.ledger.missing(&self.observations, &found);
        // A message on its way between two queues is in none of them.
        let asked = Instant::now();
        while !self.unexplained(&missing).is_empty() && asked.elapsed() < DEADLINE {
            found.extend(self.look_into_all().await);
            missing = self.ledger.missing(&self.observations, &found);
        }
        println!(
            "{}: {} published, {} handled, left {found:?}, missing {missing:?}, {:?}",
            self.environment,
            self.ledger.count(),
            self.observations.handled().len(),
            self.observations.events()
        );
        self.client.close().await;
        self.nothing_else_is_lost(&missing);
        self.nothing_else_was_parked();
        self.nothing_is_doubled(&found);
    }

    /// Those of them that the setting did not delete.
    fn unexplained<'m>(&self, missing: &'m BTreeSet<String>) -> Vec<&'m String> {
        let (parked, waited) = (self.observations.parked(), self.observations.waited());
        let is_deleted = |id: &&String| match self.setting.expectation {
            Expectation::Loses(Loss::Ready) => true,
            Expectation::Loses(Loss::Waiting) => waited.contains(*id) || id.starts_with(HOMELESS),
            Expectation::Loses(Loss::Parked) => parked.contains(*id),
            Expectation::Works | Expectation::Refused(_) => false,
        };
        missing.iter().filter(|id| !is_deleted(id)).collect()
    }

    /// What is missing was deleted by the setting.
    fn nothing_else_is_lost(&self, missing: &BTreeSet<String>) {
        let environment = self.environment;
        let lost = self.unexplained(missing);
        assert!(lost.is_empty(), "{environment}: lost: {lost:?}");
        let is_as_expected = !self.setting.surely || !missing.is_empty();
        assert!(
            is_as_expected,
            "{environment}: nothing was lost, so expect that it works"
        );
    }

    fn nothing_else_was_parked(&self) {
        let mut others = self.observations.parked();
        others.retain(|id| !HandlerScript::is_parked(id));
        let is_as_expected = others.is_empty() || self.setting.parks_others;
        assert!(
            is_as_expected,
            "{}: parked although an attempt succeeds: {others:?}",
            self.environment
        );
    }

    /// Lost connections may double what was on its way in that moment. Nothing else is handled twice, or left where it was handled.
    fn nothing_is_doubled(&self, found: &BTreeSet<String>) {
        if self.setting.cuts_connections() {
            return;
        }
        let mut doubled = self.observations.handled();
        doubled.retain(|id, times| *times > 1 || found.contains(id));
        doubled.retain(|id, _| id.starts_with("first") || id.starts_with(HOMELESS));
        assert!(
            doubled.is_empty(),
            "{}: doubled: {doubled:?}",
            self.environment
        );
    }

    /// Takes what is left in all queues.
    async fn look_into_all(&self) -> BTreeSet<String> {
        let mut queues = self.environment.waiting_queues().await;
        queues.extend([QUEUE, PARKED].map(str::to_owned));
        let mut found = BTreeSet::new();
        for queue in queues {
            found.extend(self.environment.take_all(&queue).await);
        }
        found
    }
}
