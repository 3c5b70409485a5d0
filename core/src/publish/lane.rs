//! One publishing channel and the task that owns it.
//!
//! lapin attaches a returned message to the wrong confirm as soon as more than one is outstanding, and mixes up tags
//! when several tasks publish on a channel. So: one task, waves (send N, await N), and the returned messages of a wave
//! matched by their content.

use std::sync::Arc;

use lapin::{
    BasicProperties, Confirmation,
    options::{BasicPublishOptions, ConfirmSelectOptions},
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
    client::{ANSWER, Doing, Link, OpenChannel, ask, refusal},
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

/// How long a message waits for a connection before its publisher is told.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);

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
    let (channel, refused) = send(channel, wave).await;
    let Some((error, jobs)) = refused else {
        return channel;
    };
    if alone {
        jobs.into_iter()
            .for_each(|job| (job.done)(Err(error.duplicate())));
        return channel;
    }
    debug!(%error, jobs = jobs.len(), "a wave was refused; publishing one by one");
    let mut channel = channel;
    for job in jobs {
        let usable = match channel.take() {
            Some(open) if open.is_open() => Ok(open),
            _ => open(link).await,
        };
        match usable {
            Ok(open) => {
                let (open, refused) = send(open, vec![job]).await;
                channel = open;
                if let Some((error, jobs)) = refused {
                    jobs.into_iter()
                        .for_each(|job| (job.done)(Err(error.duplicate())));
                }
            }
            Err(error) => (job.done)(Err(error)),
        }
    }
    channel
}

/// Sends a wave and awaits all its confirms. What comes back is what the channel's end left in doubt.
async fn send(
    channel: OpenChannel,
    wave: Vec<Job>,
) -> (Option<OpenChannel>, Option<(Error, Vec<Job>)>) {
    let mut confirms = Vec::with_capacity(wave.len());
    let deadline = Instant::now() + ANSWER;
    for job in &wave {
        let options = BasicPublishOptions {
            mandatory: job.mandatory,
            immediate: false,
        };
        let body: &[u8] = (*job.body).as_ref();
        let sent = channel.lapin().basic_publish(
            job.exchange.clone(),
            job.routing_key.clone(),
            options,
            body,
            job.properties.clone(),
        );
        confirms.push(match timeout_at(deadline, sent).await {
            Ok(sent) => sent.map_err(|why| refusal(&Doing::Publishing, why)),
            Err(_) => Err(no_answer()),
        });
    }
    let mut results = Vec::with_capacity(wave.len());
    let mut returned = Vec::new();
    for confirm in confirms {
        results.push(match confirm {
            Ok(confirm) => match timeout_at(deadline, confirm).await {
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
                Ok(Err(why)) => Err(refusal(&Doing::Publishing, why)),
                Err(_) => Err(no_answer()),
            },
            Err(error) => Err(error),
        });
    }
    let unrouted = returned_jobs(&wave, &returned);
    let timed_out = results
        .iter()
        .any(|result| matches!(result, Err(error) if error.kind() == ErrorKind::Timeout));
    // A refusal closes the channel because of one message; what became of the others is unknown.
    let refused = results.iter().find_map(|result| match result {
        Err(error) if is_refusal(error.kind()) => Some(error.duplicate()),
        _ => None,
    });
    let mut doubtful = Vec::new();
    for ((job, result), unrouted) in wave.into_iter().zip(results).zip(unrouted) {
        match result {
            _ if unrouted => {
                let error = Error::new(
                    ErrorKind::Unroutable,
                    format!(
                        "no queue takes a message for the exchange `{}` with the routing key `{}`",
                        job.exchange, job.routing_key
                    ),
                );
                (job.done)(Err(error));
            }
            Err(error)
                if refused.is_some()
                    && (is_refusal(error.kind()) || error.kind() == ErrorKind::ConnectionLost) =>
            {
                doubtful.push(job);
            }
            result => (job.done)(result),
        }
    }
    // Confirms that are still outstanding would be mixed up with the next wave's.
    let channel = if timed_out { None } else { Some(channel) };
    (channel, refused.map(|error| (error, doubtful)))
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
