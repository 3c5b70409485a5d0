//! One side of a life: its queue, its consumers, its publisher, and its ledger.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use retryrmq::Strategy;
use retryrmq_harness::{Amqp, QueueType, Vhost, eventually};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::environment::Environment;
use crate::faults::Fault;
use crate::ledger::SideLedger;
use crate::operator::LeadershipRepair;
use crate::plan::SidePlan;
use crate::publisher;
use crate::scenario::ScenarioSetup;
use crate::supervised_process::{ProxiedNetwork, SupervisedProcess};
use crate::worker::{self, WorkerOptions};

/// How long anything may take to be there.
const DEADLINE: Duration = Duration::from_secs(240);
/// As many messages are enough, however long a node takes.
const MOST: u32 = 600;
/// Between two looks.
const LOOK: Duration = Duration::from_millis(200);

/// One side while it is played.
pub(crate) struct ConsumerSide<'a> {
    setup: ScenarioSetup<'a>,
    environment: &'a Environment,
    plan: SidePlan,
    pub(crate) queue: String,
    pub(crate) ledger: SideLedger,
    vhost: &'a Vhost,
    urls: Vec<String>,
    scratch: TempDir,
    /// Whether the harm to nodes is over.
    nodes_rest: &'a AtomicBool,
}

impl<'a> ConsumerSide<'a> {
    pub(crate) fn new(
        environment: &'a Environment,
        vhost: &'a Vhost,
        plan: SidePlan,
        setup: ScenarioSetup<'a>,
        nodes_rest: &'a AtomicBool,
    ) -> Self {
        let ledger = SideLedger::new();
        ledger.note(plan.to_string());
        ConsumerSide {
            setup,
            environment,
            queue: format!("orders.{}", plan.work),
            plan,
            ledger,
            vhost,
            urls: environment.urls(vhost),
            scratch: tempfile::tempdir().expect("a folder can be made"),
            nodes_rest,
        }
    }

    /// Makes the queue and starts the consumers.
    pub(crate) async fn open(&self) -> Vec<SupervisedProcess> {
        // Other strategies need a work queue that is like none that they find.
        if self.plan.strategy == Strategy::RetryQueues {
            // Who makes a queue leads it.
            let url = &self.urls[fastrand::usize(..self.urls.len())];
            let amqp = connect(url).await;
            amqp.declare(&self.queue, self.plan.work).await;
            amqp.close().await;
        }
        let networks =
            join_all((0..self.plan.replicas).map(|_| ProxiedNetwork::to(&self.urls))).await;
        let processes = self.start_processes(networks);
        eventually(DEADLINE, "somebody consumes", || async {
            let amqp = connect(&self.urls[0]).await;
            let consumers = amqp.consumers(&self.queue).await;
            amqp.close().await;
            consumers.is_some_and(|consumers| consumers > 0)
        })
        .await;
        self.ledger.note("somebody consumes");
        processes
    }

    fn start_processes(&self, networks: Vec<ProxiedNetwork>) -> Vec<SupervisedProcess> {
        let plan = &self.plan;
        let orders = WorkerOptions {
            url: String::new(),
            queue: self.queue.clone(),
            strategy: plan.strategy.to_string(),
            policy: plan.policy_text().into(),
            classic: plan.waiting == QueueType::Classic,
            prefetch: plan.prefetch,
            concurrency: plan.concurrency,
            batch: plan.batch,
            scratch: self.scratch.path().into(),
            loses_copies: self.setup.loses_copies,
        };
        let process = |(number, network)| {
            SupervisedProcess::take(self.setup.program, number, network, &orders, &self.ledger)
        };
        networks.into_iter().enumerate().map(process).collect()
    }

    /// Publishes and does harm.
    pub(crate) async fn play(&self, processes: &[SupervisedProcess]) {
        let network = ProxiedNetwork::to(&self.urls).await;
        let url = network.url();
        let goes_on = |number: u32, least: u32| {
            number <= least || number <= MOST && !self.nodes_rest.load(Ordering::Relaxed)
        };
        let options = worker::options(self.plan.waiting == QueueType::Classic);
        let publish = publisher::publish(
            &url,
            &self.queue,
            &options,
            self.plan.planned_messages(),
            |number| goes_on(number, self.plan.least_messages),
            &self.ledger,
        );
        let fault = async {
            let faults = (1..).zip(self.plan.faults());
            for (_, (after, fault)) in
                faults.take_while(|(number, _)| goes_on(*number, self.plan.least_faults))
            {
                sleep(after).await;
                self.ledger.note(format!("{fault:?}"));
                match fault {
                    Fault::Kill { process } => processes[process].kill(),
                    Fault::Stop { process } => processes[process].stop(),
                    Fault::Network { process, cut } => {
                        self.ledger.harmed(|fault_counts| fault_counts.cuts += 1);
                        match processes.get(process) {
                            Some(process) => process.cut(cut).await,
                            None => network.fault(cut).await,
                        }
                    }
                }
            }
        };
        tokio::join!(publish, fault);
        self.ledger
            .note("all is published, and no more harm is done");
    }

    /// Waits for the end of everything, and looks into every queue.
    pub(crate) async fn end(&self, mut processes: Vec<SupervisedProcess>) {
        let amqp = connect(&self.urls[0]).await;
        let deadline = Instant::now() + self.setup.bound;
        loop {
            self.quiet(&amqp, deadline).await;
            let networks = join_all(processes.into_iter().map(SupervisedProcess::leave)).await;
            self.empty_parking(&amqp).await;
            if Instant::now() > deadline || self.left(&amqp).await.is_empty() {
                break;
            }
            // What a consumer had not begun with goes back when it ends.
            self.ledger.note("something came back");
            processes = self.start_processes(networks);
        }
        for (queue, _) in self.left(&amqp).await {
            let messages = amqp.drain(&queue).await;
            let what = format!("{} messages are left in {queue}", messages.len());
            self.ledger.problem(what);
            for message in messages {
                self.ledger.queued(&queue, &message);
            }
        }
        amqp.close().await;
    }

    /// Until all is handled or parked, nothing waits and nothing runs; or until the bound.
    async fn quiet(&self, amqp: &Amqp, deadline: Instant) {
        let mut release = LeadershipRepair::new();
        loop {
            self.empty_parking(amqp).await;
            let unsettled = self.ledger.unsettled();
            let quiet = unsettled.is_empty() && !self.ledger.is_running();
            let left = self.left(amqp).await;
            if quiet && left.is_empty() {
                return;
            }
            if left.is_empty() {
                release
                    .look(
                        unsettled.len(),
                        self.environment,
                        self.vhost,
                        &self.queue,
                        &self.ledger,
                    )
                    .await;
            }
            if Instant::now() > deadline {
                let (count, first) = (unsettled.len(), unsettled.into_iter().take(10));
                let first: Vec<_> = first.collect();
                self.note_queues().await;
                return self.ledger.problem(format!(
                    "it does not come to its end: {count} are neither handled nor parked after {:?}: {}",
                    self.setup.bound,
                    first.join(", ")
                ));
            }
            sleep(LOOK).await;
        }
    }

    /// Notes what each queue holds and what its leader says of itself, for whoever has to find out where a message is.
    async fn note_queues(&self) {
        let queues = self.vhost.queues().await;
        let own = queues
            .iter()
            .filter(|queue| queue.name().starts_with(&self.queue));
        for queue in own {
            let raw = &queue.raw;
            let name = queue.name();
            self.ledger.note(format!(
                "{name}: {} {} by {}, members online {}, messages {:?}, ready {:?}, unacknowledged {:?}, being dead-lettered {:?}",
                raw["type"],
                raw["state"],
                raw["leader"].as_str().or(raw["node"].as_str()).unwrap_or("nobody"),
                raw["online"],
                queue.messages(),
                queue.ready(),
                queue.unacknowledged(),
                queue.dead_lettering(),
            ));
            if queue.kind() == "quorum" {
                let told = self.environment.told_by_leader(self.vhost, name).await;
                self.ledger.note(format!("{name}: {told}"));
            }
        }
    }

    async fn empty_parking(&self, amqp: &Amqp) {
        let parking = format!("{}.parked", self.queue);
        if amqp.depth(&parking).await.unwrap_or(0) > 0 {
            for message in amqp.drain(&parking).await {
                self.ledger.parked(&message);
            }
        }
    }

    /// The queues in which a message is ready, but for the parking queue.
    async fn left(&self, amqp: &Amqp) -> Vec<(String, u32)> {
        let queues = self.vhost.queues().await;
        let waiting = format!("{}.retry.", self.queue);
        let mut left = Vec::new();
        for queue in queues.iter().map(|queue| queue.name()) {
            if queue == self.queue || queue.starts_with(&waiting) {
                let depth = amqp.depth(queue).await.unwrap_or(0);
                if depth > 0 {
                    left.push((queue.to_owned(), depth));
                }
            }
        }
        left
    }
}

/// A new vhost is not on every node of a cluster at once.
async fn connect(url: &str) -> Amqp {
    eventually(DEADLINE, "a node lets us in", || Amqp::try_connect(url)).await
}
