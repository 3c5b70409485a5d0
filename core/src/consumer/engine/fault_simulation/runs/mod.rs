//! Runs many seeds.

mod defects;
mod promises;
mod shrink;

use std::time::{Duration, Instant};

use retryrmq_model::{QueueType, Version};

use self::{
    promises::{careless, crash_looping, movable, stuck},
    shrink::fail,
};
use super::{FailedRun, Faults, Setting, Simulation};
use crate::Strategy;

fn setting(seed: u64) -> Setting {
    possible(chosen(seed))
}

/// The same, with what a client does not see now and then.
fn unseen(seed: u64) -> Setting {
    let mut random = fastrand::Rng::with_seed(seed ^ 0x0dd);
    let setting = Setting {
        channels: (random.u8(..) < 64).then(|| random.u16(3..7)),
        ..chosen(seed)
    };
    let kind = random.u8(0..16);
    let setting = Setting {
        prefetch_bytes: (random.u8(..) < 64 && !setting.faults.full_parking)
            .then(|| random.u64(1..2_000)),
        ..setting
    };
    let kind = match kind {
        0 => careless,
        1 => movable,
        2 => stuck,
        3 => crash_looping,
        _ => possible,
    };
    kind(setting)
}

fn chosen(seed: u64) -> Setting {
    let mut random = fastrand::Rng::with_seed(seed ^ 0x5eed);
    let kind = |random: &mut fastrand::Rng| QueueType::ALL[random.usize(..2)];
    let faults = Faults::choose(&mut random);
    let walked = !faults.full_parking && random.u8(..) < 100;
    Setting {
        version: Version::ALL[random.usize(..3)],
        work: kind(&mut random),
        waiting: kind(&mut random),
        replicas: random.usize(1..4),
        prefetch: [1, 2, 8, 64][random.usize(..4)],
        prefetch_bytes: None,
        concurrency: random.usize(1..6),
        batch: [1, 1, 1, 2, 5][seed as usize % 5],
        messages: random.u32(1..60),
        single_active: random.u8(..) < 40,
        auto_delete: random.u8(..) < 64,
        strategy: match random.u8(0..10) {
            0 => Strategy::DeadLetter,
            1 => Strategy::Native,
            _ => Strategy::RetryQueues,
        },
        operators: if walked { random.usize(1..4) } else { 0 },
        parking_limit: random.bool().then(|| random.i64(1..8)),
        priorities: random.u8(..) < 64,
        suspects: false,
        hangs: false,
        pause: None,
        refused: false,
        loses_young_queues: false,
        dies_silently: false,
        unmarked: false,
        service_away: false,
        plain: false,
        consumer_timeout: None,
        long_alarm: false,
        served_in_alarm: false,
        channels: None,
        careless: None,
        unreadable: None,
        crash_loops: false,
        faults,
    }
}

pub(super) fn run(seed: u64, setting: Setting) -> Result<u64, Box<FailedRun>> {
    let mut world = Simulation::new(seed, setting);
    world.prepare();
    world.play(seed)
}

/// Turns off settings that exclude each other, or that a consumer cannot handle.
fn possible(mut setting: Setting) -> Setting {
    match setting.strategy {
        Strategy::RetryQueues | Strategy::DelayedExchange | Strategy::Service => {}
        Strategy::DeadLetter => setting.work = setting.waiting,
        Strategy::Native => {
            setting.version = Version::V4_3;
            (setting.work, setting.waiting) = (QueueType::Quorum, QueueType::Quorum);
            // With this strategy a crash is a retry.
            setting.faults = setting.faults.quiet();
        }
    }
    if setting.strategy != Strategy::RetryQueues {
        setting.single_active = false;
        setting.faults.delivery_limit = false;
        setting.faults.work_queue_changes = false;
    }
    // A crash during an alarm uses up an operator's delivery limit.
    setting.faults.alarms &= !(setting.faults.delivery_limit && setting.faults.poison);
    // An auto-delete queue is deleted with its last consumer, and its messages with it.
    setting.auto_delete &= setting.work == QueueType::Classic
        && setting.strategy == Strategy::RetryQueues
        && setting.faults.are_quiet();
    setting
}

/// Plays seeds until there were enough, or for long enough; panics at the first that breaks a promise.
fn play(from: u64, is_enough: impl Fn(u64, Duration) -> bool) {
    let began = Instant::now();
    let (mut steps, mut seeds) = (0, 0);
    while !is_enough(seeds, began.elapsed()) {
        let seed = from + seeds;
        match run(seed, unseen(seed)) {
            Ok(more) => steps += more,
            Err(broken) => fail(broken),
        }
        seeds += 1;
    }
    println!(
        "{seeds} seeds from {from}, {steps} steps, {:.0} a minute",
        steps as f64 / began.elapsed().as_secs_f64() * 60.0
    );
}

/// Plays the first seeds with one kind of setting; panics at the first that breaks a promise.
fn hold(seeds: u64, kind: impl Fn(Setting) -> Setting) {
    for seed in 0..seeds {
        if let Err(broken) = run(seed, kind(setting(seed))) {
            panic!("{broken}");
        }
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn every_promise_holds_whatever_happens() {
    if let Some(seed) = number("RETRYRMQ_SIMULATE_SEED") {
        if let Err(broken) = run(seed, unseen(seed)) {
            fail(broken);
        }
        return;
    }
    let from = number("RETRYRMQ_SIMULATE_FROM").unwrap_or(0);
    match number("RETRYRMQ_SIMULATE_SECONDS") {
        Some(seconds) => play(from, |_, played| played >= Duration::from_secs(seconds)),
        // The same seeds on a fast and on a slow machine.
        None => play(from, |seeds, _| seeds == 600),
    }
}

#[test]
fn the_same_seed_plays_the_same_run() {
    for seed in 0..20 {
        let steps = || run(seed, unseen(seed)).map_err(|broken| broken.to_string());
        assert_eq!(steps(), steps());
    }
}
