//! The place of a consumer, as a service manager keeps it: whose process ends is followed by another.

use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::Signal;
use retryrmq_faults::worker::Worker;
use retryrmq_harness::CutProxy;
use tokio::process::Command;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::faults::NetworkFault;
use crate::ledger::SideLedger;
use crate::worker::{ORDERS, WorkerOptions};

/// How long a consumer that is told to end may take: its drain has thirty seconds, and its machine may be busy.
const END: Duration = Duration::from_secs(180);
/// What a service manager waits before it starts a process anew that has failed: longer each time that it was never ready.
const RESTART: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(2)];

#[derive(Clone, Copy, Debug)]
enum ProcessCommand {
    Kill,
    Stop,
    End,
}

/// A consumer's place, with a network of its own.
#[derive(Debug)]
pub struct SupervisedProcess {
    proxy: ProxiedNetwork,
    orders: mpsc::UnboundedSender<ProcessCommand>,
    task: JoinHandle<()>,
}

/// A network of one's own.
#[derive(Debug)]
pub struct ProxiedNetwork(CutProxy);

impl ProxiedNetwork {
    /// To the nodes at these URLs.
    pub async fn to(urls: &[String]) -> Self {
        let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
        ProxiedNetwork(CutProxy::to_any(&urls).await)
    }

    /// Where to connect. A peer that says nothing for two seconds is taken for dead.
    pub fn url(&self) -> String {
        format!("{}?heartbeat=1", self.0.url())
    }

    /// Does harm, and mends it again.
    pub async fn fault(&self, cut: NetworkFault) {
        match cut {
            NetworkFault::Reset => self.0.cut(),
            NetworkFault::Close => self.0.close(),
            NetworkFault::InAFrame { direction, bytes } => self.0.cut_after(direction, bytes),
            NetworkFault::Refuse(time) => {
                self.0.refuse();
                self.0.cut();
                sleep(time).await;
            }
            NetworkFault::Stall(direction, time) => {
                self.0.stall(direction);
                sleep(time).await;
            }
        }
        self.0.resume();
    }
}

impl SupervisedProcess {
    /// Takes a seat: starts a consumer with these orders, but for its URL.
    pub fn take(
        program: &str,
        number: usize,
        proxy: ProxiedNetwork,
        orders: &WorkerOptions,
        ledger: &SideLedger,
    ) -> Self {
        let orders = WorkerOptions {
            url: proxy.url(),
            ..orders.clone()
        };
        let (sender, receiver) = mpsc::unbounded_channel();
        let restart_task = RestartTask {
            program: program.into(),
            number,
            orders,
            ledger: ledger.clone(),
        };
        SupervisedProcess {
            proxy,
            orders: sender,
            task: tokio::spawn(restart_task.keep(receiver)),
        }
    }

    /// Kills the consumer; another takes its place.
    pub fn kill(&self) {
        // A seat that was left has nobody to kill.
        let _ = self.orders.send(ProcessCommand::Kill);
    }

    /// Tells the consumer to end; another takes its place.
    pub fn stop(&self) {
        let _ = self.orders.send(ProcessCommand::Stop);
    }

    /// Harm to its network.
    pub async fn cut(&self, cut: NetworkFault) {
        self.proxy.fault(cut).await;
    }

    /// Tells the consumer to end, and waits for it; nobody takes its place. What is left is its network.
    ///
    /// # Panics
    /// When the consumer could not be started.
    pub async fn leave(self) -> ProxiedNetwork {
        let _ = self.orders.send(ProcessCommand::End);
        self.task.await.expect("the process was supervised");
        self.proxy
    }
}

struct RestartTask {
    program: String,
    number: usize,
    orders: WorkerOptions,
    ledger: SideLedger,
}

impl RestartTask {
    async fn keep(self, mut orders: mpsc::UnboundedReceiver<ProcessCommand>) {
        let [shortest, longest] = RESTART;
        let mut pause = shortest;
        loop {
            let mut worker = self.start();
            let order = tokio::select! {
                () = worker.end() => None,
                order = orders.recv() => Some(order.unwrap_or(ProcessCommand::End)),
            };
            match order {
                None => {
                    pause = if worker.is_ready() {
                        shortest
                    } else {
                        longest.min(pause * 2)
                    };
                    self.ended_by_itself(worker).await;
                    sleep(pause).await;
                }
                Some(ProcessCommand::Kill) => {
                    worker.kill().await;
                    self.ledger
                        .harmed(|fault_counts| fault_counts.consumers_killed += 1);
                    self.gone("is killed");
                }
                Some(ProcessCommand::Stop) => {
                    self.stop(worker).await;
                    self.ledger
                        .harmed(|fault_counts| fault_counts.consumers_stopped += 1);
                }
                Some(ProcessCommand::End) => return self.stop(worker).await,
            }
        }
    }

    fn start(&self) -> Worker {
        let mut command = Command::new(&self.program);
        let orders = serde_json::to_string(&self.orders).expect("orders can be written");
        command
            .arg("worker")
            .env(ORDERS, orders)
            .stderr(Stdio::inherit());
        let (ledger, number) = (self.ledger.clone(), self.number);
        ledger.note(format!("consumer {number} starts"));
        Worker::run(command, move |kind, what| ledger.told(number, kind, what))
    }

    async fn ended_by_itself(&self, worker: Worker) {
        let status = worker.ended().await;
        if status.code() == Some(crate::worker::CRASHED) {
            self.ledger.harmed(|fault_counts| fault_counts.crashes += 1);
        }
        self.gone(&format!("ends by itself: {status}"));
    }

    async fn stop(&self, mut worker: Worker) {
        worker.signal(Signal::SIGTERM);
        if timeout(END, worker.end()).await.is_err() {
            self.ledger.problem(format!(
                "consumer {} was told to end, and has not for {END:?}",
                self.number
            ));
            return worker.kill().await;
        }
        worker.ended().await;
        self.gone("has ended as it was told");
    }

    fn gone(&self, how: &str) {
        self.ledger.gone(self.number);
        self.ledger.note(format!("consumer {} {how}", self.number));
    }
}
