//! One run: a scenario with one driver on one broker and one type of queue, from a fresh virtual host to a verdict.
//!
//! The checker decides when enough was seen: every message ran as often as expected and the queues that should hold
//! messages hold them. Then it asks the driver to end, and judges what is left in *every* queue. What comes too late or
//! too often is therefore found without waiting for it: it would still be in some queue.

mod end;
mod listen;
mod side_tasks;
mod stop_condition;

use std::time::{Duration, Instant};

use retryrmq_harness::Broker;

use crate::driver::{Described, Driver};
use crate::fixture::{CheckerError, Fixture};
use crate::judge::judge;
use crate::line::Line;
use crate::observations::Observations;
use crate::scenario::{Consume, HandlerEnd, Message, QueueKind, Scenario};
use crate::task::{self, Task};

/// A driver that is asked to end has this long to drain.
const DEADLINE: Duration = Duration::from_secs(60);
/// How often the broker is asked while a condition does not hold yet.
const LOOK_EVERY: Duration = Duration::from_millis(40);
/// How many drivers may consume what another one has left. One that leaves something each time is wrong.
const MOST_SUCCESSORS: u32 = 3;
/// Queues that stay as they should be for so long have nothing on its way between them.
const SETTLED: Duration = Duration::from_secs(2);

/// How runs are done, whatever they judge.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunOptions {
    /// Leave the virtual host as it is in the end.
    pub keep: bool,
    /// Print what the driver prints.
    pub show: bool,
}

/// Runs a scenario and returns what differs from what it expects.
pub async fn run(
    scenario: &Scenario,
    broker: &Broker,
    kind: QueueKind,
    driver: &Described,
    run_options: RunOptions,
) -> Result<Vec<String>, CheckerError> {
    let fixture = Fixture::set(broker.vhost().await, scenario, kind).await?;
    let scenario = &scenario.for_user(&fixture.user());
    let consume = scenario.consume.on(kind);
    let mut run = Run {
        scenario,
        consume,
        driver,
        fixture: &fixture,
        show: run_options.show,
        is_ready: false,
        seen: Observations::default(),
    };
    if scenario.topology.queue.declare {
        run.publish(&scenario.publish).await?;
    }
    run.play().await?;
    run.take_stock().await;
    let violations = judge(scenario, &run.seen);
    fixture.leave(run_options.keep).await;
    Ok(violations)
}

struct Run<'a> {
    scenario: &'a Scenario,
    consume: Consume,
    driver: &'a Described,
    fixture: &'a Fixture,
    show: bool,
    /// Whether the driver that runs has subscribed, and drains when it is asked to end.
    is_ready: bool,
    seen: Observations,
}

/// Why the driver is no longer listened to.
enum Ended {
    Enough,
    Refused,
    Stopped,
    Died,
    Late,
}

impl Run<'_> {
    async fn publish(&mut self, messages: &[Message]) -> Result<(), CheckerError> {
        let published = self.fixture.publish(self.scenario, messages).await?;
        self.seen.published.extend(published);
        Ok(())
    }

    fn note(&mut self, line: Line) {
        if self.show {
            eprintln!(
                "{}, {}: {line:?}",
                self.scenario.name, self.driver.command.name
            );
        }
        self.is_ready |= line == Line::Ready {};
        self.seen.note(line);
    }

    /// Runs the driver, and starts it again when it died as it was told to, or left messages for its successor after that.
    async fn play(&mut self) -> Result<(), CheckerError> {
        let deadline = Instant::now() + self.scenario.expect.within.0;
        let mut later = self.scenario.then.iter().collect::<Vec<_>>();
        later.reverse();
        let mut unpublished = !self.scenario.topology.queue.declare;
        let mut successors = 0;
        loop {
            let before = self.seen.attempts.len();
            self.is_ready = false;
            let mut driver = Driver::start(&self.driver.command, self.order()).await?;
            match self
                .listen(&mut driver, &mut later, &mut unpublished, deadline)
                .await?
            {
                Ended::Died if self.was_told_to_exit(before) => {
                    driver.ended(DEADLINE).await;
                    if self.seen.restarts >= self.scenario.expect.restarts.at_most {
                        self.seen.restarts += 1;
                        return Ok(());
                    }
                    self.seen.restarts += 1;
                }
                Ended::Died => {
                    let status = driver
                        .ended(DEADLINE)
                        .await
                        .map_or_else(|| "running".into(), |status| status.to_string());
                    self.seen.problems.push(format!(
                        "the driver ended by itself: {status}\n      {}",
                        driver.last_words()
                    ));
                    return Ok(());
                }
                Ended::Refused => {
                    driver.ended(DEADLINE).await;
                    return Ok(());
                }
                ended => {
                    if matches!(ended, Ended::Late) {
                        let within = self.scenario.expect.within;
                        let ready = if self.is_ready {
                            ""
                        } else {
                            ", not even \"ready\""
                        };
                        self.seen
                            .problems
                            .push(format!("not all was seen within {within}{ready}"));
                    }
                    self.stop(&mut driver).await?;
                    let goes_on = matches!(ended, Ended::Enough) && successors < MOST_SUCCESSORS;
                    if !goes_on || !self.has_left_messages().await {
                        return Ok(());
                    }
                    successors += 1;
                }
            }
        }
    }

    /// Whether the driver, asked to end, left messages for the next one.
    async fn has_left_messages(&self) -> bool {
        if !self.may_run_again() || !self.seen.problems.is_empty() {
            return false;
        }
        // what is on its way from queue to queue is in none of them
        let asked = Instant::now();
        while asked.elapsed() < SETTLED {
            if !self.all_in_place(self.fixture.queues().await).await {
                return true;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        false
    }

    /// Whether a message may be delivered again after it ran as often as is expected: a lost connection or a dead process held it. It may
    /// then take a detour through a waiting queue, and come back when the driver was asked to end.
    fn may_run_again(&self) -> bool {
        self.seen.restarts > 0
            || self.scenario.messages().iter().any(|message| {
                self.scenario
                    .expected(&message.id)
                    .is_some_and(|expected| expected.runs.at_least != expected.runs.at_most)
            })
    }

    fn order(&self) -> Task<'_> {
        Task::Consume {
            url: self.fixture.url(),
            queue: &self.scenario.topology.queue.name,
            consume: &self.consume,
            handler: task::handler(self.scenario),
            runs: self.seen.run_counts(),
        }
    }

    /// Whether the process that died was running a step that kills it.
    fn was_told_to_exit(&self, before: usize) -> bool {
        self.seen.attempts[before..].iter().any(|attempt| {
            let steps = self.scenario.steps(&attempt.id);
            let step = steps
                .get(attempt.run.saturating_sub(1))
                .or_else(|| steps.last());
            step.is_some_and(|step| step.act == HandlerEnd::Exit)
        })
    }
}
