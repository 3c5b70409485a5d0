//! One publishing channel and the task that owns it.
//!
//! lapin attaches a returned message to the wrong confirm if more than one is outstanding, and mixes up tags if several tasks publish on a
//! channel. So there is one task; it publishes in waves (send N, wait for N confirms), and matches a wave's returned messages by their
//! content.
//!
//! RabbitMQ closes the channel because of a message that it refuses, and says nothing about the others on it. So a message that may be
//! refused is sent alone: one with a larger body than any that was accepted before, and one that was refused before.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::mpsc,
    time::{Instant, timeout},
};
use tracing::debug;

use super::{
    batch::{self, BatchResult, is_in_doubt},
    channel_pool::{AcquiredChannel, ChannelPool, TURN},
    confirm_timeout::ConfirmTimeout,
    job::Task,
    rejected_cache::RejectedCache,
    stall_detector::StallDetector,
};
use crate::{
    Error, ErrorKind, Result,
    connection::{
        Connection, Limits, Link, OpenChannel, Operation, ask, is_one_channel_too_many,
        is_out_of_channels, survives,
    },
};

/// Enough to hide the round trip, and few enough that a lost channel leaves few messages in doubt.
const WAVE: usize = 256;

/// How long a message waits for a connection before its publisher gets an error.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// How often a message is published that shared a wave with a refused one.
const TRIES: u32 = 4;

/// How many messages are sent together that shared a wave with a refused one. The square root of the largest wave keeps both short: the
/// search for the refused message, and the delay of its neighbours.
const FEW: usize = 16;

/// The parts of a lane.
pub(super) struct Lane {
    pub(super) link: Arc<Link>,
    pub(super) channels: Arc<ChannelPool>,
    pub(super) stalls: Arc<StallDetector>,
    pub(super) number: usize,
}

/// Where a lane sends its messages.
trait BatchSink {
    fn lane_state(&self) -> LaneState;
    fn publish(
        &self,
        tasks: Vec<Task>,
        lane_state: &mut LaneState,
    ) -> impl Future<Output = ()> + Send;
}

impl BatchSink for Lane {
    fn lane_state(&self) -> LaneState {
        LaneState::new(Arc::clone(&self.channels), self.number)
    }

    async fn publish(&self, tasks: Vec<Task>, lane_state: &mut LaneState) {
        let _waits = self.stalls.waits(self.number);
        lane_state.publish(&self.link, tasks).await;
    }
}

/// Publishes all jobs, until nobody can send any more.
pub(super) async fn run(lane: Lane, jobs: mpsc::UnboundedReceiver<Task>) {
    serve(&lane, jobs).await;
}

/// After a panic, the messages of its wave are answered as they are dropped, and the channel is lost. The lane goes on.
async fn serve(sink: &impl BatchSink, mut jobs: mpsc::UnboundedReceiver<Task>) {
    let mut served = async || {
        let mut lane_state = sink.lane_state();
        let mut publish_batch = Vec::with_capacity(WAVE);
        while jobs.recv_many(&mut publish_batch, WAVE).await > 0 {
            sink.publish(std::mem::take(&mut publish_batch), &mut lane_state)
                .await;
        }
    };
    while !survives("a publishing lane", served()).await {}
}

/// What a lane keeps between waves. Its channel is where others find it, too.
struct LaneState {
    channels: Arc<ChannelPool>,
    lane: usize,
    confirm_timeout: ConfirmTimeout,
    refused: RejectedCache,
}

impl LaneState {
    fn new(channels: Arc<ChannelPool>, lane: usize) -> Self {
        Self {
            channels,
            lane,
            confirm_timeout: ConfirmTimeout::default(),
            refused: RejectedCache::default(),
        }
    }

    fn keep(&self, channel: OpenChannel) {
        self.channels.keep(self.lane, channel);
    }

    /// Publishes the jobs in order, in waves as large as is safe.
    async fn publish(&mut self, link: &Link, tasks: Vec<Task>) {
        // Messages that were refused before come last, each alone.
        let (suspects, tasks): (Vec<_>, Vec<_>) =
            tasks.into_iter().partition(|task| self.refused.knows(task));
        let mut rest = tasks.into_iter().peekable();
        while rest.peek().is_some() {
            let Some(channel) = self.ready(link, &mut rest).await else {
                break;
            };
            let publish_batch = safe_batch(&mut rest, channel.limits());
            if publish_batch.is_empty() {
                self.keep(channel);
            } else {
                self.send(link, channel, publish_batch).await;
            }
        }
        self.each_alone(link, suspects.into_iter()).await;
    }

    /// An open channel on a connection that the broker reads from. Otherwise all jobs are answered with the error.
    async fn ready(
        &mut self,
        link: &Link,
        tasks: &mut impl Iterator<Item = Task>,
    ) -> Option<OpenChannel> {
        match self.open(link).await {
            Ok(channel) => Some(channel),
            Err(error) => {
                answer_all(tasks, &error);
                None
            }
        }
    }

    /// Like [`open`](Self::open), after a wave that may have closed the connection, and perhaps the next one, too. If there is none, it
    /// waits for one once.
    async fn open_again(&mut self, link: &Link) -> Result<OpenChannel> {
        let mut tries = 1;
        loop {
            let began = Instant::now();
            match self.open(link).await {
                Err(error)
                    if error.kind() == ErrorKind::ConnectionLost
                        && tries < TRIES
                        && began.elapsed() < TIME_LIMIT => {}
                opened => return opened,
            }
            tries += 1;
        }
    }

    async fn open(&mut self, link: &Link) -> Result<OpenChannel> {
        let channels = Arc::clone(&self.channels);
        let (mut is_first, mut is_full, mut turn) = (true, false, None);
        let mut until = Instant::now() + TURN;
        loop {
            let connection = connection(link).await?;
            // A message that waits here can still be cancelled. What lapin has taken is written when the broker reads again.
            if connection.is_blocked() {
                connection.unblocked().await;
                until = Instant::now() + TURN;
                continue;
            }
            let got = channels.get(self.lane, turn.as_ref(), &connection, is_full);
            is_full = false;
            let opening = match got {
                AcquiredChannel::Channel(channel) => return Ok(channel),
                AcquiredChannel::MayOpen(opening) => opening,
                AcquiredChannel::Wait if Instant::now() >= until => {
                    return Err(channels.all_in_use(&connection));
                }
                AcquiredChannel::Wait => {
                    turn.get_or_insert_with(|| channels.turn());
                    channels.returned().await;
                    continue;
                }
            };
            match open(&connection).await {
                Ok(channel) => return Ok(opening.done(channel)),
                // Nothing was published on it yet. A connection without free channels is closed here.
                Err(error) if is_first && error.kind() == ErrorKind::ConnectionLost => {
                    is_first = false;
                }
                Err(error) if is_out_of_channels(&error) => is_full = true,
                // The channels of a closed connection count for a while.
                Err(error) if is_one_channel_too_many(&error) && Instant::now() < until => {
                    channels.were_too_many(&connection);
                    connection.gone().await;
                    channels.returned().await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Publishes a wave. If the broker refuses one message, it closes the channel, and the whole wave is in doubt. Then the others are
    /// published again, a few together. In the end only the refused message fails, and few are published for a third time.
    async fn send(&mut self, link: &Link, channel: OpenChannel, publish_batch: Vec<Task>) {
        let mut doubtful = self
            .attempt(channel, publish_batch)
            .await
            .into_iter()
            .peekable();
        while doubtful.peek().is_some() {
            let opened = self.open_again(link).await;
            // While they waited for the broker to read again, their publishers may have cancelled them.
            let wanted = doubtful.by_ref().filter(Task::is_wanted);
            let few: Vec<_> = wanted.take(FEW).collect();
            let guilty_among = match opened {
                Ok(channel) if few.is_empty() => {
                    self.keep(channel);
                    break;
                }
                Ok(channel) => self.attempt(channel, few).await,
                Err(error) => {
                    answer_all(few.into_iter().chain(doubtful), &error);
                    break;
                }
            };
            self.each_alone(link, guilty_among.into_iter()).await;
        }
    }

    /// Publishes one after the other. Without a connection, the current message and all behind it are answered with the error.
    async fn each_alone(&mut self, link: &Link, mut tasks: impl Iterator<Item = Task>) {
        while let Some(task) = tasks.next() {
            if let Err(error) = self.alone(link, task).await {
                answer_all(tasks, &error);
                return;
            }
        }
    }

    /// Publishes a wave. Returns the messages whose result is unknown because of another one.
    async fn attempt(&mut self, channel: OpenChannel, publish_batch: Vec<Task>) -> Vec<Task> {
        let alone = publish_batch.len() == 1;
        let BatchResult {
            channel,
            answers,
            broken_off,
            too_late,
        } = self.publish_batch(channel, publish_batch).await;
        channel.into_iter().for_each(|channel| self.keep(channel));
        let mut doubtful = Vec::new();
        for (task, answer) in answers {
            match answer {
                Err(error) if broken_off && !alone && is_in_doubt(error.kind()) => {
                    doubtful.push(task);
                }
                Err(error) if too_late && error.kind() == ErrorKind::ConnectionLost => {
                    doubtful.push(task);
                }
                answer => self.finish(task, answer),
            }
        }
        if !doubtful.is_empty() {
            debug!(tasks = doubtful.len(), "a batch of publishes was cancelled");
        }
        doubtful
    }

    /// Publishes one message that the broker may refuse.
    ///
    /// # Errors
    /// Why there is no connection to publish on. The publisher of this message has the answer.
    async fn alone(&mut self, link: &Link, mut task: Task) -> Result<()> {
        let mut tries = 1;
        loop {
            let channel = match self.open_again(link).await {
                Ok(channel) => channel,
                Err(error) => {
                    task.answer(Err(error.duplicate()));
                    return Err(error);
                }
            };
            // While it waited for the broker to read again, its publisher may have cancelled it.
            if !task.is_wanted() {
                self.keep(channel);
                return Ok(());
            }
            if let Some(error) = batch::refusal_beforehand(&task, channel.limits()) {
                self.keep(channel);
                task.answer(Err(error));
                return Ok(());
            }
            let mut sent = self.publish_batch(channel, vec![task]).await;
            sent.channel
                .take()
                .into_iter()
                .for_each(|channel| self.keep(channel));
            let Some((back, answer)) = sent.answers.pop() else {
                return Ok(()); // it was returned, and its publisher has the answer
            };
            match answer {
                // The end of a wave can close the connection: whatever lapin still sends for a channel that the broker has closed is a
                // connection error. This message is not the cause.
                Err(error) if error.kind() == ErrorKind::ConnectionLost && tries < TRIES => {
                    task = back;
                }
                answer => {
                    self.finish(back, answer);
                    return Ok(());
                }
            }
            tries += 1;
        }
    }

    async fn publish_batch(
        &mut self,
        channel: OpenChannel,
        publish_batch: Vec<Task>,
    ) -> BatchResult {
        let began = Instant::now();
        let sent = batch::send(channel, publish_batch, self.confirm_timeout.now()).await;
        if sent.channel.is_some() {
            self.confirm_timeout.note_confirmed(began.elapsed());
        } else {
            self.confirm_timeout.note_timeout();
        }
        sent
    }

    fn finish(&mut self, task: Task, answer: Result<()>) {
        match &answer {
            Ok(()) => self.refused.forget(&task),
            // Once one size was refused, no other needs to be tried.
            Err(error) if error.is_permanent() && error.kind() != ErrorKind::TooLarge => {
                self.refused.note(&task);
            }
            Err(_) => {}
        }
        task.answer(answer);
    }
}

/// Answers all of them with the same error.
fn answer_all(tasks: impl Iterator<Item = Task>, error: &Error) {
    tasks.for_each(|task| task.answer(Err(error.duplicate())));
}

/// Takes as many jobs as can be sent together, and answers those that need not be sent at all. A body larger than any that was accepted so
/// far is sent alone: it may be the one that closes the channel.
fn safe_batch(
    rest: &mut std::iter::Peekable<impl Iterator<Item = Task>>,
    limits: &Limits,
) -> Vec<Task> {
    let mut publish_batch = Vec::new();
    while let Some(task) = rest.peek() {
        let proven = limits.is_proven(task.body().len());
        let refusal = batch::refusal_beforehand(task, limits);
        let wanted = task.is_wanted();
        if wanted && refusal.is_none() && !proven && !publish_batch.is_empty() {
            break;
        }
        let Some(task) = rest.next() else { break };
        match refusal {
            _ if !wanted => drop(task),
            Some(error) => task.answer(Err(error)),
            None => {
                publish_batch.push(task);
                if !proven {
                    break;
                }
            }
        }
    }
    publish_batch
}

/// The connection to publish on; waits a while for it.
///
/// # Errors
/// [`ErrorKind::ConnectionLost`] if there is none, and as [`Link::connection`].
pub(super) async fn connection(link: &Link) -> Result<Arc<Connection>> {
    timeout(TIME_LIMIT, link.connection())
        .await
        .map_err(|_| away(link))?
}

/// The error if there is no connection to publish on, with the error of the last try to connect.
fn away(link: &Link) -> Error {
    let why = link
        .health()
        .err()
        .map_or_else(String::new, |why| format!(": {why}"));
    Error::new(
        ErrorKind::ConnectionLost,
        format!("cannot publish while the client reconnects to the broker{why}"),
    )
}

async fn open(connection: &Connection) -> Result<OpenChannel> {
    let opened = async {
        let channel = connection.channel().await?;
        ask(
            Operation::Opening,
            channel
                .lapin()
                .confirm_select(lapin::options::ConfirmSelectOptions::default()),
        )
        .await?;
        Ok(channel)
    };
    let opened: Result<OpenChannel> = opened.await;
    // A broker that does not open a channel, and has no alarm, has stopped reading. It may still send heartbeats.
    if matches!(&opened, Err(error) if error.kind() == ErrorKind::Timeout)
        && !connection.is_blocked()
    {
        connection.cut();
    }
    opened
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::{super::job::tests::job, *};

    #[derive(Default)]
    struct PanicsOnce(AtomicUsize);

    impl BatchSink for PanicsOnce {
        fn lane_state(&self) -> LaneState {
            LaneState::new(Arc::default(), 0)
        }

        async fn publish(&self, tasks: Vec<Task>, _: &mut LaneState) {
            tokio::task::yield_now().await;
            let publish_batch = self.0.fetch_add(1, Ordering::Relaxed);
            assert!(publish_batch != 0, "as it is meant");
            tasks.into_iter().for_each(|task| task.answer(Ok(())));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lane_that_panics_answers_everything_and_goes_on() {
        let (sender, jobs) = mpsc::unbounded_channel();
        let sink = PanicsOnce::default();
        let lane = serve(&sink, jobs);
        let asked = async {
            let (first, second) = (job("a"), job("b"));
            for asked in [first.0, second.0] {
                assert!(sender.send(Task::new(asked, None)).is_ok());
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
            let later = job("c");
            assert!(sender.send(Task::new(later.0, None)).is_ok());
            drop(sender);
            (first.1, second.1, later.1)
        };
        let ((), (first, second, later)) = tokio::join!(lane, asked);
        for lost in [first, second] {
            let lost = lost.lock().unwrap();
            assert!(
                matches!(&lost[..], [Err(error)] if error.is_transient()),
                "{lost:?}"
            );
        }
        assert!(matches!(later.lock().unwrap()[..], [Ok(())]));
    }

    #[test]
    fn a_body_larger_than_any_before_goes_alone() {
        let limits = Limits::new(131_072);
        let sizes = [3, 2, 3, 5, 1, 9, 10];
        let tasks = sizes.map(|size| {
            let (mut asked, answers) = job("a");
            asked.body = Arc::new(vec![0; size]);
            (Task::new(asked, None), answers)
        });
        let (tasks, answers): (Vec<_>, Vec<_>) = tasks.into_iter().unzip();
        let mut rest = tasks.into_iter().peekable();
        let mut batches = Vec::new();
        while rest.peek().is_some() {
            let publish_batch = safe_batch(&mut rest, &limits);
            for task in &publish_batch {
                if task.body().len() == 5 {
                    limits.took(5);
                    limits.limited(8);
                } else {
                    limits.took(task.body().len());
                }
            }
            batches.push(
                publish_batch
                    .iter()
                    .map(|task| task.body().len())
                    .collect::<Vec<_>>(),
            );
            publish_batch
                .into_iter()
                .for_each(|task| task.answer(Ok(())));
        }
        assert_eq!(batches, [vec![3], vec![2, 3], vec![5], vec![1]]);
        for answer in &answers[5..] {
            let answer = answer.lock().unwrap();
            assert!(
                matches!(&answer[..], [Err(error)] if error.kind() == ErrorKind::TooLarge),
                "{answer:?}"
            );
        }
    }

    #[test]
    fn what_fits_no_frame_or_is_given_up_never_goes() {
        let limits = Limits::new(4_096);
        limits.took(1_000);
        let (mut large, answers) = job("a");
        let mut headers = lapin::types::FieldTable::default();
        headers.insert(
            "blob".into(),
            lapin::types::AMQPValue::LongString("v".repeat(4_080).into()),
        );
        large.properties = Arc::unwrap_or_clone(large.properties)
            .with_headers(headers)
            .into();
        let given_up = Task::new(job("a").0, Some(std::sync::Weak::new()));
        let fine = Task::new(job("a").0, None);
        let tasks = vec![Task::new(large, None), given_up, fine];
        let publish_batch = safe_batch(&mut tasks.into_iter().peekable(), &limits);
        assert_eq!(publish_batch.len(), 1);
        let answers = answers.lock().unwrap();
        assert!(
            matches!(&answers[..], [Err(error)] if error.kind() == ErrorKind::TooLarge),
            "{answers:?}"
        );
    }
}
