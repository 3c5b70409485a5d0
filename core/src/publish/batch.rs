//! A wave: several messages sent together on one channel, and all their confirms.

use std::{future::Future, pin::pin, sync::Arc, time::Duration};

use futures_util::FutureExt;
use lapin::{
    Confirmation, PublisherConfirm,
    options::BasicPublishOptions,
    protocol::{AMQPErrorKind, AMQPHardError},
};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::{job::Task, message::content_header_size, returned::returned_jobs};
use crate::{
    Error, ErrorKind, Result,
    connection::{Limits, OpenChannel, Operation, StartedCall, put_off, refusal, size_limit},
};

/// Bytes of a wave that are passed to lapin, which copies them, before they are written.
const UNWRITTEN: usize = 1 << 20;

/// The result of a wave. Publishers of returned messages were answered already.
pub(super) struct BatchResult {
    /// The channel, unless confirms are still missing that would be mixed up with those of the next wave.
    pub(super) channel: Option<OpenChannel>,
    pub(super) answers: Vec<(Task, Result<()>)>,
    /// Whether the broker closed the channel because of one message. Then nobody knows what happened to the others.
    pub(super) broken_off: bool,
    /// Whether the channel was already closing because of the wave before. Then some messages were not even sent.
    pub(super) too_late: bool,
}

/// Why a message need not be sent, if that is known beforehand. A content header larger than one frame would close the connection, a body
/// larger than the broker's limit the channel, and everything unconfirmed on it would be in doubt.
pub(super) fn refusal_beforehand(task: &Task, limits: &Limits) -> Option<Error> {
    let header = content_header_size(&task.properties);
    let room = limits.content_header_max();
    if header > room {
        return Some(Error::new(
            ErrorKind::TooLarge,
            format!(
                "the headers and properties take {header} bytes, and a frame of this broker has room for {room}; put \
                 large values into the body, or raise RabbitMQ's `frame_max`"
            ),
        ));
    }
    let size = task.body().len();
    limits.refuses(size).map(|largest| {
        Error::new(
            ErrorKind::TooLarge,
            format!(
                "the body has {size} bytes, and this broker takes at most {largest}; make it smaller, or raise RabbitMQ's \
                 `max_message_size`"
            ),
        )
    })
}

/// The deadline for the broker's answer. During a memory or disk alarm the broker reads nothing, and that time does not count. When an alarm
/// ends, the broker has as long as after a publish: it reads what came meanwhile first.
struct Deadline {
    /// Whether the broker has stopped reading.
    blocked: watch::Receiver<bool>,
    confirm_timeout: Duration,
    at: Instant,
}

impl Deadline {
    fn new(blocked: watch::Receiver<bool>, confirm_timeout: Duration) -> Self {
        Self {
            blocked,
            confirm_timeout,
            at: Instant::now() + confirm_timeout,
        }
    }

    async fn within<T>(&mut self, answer: impl Future<Output = T>) -> Result<T> {
        let mut answer = pin!(answer);
        loop {
            tokio::select! {
                biased;
                answer = &mut answer => return Ok(answer),
                Ok(()) = self.blocked.changed() => {}
                () = sleep_until(self.at) => if !*self.blocked.borrow() {
                    return Err(Error::new(
                        ErrorKind::Timeout,
                        format!(
                            "the broker did not confirm a message within {} s",
                            self.confirm_timeout.as_secs()
                        ),
                    ));
                },
            }
            self.at = Instant::now() + self.confirm_timeout;
        }
    }
}

/// Sends a wave, and waits for all its confirms. Messages that were not passed to lapin yet can still be cancelled. After the deadline no
/// more are passed to it.
pub(super) async fn send(
    channel: OpenChannel,
    batch: Vec<Task>,
    confirm_timeout: Duration,
) -> BatchResult {
    let (mut broken_off, mut too_late) = (false, false);
    let mut note_error = |why: lapin::Error| {
        broken_off |= is_of_another_channel(&why);
        if let Some(largest) = size_limit(&why) {
            channel.limits().limited(largest);
        }
        let error = refusal(&Operation::Publishing, why);
        broken_off |= is_refusal(error.kind());
        error
    };
    let mut confirms = Vec::with_capacity(batch.len());
    let mut deadline = Deadline::new(channel.blocked(), confirm_timeout);
    // The last one is waited for first, here and for its confirm: it comes after the others, so this task wakes once and not for each.
    let mut written = async |all: Vec<StartedCall<'_, _>>, deadline: &mut Deadline| {
        let mut confirms = Vec::with_capacity(all.len());
        for sent in all.into_iter().rev() {
            let sent: Result<lapin::Result<PublisherConfirm>> =
                deadline.within(sent.answer()).await;
            confirms.push(sent.and_then(|sent| {
                sent.map_err(|why| {
                    too_late |= matches!(why.kind(), lapin::ErrorKind::InvalidChannelState(..));
                    note_error(why)
                })
            }));
        }
        confirms.reverse();
        confirms
    };
    let (mut unwritten, mut bytes) = (Vec::with_capacity(batch.len()), 0);
    let mut late: Option<Error> = None;
    let mut tasks = Vec::with_capacity(batch.len());
    for task in batch {
        if bytes >= UNWRITTEN {
            let sent = written(std::mem::take(&mut unwritten), &mut deadline).await;
            let timed_out = sent.iter().find_map(timeout_of);
            late = late.or_else(|| timed_out.map(Error::duplicate));
            confirms.extend(sent);
            bytes = 0;
        }
        if !task.is_wanted() {
            continue;
        }
        bytes += task.body().len();
        match &late {
            Some(error) => confirms.push(Err(error.duplicate())),
            None => unwritten.push(publish(&channel, &task)),
        }
        tasks.push(task);
    }
    let batch = tasks;
    confirms.extend(written(unwritten, &mut deadline).await);
    let mut results = Vec::with_capacity(batch.len());
    let (mut returned, mut unanswered) = (Vec::new(), Vec::new());
    for (confirm, task) in confirms.into_iter().zip(&batch).rev() {
        let confirm = match confirm {
            Ok(mut confirm) => {
                let answer = deadline.within(put_off(&mut confirm)).await;
                if answer.is_err() {
                    unanswered.push((results.len(), confirm));
                }
                answer
            }
            Err(error) => Err(error),
        };
        results.push(match confirm {
            Ok(Ok(Confirmation::Ack(back))) => {
                channel.limits().took(task.body().len());
                returned.extend(back);
                Ok(())
            }
            Ok(Ok(Confirmation::Nack(back))) => {
                channel.limits().took(task.body().len());
                returned.extend(back);
                Err(Error::new(
                    ErrorKind::NotConfirmed,
                    "the broker did not take the message (basic.nack); try again after a pause",
                ))
            }
            Ok(Ok(Confirmation::NotRequested)) => Err(Error::new(
                ErrorKind::NotConfirmed,
                "the channel is not in confirm mode; this is a bug in retryrmq",
            )),
            Ok(Err(why)) => Err(note_error(why)),
            Err(error) => Err(error),
        });
    }
    let timed_out = results.iter().any(|result| timeout_of(result).is_some());
    // Some may have come while others were looked at. And lapin hands a returned message to whichever confirm comes next.
    for (place, confirm) in unanswered {
        match confirm.now_or_never() {
            Some(Ok(Confirmation::Ack(back))) => {
                returned.extend(back);
                results[place] = Ok(());
            }
            Some(Ok(Confirmation::Nack(back))) => returned.extend(back),
            _ => {}
        }
    }
    results.reverse();
    let unrouted = returned_jobs(&batch, &returned);
    let mut answers = Vec::with_capacity(batch.len());
    for ((task, result), unrouted) in batch.into_iter().zip(results).zip(unrouted) {
        if unrouted {
            let why = if task.exchange.as_str().is_empty() {
                format!(
                    "there is no queue `{}`; declare it, or check its name and the virtual host",
                    task.routing_key
                )
            } else {
                format!(
                    "no queue is bound to the exchange `{}` for the routing key `{}`; bind one",
                    task.exchange, task.routing_key
                )
            };
            task.answer(Err(Error::new(ErrorKind::Unroutable, why)));
        } else {
            answers.push((task, result));
        }
    }
    BatchResult {
        channel: (!timed_out).then_some(channel),
        answers,
        broken_off,
        too_late,
    }
}

fn timeout_of<T>(result: &Result<T>) -> Option<&Error> {
    result
        .as_ref()
        .err()
        .filter(|error| error.kind() == ErrorKind::Timeout)
}

/// Passes a message to lapin.
fn publish<'a>(
    channel: &'a OpenChannel,
    task: &Task,
) -> StartedCall<'a, lapin::Result<PublisherConfirm>> {
    let options = BasicPublishOptions {
        mandatory: task.mandatory,
        immediate: false,
    };
    let (exchange, routing_key) = (task.exchange.clone(), task.routing_key.clone());
    let (body, properties) = (Arc::clone(&task.body), Arc::clone(&task.properties));
    StartedCall::new(async move {
        let body = (*body).as_ref();
        channel
            .lapin()
            .basic_publish(exchange, routing_key, options, body, (*properties).clone())
            .await
    })
}

/// Whether a message with this error may only have shared its channel with the refused one.
pub(super) fn is_in_doubt(kind: ErrorKind) -> bool {
    is_refusal(kind) || kind == ErrorKind::ConnectionLost
}

/// Whether the connection was closed because of frames for a channel that the broker had closed before.
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

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    const TIME_LIMIT: Duration = Duration::from_secs(20);

    #[tokio::test(start_paused = true)]
    async fn the_time_of_an_alarm_does_not_count_even_if_it_has_just_ended() {
        for (alarm_ends, answer_comes, is_heard) in [
            (None, 19, true),
            (None, 21, false),
            (Some(19), 38, true),
            (Some(19), 40, false),
            (Some(25), 44, true),
        ] {
            let (alarm_sender, blocked) = watch::channel(alarm_ends.is_some());
            let mut deadline = Deadline::new(blocked, TIME_LIMIT);
            let alarm = async {
                sleep(Duration::from_secs(alarm_ends.unwrap_or_default())).await;
                alarm_sender.send_if_modified(std::mem::take);
            };
            let answer = sleep(Duration::from_secs(answer_comes));
            let (answered, ()) = tokio::join!(deadline.within(answer), alarm);
            assert_eq!(
                answered.is_ok(),
                is_heard,
                "{alarm_ends:?}, {answer_comes} s"
            );
        }
    }
}
