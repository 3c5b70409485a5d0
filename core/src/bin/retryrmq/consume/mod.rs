//! `retryrmq consume`: a command per message, and its end decides.

mod child;
mod environment;
mod options;
mod report;
mod tail;
mod verdict;
mod warden;

use std::{io, sync::Arc, time::Duration};

use retryrmq::{Client, Delivery, Event, Outcome, Subscription, Token};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

pub(crate) use options::Options;
use options::Settings;
pub(crate) use warden::{NAME as WARDEN, watch};

use self::{
    child::{Program, Run, Urgency},
    report::Report,
    verdict::Ending,
    warden::Warden,
};
use crate::{exit::Exit, fault::Fault, global::Global, output::Output};

pub(crate) async fn run(options: Options, global: &Global, output: &Output) -> Result<Exit, Fault> {
    let settings = options.settings()?;
    let rules = options.retrying.rules()?;
    let (strategy, queue_type) = (options.retrying.strategy()?, options.retrying.queue_type()?);
    let mut signals = Signals::new()?; // before anything is taken: from now on they drain
    let client = global.connect_for(queue_type).await?;
    let (events, happened) = mpsc::unbounded_channel();
    let mut consumer = client
        .consumer(&options.queue)
        .dlx(options.dlx)
        .strategy(strategy)
        .prefetch(settings.prefetch)
        .concurrency(options.concurrency.into())
        .drain_timeout(settings.drain + settings.grace + Duration::from_secs(5))
        .park(!options.no_park)
        .declare(!options.no_declare)
        .limits(settings.limits)
        .on_event(move |event| {
            let _ = events.send(event.clone()); // at the end nobody listens any more
        });
    if options.dlx {
        consumer = consumer.retry(rules.otherwise).rules(rules.rules);
    }
    if let Some(pause) = settings.pause {
        consumer = consumer.pause(pause);
    }
    let subscription = tokio::select! {
        subscription = consumer.subscribe() => subscription?,
        () = signals.next() => return Ok(Exit::Ok),
    };
    let report = Report::new(output, settings.limits.crashes);
    report.consuming(&options.queue, &client.server().version)?;
    let program = Program {
        path: settings.program.clone(),
        name: options.command[0].clone(),
        arguments: options.command[1..].to_vec(),
        timeout: settings.timeout,
        grace: settings.grace,
        keep_stdout: global.json,
        warden: Warden::start(settings.grace),
    };
    let work = Work {
        subscription,
        program: Arc::new(program),
        room: options.concurrency.into(),
        left: options.count,
        urgency: watch::Sender::new(Urgency::None),
        running: JoinSet::new(),
        drain_until: None,
        put_back: 0,
        broken: None,
        happened,
        report,
    };
    work.until_done(&mut signals, &settings, &client).await
}

/// An attempt that ended.
struct Attempt {
    token: Token,
    id: Option<String>,
    number: u32,
    took: Duration,
    /// An error when the command could not be started.
    run: io::Result<Run>,
}

struct Work<'a> {
    subscription: Subscription,
    program: Arc<Program>,
    /// How many commands may run at a time.
    room: usize,
    /// How many attempts may still begin, if that is limited.
    left: Option<u64>,
    urgency: watch::Sender<Urgency>,
    running: JoinSet<Attempt>,
    drain_until: Option<Instant>,
    /// Messages that are not settled: the end of the connection returns them to the queue.
    put_back: u64,
    /// Why it cannot go on.
    broken: Option<Fault>,
    happened: mpsc::UnboundedReceiver<Event>,
    report: Report<'a>,
}

impl Work<'_> {
    async fn until_done(
        mut self,
        signals: &mut Signals,
        settings: &Settings,
        client: &Client,
    ) -> Result<Exit, Fault> {
        let mut ended = false;
        let mut idle_since = Instant::now();
        let mut interrupted = false;
        loop {
            let started = self.start();
            if started || !self.running.is_empty() {
                idle_since = Instant::now();
            }
            if self.left == Some(0) || self.broken.is_some() {
                self.drain(settings, false);
            }
            if self.running.is_empty() && (ended || self.drain_until.is_some()) {
                break;
            }
            let takes = !ended && self.drain_until.is_none() && self.running.len() < self.room;
            let idle = settings
                .idle
                .filter(|_| takes && self.running.is_empty())
                .map(|idle| idle_since + idle);
            let deadline = self
                .drain_until
                .filter(|_| *self.urgency.borrow() == Urgency::None);
            tokio::select! {
                () = signals.next() => {
                    if self.drain_until.is_none() {
                        self.drain(settings, true);
                    } else {
                        interrupted = true;
                        self.urgency.send_replace(Urgency::Now);
                    }
                }
                Some(event) = self.happened.recv() => self.tell(&event),
                Some(attempt) = self.running.join_next() => self.settle(attempt),
                more = self.subscription.ready(), if takes => ended = !more,
                () = sleep_until(idle.unwrap_or_else(Instant::now)), if idle.is_some() => self.drain(settings, false),
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                    tracing::warn!("commands still run when the time to drain is over: they are ended, and their messages go back to the queue");
                    self.urgency.send_replace(Urgency::Soon);
                }
            }
        }
        self.subscription.close();
        self.settled(signals, settings, interrupted).await;
        while let Ok(event) = self.happened.try_recv() {
            self.tell(&event);
        }
        client.close().await;
        if let Some(fault) = self.broken {
            return Err(fault);
        }
        self.report.done()?;
        Ok(if interrupted {
            Exit::Interrupted
        } else {
            Exit::Ok
        })
    }

    /// Starts as many attempts as there is room for; whether there were any.
    fn start(&mut self) -> bool {
        if self.drain_until.is_some() {
            return false;
        }
        let left = self.left.map_or(usize::MAX, |left| {
            usize::try_from(left).unwrap_or(usize::MAX)
        });
        let room = (self.room - self.running.len()).min(left);
        if room == 0 {
            return false;
        }
        let batch = self.subscription.try_next_batch(room);
        let count = batch.len();
        for Delivery { token, message } in batch {
            let (program, urgency) = (Arc::clone(&self.program), self.urgency.subscribe());
            self.running.spawn(async move {
                let began = Instant::now();
                let run = program.run(&message, urgency).await;
                let (id, number) = (message.message_id().map(str::to_owned), message.attempt());
                Attempt {
                    token,
                    id,
                    number,
                    took: began.elapsed(),
                    run,
                }
            });
        }
        self.left = self.left.map(|left| left.saturating_sub(count as u64));
        count > 0
    }

    /// No more messages; what runs may finish.
    fn drain(&mut self, settings: &Settings, by_signal: bool) {
        if self.drain_until.is_none() {
            self.drain_until = Some(Instant::now() + settings.drain);
            self.subscription.close();
            let told = self.report.draining(self.running.len(), by_signal);
            self.note(told);
        }
    }

    fn settle(&mut self, attempt: Result<Attempt, tokio::task::JoinError>) {
        let attempt = match attempt {
            Ok(attempt) => attempt,
            Err(why) => {
                self.put_back += 1;
                self.broken.get_or_insert_with(|| {
                    Fault::failed(format!("cannot follow a command: {why}"))
                });
                return;
            }
        };
        match attempt.run {
            Ok(Run::Ended(ending, tail)) => {
                if self.drain_until.is_some() && is_by_the_same_signal(ending) {
                    self.put_back += 1;
                    return;
                }
                self.report.attempts += 1;
                let (outcome, remark) = verdict::outcome(ending, &tail);
                if let Some(remark) = remark {
                    tracing::warn!(
                        message_id = attempt.id.as_deref().unwrap_or_default(),
                        "{remark}"
                    );
                }
                let handled = outcome == Outcome::Ack;
                self.subscription.settle([(attempt.token, outcome)]);
                if handled {
                    let told =
                        self.report
                            .handled(attempt.id.as_deref(), attempt.number, attempt.took);
                    self.note(told);
                }
            }
            Ok(Run::Stopped) => self.put_back += 1,
            Err(why) => {
                self.put_back += 1;
                let name = std::path::Path::new(&self.program.name).display();
                let fault = Fault::failed(format!(
                    "cannot run `{name}`: {why}; the message goes back to its queue"
                ));
                self.broken.get_or_insert(fault);
            }
        }
    }

    fn tell(&mut self, event: &Event) {
        let told = self.report.event(event);
        self.note(told);
    }

    /// When nobody reads what is printed, it is time to end in good order.
    fn note(&mut self, told: Result<(), Fault>) {
        if let Err(fault) = told {
            self.broken.get_or_insert(fault);
        }
    }

    /// Waits until all outcomes have reached the broker.
    async fn settled(&mut self, signals: &mut Signals, settings: &Settings, interrupted: bool) {
        if interrupted {
            return;
        }
        let everything = async {
            if self.put_back == 0 {
                self.subscription.wait_closed().await;
            }
            // What goes back is settled by nobody; the rest has to be.
            while self.subscription.stats().outstanding > self.put_back {
                sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::select! {
            () = everything => {}
            () = sleep(settings.drain.max(Duration::from_secs(5))) => {
                tracing::warn!("the broker has not confirmed everything in time: some messages will come again");
            }
            () = signals.next() => {}
        }
    }
}

/// A service manager tells the whole group of processes to end, us and the commands: that is no failure of theirs.
fn is_by_the_same_signal(ending: Ending) -> bool {
    const SIGINT: i32 = 2;
    const SIGTERM: i32 = 15;
    matches!(ending, Ending::Signal(SIGINT | SIGTERM))
}

/// Ctrl-C and SIGTERM.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> Result<Self, Fault> {
        let listen = |kind| {
            signal(kind).map_err(|why| Fault::failed(format!("cannot listen for signals: {why}")))
        };
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
