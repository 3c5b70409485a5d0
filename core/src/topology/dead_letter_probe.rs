//! Whether the broker keeps messages that come back while their work queue is missing. Neither the declaration of a queue nor anything else in
//! AMQP tells: a policy with `overflow` wins over the argument of a quorum queue, and an old cluster may lack a feature flag. So it is tried
//! out, with a queue that is named like a waiting queue, because policies match names.
//!
//! ```text
//!  publish ──► orders.retry.<impossible>  x-max-length=0  ── 1 ms ──► a queue that does not exist
//!  publish again:  refused    the first one is held: at least once
//!                  confirmed  it was dropped: at most once
//! ```

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use lapin::{
    Confirmation,
    options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions},
    types::ShortString,
};
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, warn};

use super::{
    Argument, Plan,
    plan::{Arguments, at_least_once, field_table, name, named, text},
};
use crate::{
    Error, ErrorKind, Result, Server,
    connection::{ANSWER, Addresses, Connection, Operation, ask, passive_declare},
    doubling_pause::DoublingPause,
    mutants::{self, Mutant},
    queue_names::waits_for,
};

/// The first of the numbers of milliseconds that stand for no delay: more than 365 days, and as many digits as the longest delay has.
const IMPOSSIBLE: u64 = 90_000_000_000;

/// How many names there are for the queues of one work queue. RabbitMQ keeps the name of each quorum queue for ever (as an Erlang atom), so they
/// have to be few; and those who probe at the same time need different ones.
pub(crate) const PROBE_QUEUES: u64 = 16;

/// How the routing key of a probe's dead letters begins. No queue may have such a name.
const NOWHERE: &str = "retryrmq.nowhere.";

/// After that the broker deletes the queue, if we could not.
const LEASE: i64 = 60_000;

/// How often it is checked that the broker still reads what a probe publishes. It must not hold up a consumer during an alarm.
const ALARM_CHECK: Duration = Duration::from_secs(3);

/// How long an answer counts. Whoever loses the connection to a broker that restarts is one of many, and should not add to its work.
const COUNTS: Duration = Duration::from_secs(3600);

/// How long it counts that no answer was found, as in an alarm.
const UNKNOWN_COUNTS: Duration = Duration::from_secs(60);

/// The most work queues whose answers are remembered.
const REMEMBERED: usize = 1_000;

/// How often a queue that drops a message is tried out, because the answer stops a consumer, and a queue that is this young may lose messages
/// with its node.
pub(crate) const TRIES: usize = 2;

/// Until when the last answer of a work queue counts. One at a time tries it out.
type LastProbe = Arc<tokio::sync::Mutex<Option<Instant>>>;

/// What was tried out, by work queue.
#[derive(Debug, Default)]
pub(crate) struct DeadLetterProbes(Mutex<HashMap<String, LastProbe>>);

impl DeadLetterProbes {
    fn last(&self, queue: &str) -> LastProbe {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= REMEMBERED && !all.contains_key(queue) {
            all.clear();
        }
        Arc::clone(all.entry(queue.to_owned()).or_default())
    }

    /// Tries out whether the waiting queues of `plan` will dead-letter at least once as they ask for, unless that was done lately. What cannot
    /// be found out is taken for granted, as it was before there were probes. It comes before they are created: on RabbitMQ 3.10, one that was
    /// created without the feature flag `stream_queue` drops messages for good. It uses a connection of its own, which a refusal may cost.
    ///
    /// # Errors
    /// [`ErrorKind::StrategyRefused`] if they do not, and those of connecting.
    pub(crate) async fn check(&self, addresses: &Addresses, plan: &Plan) -> Result<()> {
        let Some(queue) = asks_at_least_once(plan) else {
            return Ok(());
        };
        let last = self.last(queue);
        let mut last = last.lock().await;
        if last.is_some_and(|until| Instant::now() < until) {
            return Ok(());
        }
        let connection = Connection::open(addresses, "topology").await?;
        let answer = keeps(&connection, queue).await;
        connection.close().await;
        match answer {
            Ok(false) => return Err(at_most_once(queue, connection.server())),
            Ok(true) => *last = Some(Instant::now() + COUNTS),
            Err(why) => {
                const SAID: &str = "it was not found out whether the broker keeps messages that come back while their queue is missing";
                match why.kind() {
                    ErrorKind::AccessRefused => debug!(queue, %why, "{SAID}"),
                    _ => warn!(queue, %why, "{SAID}"),
                }
                *last = Some(Instant::now() + UNKNOWN_COUNTS);
            }
        }
        Ok(())
    }
}

/// Whether one of a few queues like a waiting queue of `queue` holds what it cannot dead-letter.
///
/// # Errors
/// If that was not found out.
async fn keeps(connection: &Connection, queue: &str) -> Result<bool> {
    for _ in 0..TRIES {
        if holds(connection, queue).await? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What a probe does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeStep {
    /// Publish to its queue, on a new channel.
    Publish,
    /// Ask how many messages are ready there.
    Look,
    /// Whether the queue held the first message; `None` if that was not found out.
    Done(Option<bool>),
}

/// How far a probe is. It begins with [`ProbeStep::Publish`].
#[derive(Debug, Default)]
pub(crate) struct Probe {
    published: bool,
}

impl Probe {
    /// The broker has taken or refused a message.
    pub(crate) fn published(&mut self, is_taken: bool) -> ProbeStep {
        match std::mem::replace(&mut self.published, true) {
            true => ProbeStep::Done(Some(!is_taken)),
            false if is_taken => ProbeStep::Look,
            false => ProbeStep::Done(None),
        }
    }

    /// So many messages are ready.
    pub(crate) fn step_after_count(&self, ready: u32) -> ProbeStep {
        match ready {
            0 => ProbeStep::Publish,
            _ => ProbeStep::Look,
        }
    }
}

/// The work queue of a plan with waiting queues that ask for at-least-once dead-lettering.
pub(crate) fn asks_at_least_once(plan: &Plan) -> Option<&str> {
    if mutants::has(Mutant::TrustsTheArguments) {
        return None;
    }
    plan.items.iter().find_map(|item| {
        let work = item.text_argument("x-dead-letter-routing-key")?;
        let asks = item.text_argument("x-dead-letter-strategy") == Some("at-least-once");
        (asks && waits_for(work, item.name()).is_some()).then_some(work)
    })
}

/// A name for the queue of a probe.
pub(crate) fn probe_queue(queue: &str, random: u64) -> String {
    let number = IMPOSSIBLE + random % PROBE_QUEUES;
    format!("{queue}.retry.{number}")
}

/// The arguments of a probe's queue.
pub(crate) fn probe_arguments(random: u64) -> Arguments {
    let mut arguments = named([
        ("x-queue-type", text("quorum")),
        ("x-message-ttl", Argument::Number(1)),
        ("x-max-length", Argument::Number(0)),
        ("x-expires", Argument::Number(LEASE)),
        ("x-dead-letter-exchange", text("")),
        (
            "x-dead-letter-routing-key",
            text(format!("{NOWHERE}{random:016x}")),
        ),
    ]);
    arguments.extend(at_least_once());
    arguments
}

/// Whether a queue like a waiting queue of `queue` holds what it cannot dead-letter.
///
/// # Errors
/// If that was not found out.
async fn holds(connection: &Connection, queue: &str) -> Result<bool> {
    let tried = async {
        let first = fastrand::u64(..PROBE_QUEUES);
        for number in first..first + PROBE_QUEUES {
            let probe = name(&probe_queue(queue, number))?;
            match tried(connection, probe).await {
                // Somebody else is using it, and has arguments of their own.
                Err(error) if error.kind() == ErrorKind::Mismatch => {}
                answer => return answer,
            }
        }
        let why = "too many others try it out at the same time";
        Err(Error::new(ErrorKind::Mismatch, why))
    };
    tokio::pin!(tried);
    let began = Instant::now();
    loop {
        if let Ok(answer) = timeout(ALARM_CHECK, &mut tried).await {
            return answer;
        }
        if connection.is_blocked() || began.elapsed() >= ANSWER {
            let why = "the broker did not answer in time";
            return Err(Error::new(ErrorKind::Timeout, why));
        }
    }
}

async fn tried(connection: &Connection, probe: ShortString) -> Result<bool> {
    let channel = connection.channel().await?;
    let durable = QueueDeclareOptions {
        durable: true,
        ..QueueDeclareOptions::default()
    };
    let arguments = field_table(&probe_arguments(fastrand::u64(..)));
    let declared = channel
        .lapin()
        .queue_declare(probe.clone(), durable, arguments);
    ask(Operation::Declaring(probe.as_str()), declared).await?;
    let answer = async {
        let (mut questions, mut next) = (Probe::default(), ProbeStep::Publish);
        let mut pause = DoublingPause::new(Duration::from_millis(2), Duration::from_millis(100));
        loop {
            next = match next {
                ProbeStep::Publish => questions.published(accepts(connection, &probe).await?),
                ProbeStep::Look => {
                    let looked = passive_declare(&channel, probe.clone()).await?;
                    questions.step_after_count(looked.message_count())
                }
                ProbeStep::Done(answer) => {
                    let why = "the broker refused a message to an empty queue";
                    return answer.ok_or_else(|| Error::new(ErrorKind::NotConfirmed, why));
                }
            };
            if next == ProbeStep::Look {
                sleep(pause.next_pause()).await;
            }
        }
    };
    let answer = answer.await;
    // If that fails, the queue expires.
    let deleted = channel
        .lapin()
        .queue_delete(probe.clone(), QueueDeleteOptions::default());
    let _ = ask(Operation::Declaring(probe.as_str()), deleted).await;
    channel.close().await;
    answer
}

/// Whether a queue accepts a message. A channel that publishes there for the first time is told at once.
async fn accepts(connection: &Connection, queue: &ShortString) -> Result<bool> {
    let channel = connection.channel().await?;
    let doing = Operation::Publishing;
    let confirms = channel
        .lapin()
        .confirm_select(ConfirmSelectOptions::default());
    ask(doing, confirms).await?;
    let options = BasicPublishOptions {
        mandatory: true,
        ..BasicPublishOptions::default()
    };
    let published = async {
        let published = channel.lapin().basic_publish(
            ShortString::default(),
            queue.clone(),
            options,
            b"",
            lapin::BasicProperties::default().with_delivery_mode(2),
        );
        published.await?.await
    };
    let answer = ask(Operation::Publishing, published).await;
    channel.close().await;
    match answer? {
        Confirmation::Ack(None) => Ok(true),
        Confirmation::Nack(None) => Ok(false),
        _ => Err(Error::new(
            ErrorKind::QueueNotFound,
            "the queue is gone before the probe ended",
        )),
    }
}

fn at_most_once(queue: &str, server: &Server) -> Error {
    let flag = if server.at_least(3, 12) {
        ""
    } else {
        ", or the feature flag `stream_queue` is not enabled (`rabbitmqctl enable_feature_flag stream_queue`)"
    };
    Error::new(
        ErrorKind::StrategyRefused,
        format!(
            "this broker drops waiting messages that come back while the queue `{queue}` is missing or unavailable, although the waiting \
             queues ask for at-least-once dead-lettering: a policy or an operator policy with `overflow` applies to queues such as \
             `{queue}.retry.1000`{flag}. `retryrmq doctor` names the policy (RQ108): narrow its pattern, or set its \
             `overflow` to `reject-publish`"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{
        QueueType,
        plan::{parking, waiting},
    };

    fn plan_of(queue_type: QueueType) -> Plan {
        let second = Duration::from_secs(1);
        let items = [
            parking("orders", queue_type),
            waiting("orders", second, queue_type),
        ];
        Plan {
            items: items.into(),
        }
    }

    #[test]
    fn only_plans_with_waiting_queues_that_ask_for_it_are_tried_out() {
        assert_eq!(
            asks_at_least_once(&plan_of(QueueType::Quorum)),
            Some("orders")
        );
        assert_eq!(asks_at_least_once(&plan_of(QueueType::Classic)), None);
        let mut native = plan_of(QueueType::Quorum);
        native.items.pop();
        assert_eq!(asks_at_least_once(&native), None, "nothing waits");
    }

    #[test]
    fn the_answer_to_the_second_message_tells_what_became_of_the_first() {
        for (second_is_taken, held) in [(true, false), (false, true)] {
            let mut probe = Probe::default();
            assert_eq!(probe.published(true), ProbeStep::Look);
            assert_eq!(probe.step_after_count(1), ProbeStep::Look);
            assert_eq!(probe.step_after_count(0), ProbeStep::Publish);
            assert_eq!(
                probe.published(second_is_taken),
                ProbeStep::Done(Some(held))
            );
        }
        assert_eq!(Probe::default().published(false), ProbeStep::Done(None));
    }

    #[test]
    fn a_probes_number_has_as_many_digits_as_the_longest_delay_and_is_none() {
        let longest = Duration::from_secs(365 * 24 * 3600).as_millis();
        let digits = |number: u128| number.to_string().len();
        assert!(u128::from(IMPOSSIBLE) > longest);
        assert_eq!(
            digits(u128::from(IMPOSSIBLE + PROBE_QUEUES)),
            digits(longest)
        );
    }

    #[tokio::test]
    async fn each_work_queue_has_its_answer_and_their_number_is_bounded() {
        let probes = DeadLetterProbes::default();
        *probes.last("orders").lock().await = Some(Instant::now() + COUNTS);
        assert!(probes.last("orders").lock().await.is_some());
        assert!(probes.last("bills").lock().await.is_none());
        for number in 0..REMEMBERED {
            probes.last(&number.to_string());
        }
        assert!(probes.0.lock().unwrap().len() <= REMEMBERED);
    }
}
