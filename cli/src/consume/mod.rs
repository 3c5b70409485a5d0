//! `retryrmq consume`: a command or an HTTP request per message, and its end decides.
//!
//! ```text
//! options ─► Settings ─► Handler ──► child, verdict       a command: its end and its words
//!                             └────► http                 a request: its answer
//!                        both ─► wish ─► Outcome          what is asked for, within bounds
//! ```

mod batch;
mod environment;
mod event_printer;
mod exit_outcome;
mod handler;
mod help_text;
mod http;
mod last_line;
mod options;
mod orphan_reaper;
mod outcome_pipe;
mod probes;
mod process;
mod process_group;
mod requested_outcome;
mod run;
mod stderr_tail;
mod zombie_reaper;

use std::{collections::HashSet, io, sync::Arc, time::Duration};

use retryrmq::{Client, ClientOptions, Delivery, Event, Message, Outcome, Subscription, Token};
use retryrmq_operator::doctor::Code;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

pub(crate) use options::Options;
use options::Settings;
pub(crate) use orphan_reaper::{NAME as ORPHAN_REAPER, watch};

use self::{
    batch::BatchInput,
    event_printer::EventPrinter,
    handler::Handler,
    probes::Probes,
    run::{RunEnd, Urgency},
};
use crate::{
    doctor, error::CliError, exit::Exit, global::Global, management::ManagementClient,
    nonblocking_output, output::Output, signals::Signals,
};

pub(crate) async fn run(
    options: Options,
    global: &Global,
    output: &Output,
) -> Result<Exit, CliError> {
    let (settings, task) = options.settings()?;
    nonblocking_output::start(); // who reads what is printed must not hold up messages
    let consumer = options.consumer(&settings)?;
    let queue_type = options.retry_args.queue_type()?;
    let asks = options.dlx != Some(false) && options.management.is_given();
    let management_client = asks.then(|| options.management.open(global)).transpose()?;
    let mut signals = Signals::listen()?; // before anything is taken: from now on they drain
    let ends = process::hear_of_ends()
        .map_err(|why| CliError::failed(format!("cannot hear of the end of commands: {why}")))?;
    zombie_reaper::start(ends);
    let probes = Probes::default();
    let _server = match options.listen {
        Some(address) => Some(probes::serve(address, probes.clone()).await?),
        None => None,
    };
    let connecting = ClientOptions::new()
        .queue_type(queue_type)
        .wait(options.wait)
        .end_when_refused(options.end_when_refused);
    let client = tokio::select! {
        client = global.connect_with(connecting) => client?,
        () = signals.next() => return Ok(Exit::Ok),
    };
    probes.connected(&client);
    let (events, happened) = mpsc::unbounded_channel();
    let consumer = consumer.client(client.clone()).on_event(move |event| {
        let _ = events.send(event.clone()); // at the end nobody listens any more
    });
    let mut policies = management_client.map(|management_client| {
        PolicyWarnings::new(&options.queue, management_client, options.has_dlx())
    });
    if let Some(policies) = &mut policies {
        let looked = tokio::time::timeout(POLICY_TIMEOUT, policies.warn());
        tokio::select! {
            looked = looked => if looked.is_err() {
                tracing::warn!("policies were not looked at: the management API did not answer within {} s", POLICY_TIMEOUT.as_secs());
            },
            () = signals.next() => return Ok(Exit::Ok),
        }
    }
    let subscription = tokio::select! {
        subscription = consumer.subscribe() => subscription.map_err(CliError::in_flags)?,
        () = signals.next() => return Ok(Exit::Ok),
    };
    probes.consuming();
    let report = EventPrinter::new(output, settings.limits.crashes);
    let handler = task.handler(&options, &settings, global.json);
    report.consuming(&options.queue, &client.server().version, handler.target())?;
    if let Some(mut policies) = policies.filter(|_| options.has_dlx()) {
        // Queues that were made only now.
        tokio::spawn(async move {
            sleep(QUEUE_IS_LISTED).await;
            policies.warn().await;
        });
    }
    let work = ConsumeWork {
        subscription,
        handler: Arc::new(handler),
        room: options.concurrency.into(),
        batch: settings.batch,
        left: options.count,
        urgency: watch::Sender::new(Urgency::None),
        running: JoinSet::new(),
        is_draining: false,
        drain_until: None,
        put_back: 0,
        broken: None,
        happened,
        report,
        probes,
    };
    work.until_done(&mut signals, &settings, &client).await
}

/// How long a consumer waits for the management API before it starts.
const POLICY_TIMEOUT: Duration = Duration::from_secs(5);
/// After that the management API lists a new queue with its policy, whatever node it was asked at: nodes collect figures every five seconds.
const QUEUE_IS_LISTED: Duration = Duration::from_secs(10);

/// Says what policies do to the queues where messages wait and are parked, or without `dlx` that rejected messages are lost; each once.
struct PolicyWarnings {
    queue: String,
    has_dlx: bool,
    management_client: ManagementClient,
    said: HashSet<String>,
}

impl PolicyWarnings {
    fn new(queue: &str, management_client: ManagementClient, has_dlx: bool) -> Self {
        Self {
            queue: queue.to_owned(),
            has_dlx,
            management_client,
            said: HashSet::new(),
        }
    }

    async fn warn(&mut self) {
        let said = &mut self.said;
        let codes: &[Code] = match self.has_dlx {
            true => &doctor::HARM_TO_RETRIES,
            false => &doctor::LOSS_OF_REJECTED,
        };
        doctor::warn_of(codes, &self.queue, &self.management_client, |finding| {
            said.insert(finding.sentence.clone())
        })
        .await;
    }
}

/// The attempts of one run, which ended.
struct Attempts {
    of: Vec<Attempt>,
    took: Duration,
    /// An error when it began and could not be followed.
    run: io::Result<RunEnd>,
}

/// An attempt.
struct Attempt {
    token: Token,
    id: Option<String>,
    number: u32,
}

struct ConsumeWork<'a> {
    subscription: Subscription,
    handler: Arc<Handler>,
    /// How many runs there may be at a time.
    room: usize,
    /// The most messages of a run; `None` if it gets single ones.
    batch: Option<usize>,
    /// How many attempts may still begin, if that is limited.
    left: Option<u64>,
    urgency: watch::Sender<Urgency>,
    running: JoinSet<Attempts>,
    /// Whether nothing begins any more.
    is_draining: bool,
    /// When what runs is ended, because somebody asked for an end or there is no other.
    drain_until: Option<Instant>,
    /// Messages that are not settled: the end of the connection returns them to the queue.
    put_back: u64,
    /// Why it cannot go on.
    broken: Option<CliError>,
    happened: mpsc::UnboundedReceiver<Event>,
    report: EventPrinter<'a>,
    probes: Probes,
}

impl ConsumeWork<'_> {
    async fn until_done(
        mut self,
        signals: &mut Signals,
        settings: &Settings,
        client: &Client,
    ) -> Result<Exit, CliError> {
        let mut ended = false;
        let mut idle_since = Instant::now();
        // Whether an incomplete batch has had its time since then.
        let mut has_waited = false;
        let (mut asked, mut interrupted) = (false, false);
        loop {
            let started = self.start();
            if started || !self.running.is_empty() {
                (idle_since, has_waited) = (Instant::now(), false);
            }
            if self.left == Some(0) {
                self.drain(false);
            }
            // What runs is not waited for without bound: its end can be told to nobody any more.
            let ended_by_itself = (ended && !self.is_draining) || client.end().is_some();
            if (self.broken.is_some() || ended_by_itself) && self.drain_until.is_none() {
                self.drain(false);
                self.end_in(settings.drain);
            }
            if self.running.is_empty() && (ended || self.is_draining) {
                break;
            }
            let takes = !ended && !self.is_draining && self.running.len() < self.room;
            let idle = settings
                .idle
                .filter(|_| takes && self.running.is_empty())
                .map(|idle| idle_since + idle);
            let deadline = self
                .drain_until
                .filter(|_| *self.urgency.borrow() < Urgency::Soon);
            tokio::select! {
                () = signals.next() => {
                    if std::mem::replace(&mut asked, true) {
                        interrupted = true;
                        self.urgency.send_replace(Urgency::Now);
                    } else {
                        self.drain(true);
                        // It may be ending by itself already.
                        if self.drain_until.is_none() {
                            self.end_in(settings.drain);
                        }
                    }
                }
                Some(event) = self.happened.recv() => self.print_event(&event),
                () = nobody_reads(), if self.broken.is_none() => {
                    let printed = self.report.unread();
                    self.note(printed);
                }
                Some(ended) = self.running.join_next() => {
                    idle_since = Instant::now();
                    self.settle(ended);
                    // Waiting for each alone costs more than what is done with it.
                    while let Some(ended) = self.running.try_join_next() {
                        self.settle(ended);
                    }
                }
                more = self.subscription.ready(), if takes => ended = !more,
                closed = self.subscription.wait_closed(), if !ended && !self.is_draining => {
                    ended = true;
                    self.note(closed.map_err(CliError::from));
                }
                // Nobody tells that the client has ended while the last of a count run.
                () = sleep(LOOK), if self.is_draining && self.drain_until.is_none() => {}
                () = sleep_until(idle.unwrap_or_else(Instant::now)), if idle.is_some() => {
                    // An incomplete batch waits for more, and then it runs. What else is outstanding, such as in a pause, is not waited for.
                    let may_wait = self.batch.is_some() && !has_waited;
                    if may_wait && self.subscription.stats().outstanding > 0 {
                        has_waited = true;
                        idle_since = Instant::now() + settings.longer_than_idle();
                    } else {
                        self.drain(false);
                    }
                }
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                    tracing::warn!(
                        "{} still run when the time to drain is over: they are ended, and their messages go back to the queue",
                        self.handler.noun().1
                    );
                    self.urgency.send_replace(Urgency::Soon);
                }
            }
        }
        self.subscription.close();
        self.settled(signals, settings, interrupted).await;
        while let Ok(event) = self.happened.try_recv() {
            self.print_event(&event);
        }
        let end = client.end(); // by itself
        client.close().await;
        if let Some(cli_error) = self.broken.or(end.map(CliError::from)) {
            return Err(cli_error);
        }
        self.report.done()?;
        Ok(if interrupted {
            Exit::Interrupted
        } else {
            Exit::Ok
        })
    }

    /// Starts as many runs as there is room for; whether there were any.
    fn start(&mut self) -> bool {
        let mut has_started = false;
        while !self.is_draining && self.broken.is_none() && self.running.len() < self.room {
            let left = self.left.map_or(usize::MAX, |left| {
                usize::try_from(left).unwrap_or(usize::MAX)
            });
            let room = (self.room - self.running.len()).min(left);
            if room == 0 {
                break;
            }
            let mut taken = self.subscription.try_next_batch(room);
            if taken.is_empty() {
                break;
            }
            if taken.len() > left {
                let rest = taken.split_off(left);
                self.subscription
                    .give_back(rest.into_iter().map(|delivery| delivery.token));
            }
            self.left = self
                .left
                .map(|left| left.saturating_sub(taken.len() as u64));
            has_started = true;
            if self.batch.is_some() {
                self.run(taken, BatchInput::Batch);
            } else {
                for delivery in taken {
                    self.run(vec![delivery], |mut messages| {
                        BatchInput::Message(messages.remove(0))
                    });
                }
            }
        }
        has_started
    }

    fn run(&mut self, taken: Vec<Delivery>, given: impl FnOnce(Vec<Message>) -> BatchInput) {
        let (mut of, mut messages) = (Vec::new(), Vec::new());
        for Delivery { token, message, .. } in taken {
            of.push(Attempt {
                token,
                id: message.message_id().map(str::to_owned),
                number: message.attempt(),
            });
            messages.push(message);
        }
        let given = given(messages);
        let (handler, urgency) = (Arc::clone(&self.handler), self.urgency.subscribe());
        self.running.spawn(async move {
            let began = Instant::now();
            let run = handler.run(given, urgency).await;
            Attempts {
                of,
                took: began.elapsed(),
                run,
            }
        });
    }

    /// No more messages; what runs may finish.
    fn drain(&mut self, by_signal: bool) {
        if !self.is_draining {
            self.is_draining = true;
            self.probes.draining();
            self.subscription.close();
        } else if !by_signal {
            return;
        }
        let printed = self
            .report
            .draining(self.running.len(), self.handler.noun(), by_signal);
        self.note(printed);
    }

    /// What runs has this long; what waits to be started does not begin.
    fn end_in(&mut self, drain: Duration) {
        self.drain_until = Some(Instant::now() + drain);
        self.urgency.send_replace(Urgency::Drain);
    }

    fn settle(&mut self, ended: Result<Attempts, tokio::task::JoinError>) {
        let ended = match ended {
            Ok(ended) => ended,
            Err(why) => {
                self.put_back += self.batch.unwrap_or(1) as u64;
                self.broken.get_or_insert_with(|| {
                    let noun = self.handler.noun().0;
                    CliError::failed(format!("cannot follow a {noun}: {why}"))
                });
                return;
            }
        };
        let count = ended.of.len() as u64;
        match ended.run {
            Ok(RunEnd::Ended(verdicts)) => {
                let (mut settled, mut handled) = (Vec::new(), Vec::new());
                for (attempt, verdict) in ended.of.into_iter().zip(verdicts) {
                    if self.drain_until.is_some() && verdict.is_by_a_signal_to_all {
                        self.put_back += 1;
                        continue;
                    }
                    self.report.attempts += 1;
                    if let Some(remark) = verdict.remark {
                        tracing::warn!(
                            message_id = attempt.id.as_deref().unwrap_or_default(),
                            "{remark}"
                        );
                    }
                    let is_handled = verdict.outcome == Outcome::Ack;
                    settled.push((attempt.token, verdict.outcome));
                    if is_handled {
                        handled.push((attempt.id, attempt.number));
                    }
                }
                self.subscription.settle(settled);
                for (id, number) in handled {
                    let printed = self.report.handled(id.as_deref(), number, ended.took);
                    self.note(printed);
                }
            }
            Ok(RunEnd::Stopped) => self.put_back += count,
            Ok(RunEnd::Unstarted(why)) => {
                // Nobody is to blame: a handler that is missing for a while must not park the queue.
                self.subscription
                    .give_back(ended.of.into_iter().map(|attempt| attempt.token));
                if let Some(why) = why {
                    self.cannot("run", &why);
                }
            }
            Err(why) => {
                self.put_back += count;
                self.cannot("follow", &why);
            }
        }
    }

    fn cannot(&mut self, what: &str, why: &io::Error) {
        let name = self.handler.name();
        let cli_error = CliError::failed(format!(
            "cannot {what} `{name}`: {why}; the message goes back to its queue"
        ));
        self.broken.get_or_insert(cli_error);
    }

    fn print_event(&mut self, event: &Event) {
        let printed = self.report.event(event);
        self.note(printed);
    }

    /// When nobody reads what is printed, it is time to drain and end.
    fn note(&mut self, printed: Result<(), CliError>) {
        if let Err(cli_error) = printed {
            self.broken.get_or_insert(cli_error);
        }
    }

    /// Waits until all outcomes have reached the broker.
    async fn settled(&mut self, signals: &mut Signals, settings: &Settings, interrupted: bool) {
        if !interrupted {
            self.all_settled(signals, settings).await;
        }
        // What was decided is written before the connection goes.
        self.subscription.abandon();
        let _ = tokio::time::timeout(WRITTEN, self.subscription.wait_closed()).await;
    }

    async fn all_settled(&mut self, signals: &mut Signals, settings: &Settings) {
        let everything = async {
            if self.put_back == 0 {
                let _ = self.subscription.wait_closed().await; // a defect was noted before
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

/// How often it is looked whether the client has ended.
const LOOK: Duration = Duration::from_secs(1);

/// How long the end waits until what was decided is written: longer than the three seconds that copies on their way get.
const WRITTEN: Duration = Duration::from_secs(5);

/// Waits until whoever read our standard output is gone.
async fn nobody_reads() {
    match nonblocking_output::out() {
        Some(nonblocking) => nonblocking.broken().await,
        None => std::future::pending().await,
    }
}
