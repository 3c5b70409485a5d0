//! The faults of a simulated run.

use std::time::Duration;

use retryrmq_model::{Declare, Policy, QueueType};

use super::{AtMostOnce, PARKED, QUEUE, Setting, Simulation, Unreadable, WAITING};

/// Less than a message is held for, and more than they all take one after the other, each of which may give up its place first.
const SERVED_WITHIN: Duration = Duration::from_secs(500);

/// Which kinds of faults there are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Faults {
    pub(super) cuts: bool,
    pub(super) kills: bool,
    pub(super) stops: bool,
    pub(super) broker: bool,
    pub(super) poison: bool,
    /// The parking queue is full while faults happen.
    pub(super) full_parking: bool,
    /// A delivery limit on the work queue, set by an operator's policy.
    pub(super) delivery_limit: bool,
    /// Alarms, during which the broker does not read from publishers.
    pub(super) alarms: bool,
    /// Operators who purge the work queue, delete and create it, or limit its length.
    pub(super) work_queue_changes: bool,
}

impl Faults {
    pub(super) fn choose(random: &mut fastrand::Rng) -> Self {
        let mut often = || random.u8(0..3) > 0;
        Self {
            cuts: often(),
            kills: often(),
            stops: often(),
            broker: often(),
            poison: often(),
            full_parking: !often(),
            delivery_limit: !often(),
            alarms: !often(),
            work_queue_changes: !often(),
        }
    }
}

impl Faults {
    /// Whether no fault takes messages away from consumers.
    pub(super) fn are_quiet(self) -> bool {
        !(self.cuts
            || self.kills
            || self.stops
            || self.broker
            || self.poison
            || self.alarms
            || self.work_queue_changes)
    }

    pub(super) fn are_none(self) -> bool {
        self.are_quiet() && !self.full_parking && !self.delivery_limit
    }

    pub(super) fn quiet(self) -> Self {
        Self {
            cuts: false,
            kills: false,
            stops: false,
            broker: false,
            poison: false,
            alarms: false,
            work_queue_changes: false,
            ..self
        }
    }
}

/// A parking queue without room.
pub(super) fn full_parking() -> Declare {
    Declare::durable(PARKED, QueueType::Classic)
        .with_number("x-max-length", 0)
        .with("x-overflow", "reject-publish")
}

impl Simulation {
    pub(super) fn prepare(&mut self) {
        self.set_work_policy(false);
        if self.setting.parking_limit.is_some() {
            let policy = Policy {
                delivery_limit: self.setting.parking_limit,
                ..Policy::default()
            };
            self.broker.set_policy(PARKED, Some(policy));
        }
        if let Some(careless) = self.setting.careless {
            self.set_overflow(careless, Some(false));
            let time = Duration::from_secs(self.random.u64(5..40));
            self.mended_at = Some(self.now + time);
        }
    }

    /// Sets a policy on the waiting queues that wins over their own `x-overflow`, or takes it away.
    fn set_overflow(&mut self, careless: AtMostOnce, reject_publish: Option<bool>) {
        let policy = reject_publish.map(|reject_publish| Policy {
            reject_publish: Some(reject_publish),
            ..Policy::default()
        });
        match careless {
            AtMostOnce::Policy => self.broker.set_policy(WAITING, policy),
            AtMostOnce::OperatorPolicy => {
                let set = self.broker.set_operator_policy(WAITING, policy);
                set.expect("this version takes it");
            }
            AtMostOnce::FeatureFlag if policy.is_none() => self.broker.enable_stream_queue(),
            AtMostOnce::FeatureFlag => {}
        }
    }

    /// Somebody has read why consumers refuse to run.
    fn mend(&mut self) {
        if self.mended_at.take_if(|at| *at <= self.now).is_some()
            && let Some(careless) = self.setting.careless
        {
            self.note(|| "waiting queues may dead-letter at least once".into());
            self.set_overflow(careless, None);
        }
    }

    /// Sets a policy on the work queue: a delivery limit, and a length limit.
    fn set_work_policy(&mut self, capped: bool) {
        let quorum = self.setting.work == QueueType::Quorum;
        let limited = self.setting.faults.delivery_limit && quorum;
        let policy = Policy {
            delivery_limit: limited.then_some(4),
            // No room at all shows best what becomes of dead letters that find none.
            max_length: capped.then_some(if self.setting.careless.is_some() {
                0
            } else {
                3
            }),
            reject_publish: capped.then_some(true),
            ..Policy::default()
        };
        self.broker
            .set_policy(QUEUE, (limited || capped).then_some(policy));
    }

    /// Memory or disk space is short.
    fn raise_alarm(&mut self) {
        self.note(|| "an alarm".into());
        self.broker.set_alarm(true);
        let time = match self.setting.long_alarm {
            true => Duration::from_secs(self.random.u64(2_400..6_600)),
            false => Duration::from_millis(self.random.u64(100..30_000)),
        };
        self.alarm_ends = Some(self.now + time);
        self.taken_in_alarm = 0;
        if self.setting.long_alarm {
            self.faults_until = self.now + time;
        }
        if self.setting.served_in_alarm {
            self.served_by = Some(self.now + SERVED_WITHIN);
        }
    }

    /// Alarms end, and there is room again.
    pub(super) fn end_faults(&mut self) {
        self.mend();
        let over = |ends: &mut Duration| *ends <= self.now || self.now >= self.faults_until;
        if self.alarm_ends.take_if(over).is_some() {
            self.note(|| "the alarm is over".into());
            self.broker.set_alarm(false);
        }
        let over = |ends: &mut Duration| *ends <= self.now || self.now >= self.faults_until;
        if self.cap_ends.take_if(over).is_some() {
            self.note(|| "the work queue has room".into());
            self.set_work_policy(false);
        }
    }

    /// What an operator does to the work queue.
    fn change_work_queue(&mut self) {
        // What may have been purged may be lost, which would hide what is lost by a careless broker.
        let kinds = if self.setting.careless.is_some() {
            2..3
        } else {
            0..3
        };
        match self.random.u8(kinds) {
            0 => {
                self.note(|| "the work queue is purged".into());
                self.ledger.forgive();
                self.broker.purge_queue(QUEUE);
            }
            // A young queue is emptied when the broker is killed.
            1 if !self.setting.faults.broker => {
                self.note(|| "the work queue is made anew".into());
                self.ledger.forgive();
                self.broker.delete_queue(QUEUE);
                let _ = self.broker.make_queue(&self.setting.work_queue());
            }
            // A message that returns into a full classic queue is dropped.
            2 if self.setting.work == QueueType::Quorum => {
                self.note(|| "the work queue has no room".into());
                self.set_work_policy(true);
                let time = Duration::from_millis(self.random.u64(100..10_000));
                self.cap_ends = Some(self.now + time);
            }
            _ => {}
        }
    }

    pub(super) fn do_harm(&mut self) {
        let setting = &self.setting;
        let pause = match (setting.long_alarm, setting.crash_loops) {
            (true, _) => Duration::from_secs(self.random.u64(240..1_200)),
            (_, true) => Duration::from_millis(self.random.u64(1_000..1_900)),
            _ => Duration::from_millis(self.random.u64(100..4_000)),
        };
        self.next_fault = self.now + pause;
        if self.setting.crash_loops {
            for at in 0..self.replicas.len() {
                self.hit_waiting(at);
                self.kill(at);
            }
            return;
        }
        if self.setting.long_alarm && !std::mem::replace(&mut self.was_alarmed, true) {
            return self.raise_alarm();
        }
        if std::mem::take(&mut self.setting.loses_young_queues) {
            return self.broker_goes(true);
        }
        let faults = self.setting.faults;
        let at = self.random.usize(..self.replicas.len());
        let may_take_away = self.may_take_away();
        match self.random.u8(0..11) {
            // A young queue is emptied when the broker is killed.
            7 if self.setting.service_away && !faults.broker => self.service_loses_its_queue(),
            0..6 if !may_take_away => {}
            9 if faults.alarms && self.alarm_ends.is_none() => {
                self.raise_alarm();
            }
            10 if faults.work_queue_changes && self.broker.is_running() => self.change_work_queue(),
            7 | 8 if !self.operators.is_empty() && self.may_interrupt() => {
                let at = self.random.usize(..self.operators.len());
                self.interruptions += i64::from(!self.operators[at].is_away());
                self.interrupt(at);
            }
            0 | 1 if faults.cuts => self.cut_consuming(at),
            2 if faults.cuts => self.cut_publishing(at),
            3 if faults.kills => {
                self.hit_waiting(at);
                self.kill(at);
            }
            4 | 5 if faults.stops => self.stop(at),
            // A classic waiting queue dead-letters at most once: a message on its way is lost with the broker.
            6 if faults.broker
                && may_take_away
                && self.broker.is_running()
                && self.setting.waiting == QueueType::Quorum
                && self.may_interrupt() =>
            {
                let kill = self.random.bool();
                self.broker_goes(kill);
            }
            _ => {}
        }
    }

    fn broker_goes(&mut self, kill: bool) {
        self.note(|| format!("the broker is {}", if kill { "killed" } else { "stopped" }));
        if kill {
            self.broker.kill();
        } else {
            self.broker.stop();
        }
        self.interruptions += 1;
        self.ledger.all_may_be_doubled();
        for at in 0..self.operators.len() {
            self.interrupt(at);
        }
        let mut away = Duration::from_millis(self.random.u64(10..5_000));
        if kill && self.setting.dies_silently {
            let silence = Duration::from_millis(self.random.u64(10..8_000));
            self.noticed_at = Some(self.now + silence);
            away += silence;
        } else {
            self.cut_all();
        }
        self.broker_returns = Some(self.now + away);
    }

    pub(super) fn cut_all(&mut self) {
        for at in 0..self.replicas.len() {
            self.cut_consuming(at);
            self.cut_publishing(at);
        }
    }

    /// During an alarm no copies can be stored. A consumer that loses its connection again and again then uses up an operator's delivery
    /// limit, and cannot prevent it.
    fn may_take_away(&mut self) -> bool {
        if self.alarm_ends.is_none() || !self.setting.faults.delivery_limit {
            return true;
        }
        self.taken_in_alarm += 1;
        self.taken_in_alarm <= 2
    }

    /// When a walk is killed, the messages it holds have one more delivery, and may have been returned once before. No walk can prevent the
    /// effect of a lower limit.
    pub(super) fn may_interrupt(&self) -> bool {
        let limit = self.setting.parking_limit;
        limit.is_none_or(|limit| self.interruptions < limit - 1)
    }

    /// From now on there are no faults, and what was taken away is restored.
    pub(super) fn stop_harm(&mut self) -> Result<(), String> {
        if std::mem::replace(&mut self.harm_has_stopped, true) {
            return Ok(());
        }
        let Setting {
            pause,
            service_away,
            plain,
            careless,
            unreadable,
            crash_loops,
            ..
        } = self.setting;
        // What is put off without waiting queues keeps its place meanwhile.
        let is_served = pause.is_none()
            && !service_away
            && !plain
            && careless.is_none()
            && !matches!(
                unreadable,
                Some(Unreadable::Stuck | Unreadable::Full | Unreadable::Hidden)
            )
            && !crash_loops;
        if self.setting.faults.are_quiet() && is_served {
            self.ledger.nobody_was_kept(self.setting.hangs)?;
        }
        // A killed broker may have lost the full queue while it was young.
        let is_full = std::mem::take(&mut self.setting.faults.full_parking)
            && self.broker.messages(PARKED).next().is_none();
        if is_full {
            self.note(|| "the parking queue has room".into());
            self.broker.delete_queue(PARKED);
        }
        Ok(())
    }
}
