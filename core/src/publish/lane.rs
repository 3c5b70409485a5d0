//! One publishing channel and the task that owns it.
//!
//! lapin attaches a returned message to the wrong confirm as soon as more than one is outstanding, and mixes up tags
//! when several tasks publish on a channel. So: one task, waves (send N, await N), and the returned messages of a wave
//! matched by their content.

use std::sync::Arc;

use lapin::{
    BasicProperties, Confirmation,
    options::{BasicPublishOptions, ConfirmSelectOptions},
    protocol::{AMQPErrorKind, AMQPHardError},
    types::ShortString,
};
use tokio::{
    sync::mpsc,
    time::{Instant, timeout, timeout_at},
};
use tracing::debug;

use super::returned::returned_jobs;
use crate::{
    Error, ErrorKind, Result,
    client::{ANSWER, Begun, Doing, Link, OpenChannel, ask, put_off, refusal},
};

/// A message's body, shared with whoever else holds it.
pub(crate) type Body = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// One message to publish, and who is told how that went.
pub(crate) struct Job {
    pub(crate) exchange: ShortString,
    pub(crate) routing_key: ShortString,
    pub(crate) properties: BasicProperties,
    pub(crate) body: Body,
    pub(crate) mandatory: bool,
    pub(crate) done: Box<dyn FnOnce(Result<()>) + Send + Sync>,
}

/// Enough to hide the round trip, and few enough that a lost channel leaves few in doubt.
const WAVE: usize = 256;

/// As many bytes of a wave are handed to lapin, which copies them, before they are written.
const UNWRITTEN: usize = 1 << 20;

/// How long a message waits for a connection before its publisher is told.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);

/// How often a message is published that shared a wave with one that the broker refused.
const TRIES: u32 = 4;

/// Publishes what comes in, until nobody can send any more.
pub(super) async fn run(link: Arc<Link>, mut jobs: mpsc::UnboundedReceiver<Job>) {
    let mut channel: Option<OpenChannel> = None;
    let mut wave = Vec::with_capacity(WAVE);
    while jobs.recv_many(&mut wave, WAVE).await > 0 {
        let open = match channel.take() {
            Some(open) if open.is_open() => Ok(open),
            _ => open(&link).await,
        };
        match open {
            Ok(open) => {
                channel = publish(&link, open, std::mem::take(&mut wave)).await;
            }
            Err(error) => {
                for job in wave.drain(..) {
                    (job.done)(Err(error.duplicate()));
                }
            }
        }
    }
}

async fn open(link: &Link) -> Result<OpenChannel> {
    let connection = timeout(PATIENCE, link.connection()).await.map_err(|_| {
        Error::new(
            ErrorKind::ConnectionLost,
            "there is no connection to the broker to publish on; it is being re-made",
        )
    })??;
    let channel = connection.channel().await?;
    ask(
        Doing::Opening,
        channel
            .lapin()
            .confirm_select(ConfirmSelectOptions::default()),
    )
    .await?;
    Ok(channel)
}

/// Publishes a wave. One message that the broker refuses takes the channel, and with it the whole wave, down: then
/// each goes alone, so that only the guilty fails. Returns the channel, if it can be used again.
async fn publish(link: &Link, channel: OpenChannel, wave: Vec<Job>) -> Option<OpenChannel> {
    let alone = wave.len() == 1;
    let Sent {
        mut channel,
        answers,
        broken_off,
        too_late,
    } = send(channel, wave).await;
    let mut doubtful = Vec::new();
    for (job, answer) in answers {
        match answer {
            Err(error) if broken_off && !alone && is_in_doubt(error.kind()) => doubtful.push(job),
            Err(error) if too_late && error.kind() == ErrorKind::ConnectionLost => {
                doubtful.push(job);
            }
            answer => (job.done)(answer),
        }
    }
    if !doubtful.is_empty() {
        debug!(
            jobs = doubtful.len(),
            "a wave was broken off; publishing one by one"
        );
    }
    for job in doubtful {
        channel = publish_alone(link, channel, job).await;
    }
    channel
}

/// Publishes one message that was in a wave with one that the broker refused.
async fn publish_alone(
    link: &Link,
    mut channel: Option<OpenChannel>,
    mut job: Job,
) -> Option<OpenChannel> {
    let mut tries = 0;
    loop {
        tries += 1;
        let usable = match channel.take() {
            Some(open) if open.is_open() => Ok(open),
            _ => open(link).await,
        };
        let answer = match usable {
            Ok(open) => {
                let mut sent = send(open, vec![job]).await;
                channel = sent.channel;
                match sent.answers.pop() {
                    Some((back, answer)) => {
                        job = back;
                        answer
                    }
                    None => return channel, // it was returned, and its publisher told
                }
            }
            Err(error) => Err(error),
        };
        match answer {
            // The end of a wave can take the connection with it: what lapin still sends for a channel that the broker
            // has closed is an error that closes everything. This message is not to blame.
            Err(error) if error.kind() == ErrorKind::ConnectionLost && tries < TRIES => {}
            answer => {
                (job.done)(answer);
                return channel;
            }
        }
    }
}

/// What became of a wave. Those whose message came back are told already.
struct Sent {
    /// The channel, unless confirms are still outstanding that would be mixed up with the next wave's.
    channel: Option<OpenChannel>,
    answers: Vec<(Job, Result<()>)>,
    /// Whether the broker closed the channel because of one message: what became of the others is unknown.
    broken_off: bool,
    /// Whether the channel was closing already, over the wave before: then messages were not even sent.
    too_late: bool,
}

/// Sends a wave and awaits all its confirms.
async fn send(channel: OpenChannel, wave: Vec<Job>) -> Sent {
    let (mut broken_off, mut too_late) = (false, false);
    let mut judge = |why: lapin::Error| {
        broken_off |= is_of_another_channel(&why);
        let error = refusal(&Doing::Publishing, why);
        broken_off |= is_refusal(error.kind());
        error
    };
    let mut confirms = Vec::with_capacity(wave.len());
    let deadline = Instant::now() + ANSWER;
    let mut written =
        async |sent: Begun<'_, lapin::Result<_>>| match timeout_at(deadline, sent.answer()).await {
            Ok(sent) => sent.map_err(|why| {
                too_late |= matches!(why.kind(), lapin::ErrorKind::InvalidChannelState(..));
                judge(why)
            }),
            Err(_) => Err(no_answer()),
        };
    let (mut unwritten, mut bytes) = (Vec::new(), 0);
    for job in &wave {
        if bytes >= UNWRITTEN {
            for sent in unwritten.drain(..) {
                confirms.push(written(sent).await);
            }
            bytes = 0;
        }
        let options = BasicPublishOptions {
            mandatory: job.mandatory,
            immediate: false,
        };
        let body: &[u8] = (*job.body).as_ref();
        bytes += body.len();
        unwritten.push(Begun::new(channel.lapin().basic_publish(
            job.exchange.clone(),
            job.routing_key.clone(),
            options,
            body,
            job.properties.clone(),
        )));
    }
    for sent in unwritten {
        confirms.push(written(sent).await);
    }
    let mut results = Vec::with_capacity(wave.len());
    let mut returned = Vec::new();
    for confirm in confirms {
        results.push(match confirm {
            Ok(confirm) => match timeout_at(deadline, put_off(confirm)).await {
                Ok(Ok(Confirmation::Ack(back))) => {
                    returned.extend(back);
                    Ok(())
                }
                Ok(Ok(Confirmation::Nack(back))) => {
                    returned.extend(back);
                    Err(Error::new(
                        ErrorKind::NotConfirmed,
                        "the broker did not take the message (basic.nack); try again after a pause",
                    ))
                }
                Ok(Ok(Confirmation::NotRequested)) => Err(Error::new(
                    ErrorKind::NotConfirmed,
                    "the channel gives no publisher confirms",
                )),
                Ok(Err(why)) => Err(judge(why)),
                Err(_) => Err(no_answer()),
            },
            Err(error) => Err(error),
        });
    }
    let unrouted = returned_jobs(&wave, &returned);
    let timed_out = results
        .iter()
        .any(|result| matches!(result, Err(error) if error.kind() == ErrorKind::Timeout));
    let mut answers = Vec::with_capacity(wave.len());
    for ((job, result), unrouted) in wave.into_iter().zip(results).zip(unrouted) {
        if unrouted {
            let why = if job.exchange.as_str().is_empty() {
                format!("there is no queue `{}`", job.routing_key)
            } else {
                format!(
                    "no queue takes a message for the exchange `{}` with the routing key `{}`",
                    job.exchange, job.routing_key
                )
            };
            (job.done)(Err(Error::new(ErrorKind::Unroutable, why)));
        } else {
            answers.push((job, result));
        }
    }
    Sent {
        channel: (!timed_out).then_some(channel),
        answers,
        broken_off,
        too_late,
    }
}

/// Whether a message with this error may be one that only shared its channel with the guilty one.
fn is_in_doubt(kind: ErrorKind) -> bool {
    is_refusal(kind) || kind == ErrorKind::ConnectionLost
}

/// Whether the connection was closed over frames for a channel that the broker had closed before.
fn is_of_another_channel(why: &lapin::Error) -> bool {
    matches!(why.kind(), lapin::ErrorKind::ProtocolError(said)
        if matches!(said.kind(), AMQPErrorKind::Hard(AMQPHardError::CHANNELERROR)))
}

/// Whether the broker closed the channel because of a message.
fn is_refusal(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::AccessRefused
            | ErrorKind::Unroutable
            | ErrorKind::InvalidOption
            | ErrorKind::TooLarge
            | ErrorKind::Broker
    )
}

fn no_answer() -> Error {
    Error::new(
        ErrorKind::Timeout,
        format!(
            "the broker did not confirm a message within {} s",
            ANSWER.as_secs()
        ),
    )
}
