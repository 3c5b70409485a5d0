//! One run: a scenario with one driver on one broker and one type of queue, from a fresh virtual host to a verdict.
//!
//! The checker decides when enough was seen: every message ran as often as expected and the queues that should hold
//! messages hold them. Then it asks the driver to end, and judges what is left in *every* queue. What comes too late or
//! too often is therefore found without waiting for it: it would still be in some queue.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use retryrmq_harness::Broker;

use crate::driver::{Described, Driver, Heard};
use crate::judge::judge;
use crate::line::Line;
use crate::scenario::{Act, Condition, Consume, End, Later, Message, QueueKind, Scenario};
use crate::seen::Seen;
use crate::stage::{Stage, Trouble};
use crate::task::{self, Outgoing, Task};

/// A driver that is asked to end has this long to drain.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often the broker is asked while a condition does not hold yet.
const LOOK_EVERY: Duration = Duration::from_millis(40);

/// How runs are done, whatever they judge.
#[derive(Clone, Copy, Debug, Default)]
pub struct Manner {
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
    manner: Manner,
) -> Result<Vec<String>, Trouble> {
    let stage = Stage::set(broker.vhost().await, scenario, kind).await?;
    let scenario = &scenario.for_user(&stage.user());
    let consume = scenario.consume.on(kind);
    let mut run = Run {
        scenario,
        consume,
        driver,
        stage: &stage,
        show: manner.show,
        seen: Seen::default(),
    };
    if scenario.topology.queue.declare {
        run.publish(&scenario.publish).await?;
    }
    run.play().await?;
    run.take_stock().await;
    let complaints = judge(scenario, &run.seen);
    stage.leave(manner.keep).await;
    Ok(complaints)
}

struct Run<'a> {
    scenario: &'a Scenario,
    consume: Consume,
    driver: &'a Described,
    stage: &'a Stage,
    show: bool,
    seen: Seen,
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
    async fn publish(&mut self, messages: &[Message]) -> Result<(), Trouble> {
        let published = self.stage.publish(self.scenario, messages).await?;
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
        self.seen.note(line);
    }

    /// Runs the driver, and starts it again when it died as it was told to.
    async fn play(&mut self) -> Result<(), Trouble> {
        let deadline = Instant::now() + self.scenario.expect.within.0;
        let mut later = self.scenario.then.iter().collect::<Vec<_>>();
        later.reverse();
        let mut unpublished = !self.scenario.topology.queue.declare;
        loop {
            let before = self.seen.attempts.len();
            let mut driver = Driver::start(&self.driver.command, self.order()).await?;
            match self
                .listen(&mut driver, &mut later, &mut unpublished, deadline)
                .await?
            {
                Ended::Died if self.was_told_to_exit(before) => {
                    driver.ended(PATIENCE).await;
                    if self.seen.restarts >= self.scenario.expect.restarts.at_most {
                        self.seen.restarts += 1;
                        return Ok(());
                    }
                    self.seen.restarts += 1;
                }
                Ended::Died => {
                    let status = driver
                        .ended(PATIENCE)
                        .await
                        .map_or_else(|| "running".into(), |status| status.to_string());
                    self.seen.problems.push(format!(
                        "the driver ended by itself: {status}\n      {}",
                        driver.last_words()
                    ));
                    return Ok(());
                }
                Ended::Refused => {
                    driver.ended(PATIENCE).await;
                    return Ok(());
                }
                ended => {
                    if matches!(ended, Ended::Late) {
                        let within = self.scenario.expect.within;
                        self.seen
                            .problems
                            .push(format!("not all was seen within {within}"));
                    }
                    return self.stop(&mut driver).await;
                }
            }
        }
    }

    fn order(&self) -> Task<'_> {
        Task::Consume {
            url: self.stage.url(),
            queue: &self.scenario.topology.queue.name,
            consume: &self.consume,
            handler: task::handler(self.scenario),
            runs: self.seen.run_counts(),
        }
    }

    /// Listens until enough was seen, something went wrong, or time is up.
    async fn listen(
        &mut self,
        driver: &mut Driver,
        later: &mut Vec<&Later>,
        unpublished: &mut bool,
        deadline: Instant,
    ) -> Result<Ended, Trouble> {
        loop {
            match tokio::time::timeout(LOOK_EVERY, driver.hear()).await {
                // what has been printed is read before the broker is asked
                Ok(Heard::Line(line)) if Instant::now() < deadline => {
                    self.note(line);
                    continue;
                }
                Ok(Heard::Line(line)) => self.note(line),
                Ok(Heard::Noise(noise)) => self.seen.problems.push(noise),
                Ok(Heard::End) => {
                    return Ok(if self.seen.refused.is_some() {
                        Ended::Refused
                    } else {
                        Ended::Died
                    });
                }
                Err(_) => {}
            }
            if *unpublished
                && self
                    .holds(&Condition {
                        consuming: true,
                        ..Condition::default()
                    })
                    .await
            {
                *unpublished = false;
                let scenario = self.scenario;
                self.publish(&scenario.publish).await?;
            }
            if let Some(next) = later.last().copied() {
                if self.holds(&next.once).await {
                    later.pop();
                    self.happen(next).await?;
                    if next.stop {
                        return Ok(Ended::Stopped);
                    }
                }
            } else if !*unpublished
                && self.scenario.expect.refused.is_none()
                && self.is_enough().await
            {
                return Ok(Ended::Enough);
            }
            if Instant::now() > deadline {
                return Ok(Ended::Late);
            }
        }
    }

    async fn holds(&self, condition: &Condition) -> bool {
        let runs = self.seen.run_counts();
        if condition
            .runs
            .iter()
            .any(|(id, least)| runs.get(id).copied().unwrap_or(0) < *least)
        {
            return false;
        }
        for (queue, least) in &condition.queues {
            if self.stage.depth(queue).await < *least {
                return false;
            }
        }
        !condition.consuming
            || self
                .stage
                .is_consumed(&self.scenario.topology.queue.name)
                .await
    }

    async fn happen(&mut self, later: &Later) -> Result<(), Trouble> {
        self.publish(&later.publish).await?;
        if !later.driver_publish.is_empty() {
            let messages = later
                .driver_publish
                .iter()
                .flat_map(Message::each)
                .map(|message| self.outgoing(&message))
                .collect();
            self.errand(Task::Publish {
                url: self.stage.url(),
                messages,
            })
            .await?;
        }
        if later.replay {
            self.errand(Task::Replay {
                url: self.stage.url(),
                queue: &self.scenario.topology.queue.name,
            })
            .await?;
        }
        Ok(())
    }

    fn outgoing(&self, message: &Message) -> Outgoing {
        Outgoing {
            id: message.id.clone(),
            exchange: message.exchange.clone(),
            routing_key: message
                .routing_key
                .clone()
                .unwrap_or_else(|| self.scenario.topology.queue.name.clone()),
            body: String::from_utf8_lossy(&message.bytes()).into_owned(),
            headers: message.all_headers(),
            delay_ms: message.delay.map(|delay| delay.millis()),
        }
    }

    /// A second process of the driver, beside the one that consumes, which does one thing and ends.
    async fn errand(&mut self, task: Task<'_>) -> Result<(), Trouble> {
        let mut driver = Driver::start(&self.driver.command, task).await?;
        let lines = async {
            let mut heard = Vec::new();
            loop {
                match driver.hear().await {
                    Heard::Line(line) => heard.push(line),
                    Heard::Noise(noise) => return Err(noise),
                    Heard::End => return Ok(heard),
                }
            }
        };
        let lines = tokio::time::timeout(PATIENCE, lines).await;
        let status = driver.ended(PATIENCE).await;
        match (lines, status) {
            (Ok(Ok(lines)), Some(status)) if status.success() => {
                lines.into_iter().for_each(|line| self.note(line))
            }
            (Ok(Err(noise)), _) => self.seen.problems.push(noise),
            (_, status) => {
                let status =
                    status.map_or_else(|| "it did not end".into(), |status| status.to_string());
                self.seen.problems.push(format!(
                    "an errand of the driver failed: {status}\n      {}",
                    driver.last_words()
                ));
            }
        }
        Ok(())
    }

    /// Whether all that is expected was seen, so that the driver can be asked to end.
    async fn is_enough(&self) -> bool {
        let runs = self.seen.run_counts();
        let expect = &self.scenario.expect;
        let all_ran = self.scenario.messages().iter().all(|message| {
            let least = self
                .scenario
                .expected(&message.id)
                .map_or(0, |expected| expected.runs.at_least);
            runs.get(&message.id).copied().unwrap_or(0) >= least
        });
        let all_told = expect
            .events
            .iter()
            .all(|event| self.seen.events.contains(event));
        all_ran
            && all_told
            && self.seen.restarts >= expect.restarts.at_least
            && self.all_in_place([]).await
            // only now the rest, because it takes a question to the management interface
            && self.all_in_place(self.stage.queues().await).await
    }

    /// Whether every queue holds as many messages as it should in the end: those that are named, and those given.
    async fn all_in_place(&self, empty: impl IntoIterator<Item = String>) -> bool {
        let mut held = held(self.scenario);
        for queue in empty
            .into_iter()
            .chain([self.scenario.topology.queue.name.clone()])
        {
            held.entry(queue).or_insert(0);
        }
        for (queue, count) in held {
            if self.stage.depth(&queue).await != count {
                return false;
            }
        }
        true
    }

    /// Whether the process that died was running a step that kills it.
    fn was_told_to_exit(&self, before: usize) -> bool {
        self.seen.attempts[before..].iter().any(|attempt| {
            let steps = self.scenario.steps(&attempt.id);
            let step = steps
                .get(attempt.run.saturating_sub(1))
                .or_else(|| steps.last());
            step.is_some_and(|step| step.act == Act::Exit)
        })
    }

    /// SIGTERM: the driver settles what runs, prints `done`, and ends with status 0.
    async fn stop(&mut self, driver: &mut Driver) -> Result<(), Trouble> {
        driver.stop();
        let asked = Instant::now();
        let mut done = false;
        loop {
            let left = PATIENCE.saturating_sub(asked.elapsed());
            match tokio::time::timeout(left, driver.hear()).await {
                Ok(Heard::Line(line)) => {
                    done = line == Line::Done {};
                    self.note(line);
                }
                Ok(Heard::Noise(noise)) => self.seen.problems.push(noise),
                Ok(Heard::End) | Err(_) => break,
            }
        }
        match driver.ended(PATIENCE.saturating_sub(asked.elapsed())).await {
            Some(status) if status.success() && done => {}
            Some(status) if status.success() => {
                self.seen
                    .problems
                    .push("the driver's last line was not \"done\"".into());
            }
            Some(status) => {
                let words = driver.last_words();
                self.seen.problems.push(format!(
                    "the driver, asked to end, ended with {status}\n      {words}"
                ));
            }
            None => self.seen.problems.push(format!(
                "the driver did not end within {} s of SIGTERM",
                PATIENCE.as_secs()
            )),
        }
        Ok(())
    }

    /// Reads what is left in every queue of the virtual host.
    async fn take_stock(&mut self) {
        // what was unsettled when the driver ended comes back to its queue a moment later
        let deadline = Instant::now() + Duration::from_secs(5);
        while !self.all_in_place(self.stage.queues().await).await && Instant::now() < deadline {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        self.stage.clear(self.scenario, &mut self.seen).await;
    }
}

/// How many messages each queue is expected to hold.
fn held(scenario: &Scenario) -> BTreeMap<String, u32> {
    let mut held = BTreeMap::new();
    let messages = scenario.messages();
    for expected in messages
        .iter()
        .filter_map(|message| scenario.expected(&message.id))
    {
        let place = match &expected.ends {
            End::Handled | End::Gone => None,
            End::Parked { .. } => Some(format!("{}.parked", scenario.topology.queue.name)),
            End::In { queue, .. } => Some(queue.clone()),
        };
        for queue in place.into_iter().chain(expected.also_in.iter().cloned()) {
            *held.entry(queue).or_insert(0) += 1;
        }
    }
    held
}
