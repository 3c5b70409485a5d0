//! Runs many seeds, and makes a failing one small.

use std::time::{Duration, Instant};

use retryrmq_model::{QueueType, Version};

use super::{
    super::mutants::{self, Mutant},
    AtMostOnce, FailedRun, Faults, Setting, Simulation, Unreadable,
};
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
    let kind = match random.u8(0..16) {
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
        patience: None,
        long_alarm: false,
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

/// A run that does not end takes many seconds, and so does each smaller one.
const LONGEST_SEARCH: Duration = Duration::from_secs(60);

/// The smallest setting that still breaks the promise: fewer messages, fewer replicas, fewer faults.
fn shortest(broken: Box<FailedRun>) -> Box<FailedRun> {
    let (mut best, began) = (broken, Instant::now());
    while began.elapsed() < LONGEST_SEARCH {
        let from = best.setting;
        let fewer = |messages| Setting { messages, ..from };
        let without = |change: fn(&mut Faults)| {
            let mut faults = from.faults;
            change(&mut faults);
            Setting { faults, ..from }
        };
        let candidates = [
            fewer(from.messages / 2),
            fewer(from.messages.saturating_sub(1)),
            Setting {
                replicas: 1,
                ..from
            },
            Setting { batch: 1, ..from },
            Setting {
                single_active: false,
                ..from
            },
            Setting {
                operators: from.operators.saturating_sub(1),
                ..from
            },
            Setting {
                parking_limit: None,
                ..from
            },
            Setting {
                priorities: false,
                ..from
            },
            Setting {
                pause: None,
                ..from
            },
            Setting {
                channels: None,
                ..from
            },
            Setting {
                unreadable: None,
                ..from
            },
            without(|faults| faults.cuts = false),
            without(|faults| faults.kills = false),
            without(|faults| faults.stops = false),
            without(|faults| faults.broker = false),
            without(|faults| faults.poison = false),
            without(|faults| faults.full_parking = false),
            without(|faults| faults.delivery_limit = false),
            without(|faults| faults.alarms = false),
            without(|faults| faults.work_queue_changes = false),
        ];
        let smaller = candidates
            .into_iter()
            .filter(|setting| setting.messages > 0 && format!("{setting:?}") != format!("{from:?}"))
            .take_while(|_| began.elapsed() < LONGEST_SEARCH)
            .find_map(|setting| (0..4).find_map(|extra| run(best.seed + extra, setting).err()));
        match smaller {
            Some(smaller) => best = smaller,
            None => break,
        }
    }
    best
}

/// Reports the failure before it is made small, which takes long.
fn fail(broken: Box<FailedRun>) -> ! {
    eprintln!("{broken}\nto be made small:");
    panic!("{}", shortest(broken));
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

/// Mainly operators.
fn walked(setting: Setting) -> Setting {
    Setting {
        operators: setting.operators.max(1),
        faults: Faults {
            full_parking: false,
            ..setting.faults
        },
        auto_delete: false,
        ..setting
    }
}

#[test]
fn a_walk_through_the_parking_queue_loses_nothing() {
    hold(100, walked);
}

/// Consumers that hand over failures to a service that may be killed at any moment.
fn handed_over(setting: Setting) -> Setting {
    possible(Setting {
        strategy: Strategy::Service,
        faults: Faults {
            full_parking: false,
            ..setting.faults
        },
        ..setting
    })
}

#[test]
fn what_is_handed_over_is_not_lost() {
    hold(100, handed_over);
}

/// Consumers whose service has no queue yet, or no longer.
fn served_late(setting: Setting) -> Setting {
    Setting {
        service_away: true,
        ..handed_over(setting)
    }
}

#[test]
fn what_is_to_be_handed_over_waits_for_a_service() {
    hold(100, served_late);
}

/// Consumers that pause when many attempts fail, some for longer than `consumer_timeout`.
fn paused(setting: Setting) -> Setting {
    let seconds = [1, 20, 2_400][setting.messages as usize % 3];
    Setting {
        pause: Some(Duration::from_secs(seconds)),
        operators: 0,
        ..setting
    }
}

#[test]
fn nothing_is_lost_in_pauses() {
    hold(150, paused);
}

/// The same with a broker that takes messages back after half a minute.
fn short_consumer_timeout(setting: Setting) -> Setting {
    Setting {
        pause: Some(Duration::from_secs(2_400)),
        patience: Some(Duration::from_secs(30)),
        hangs: false,
        faults: Faults {
            poison: false,
            alarms: false,
            ..setting.faults
        },
        ..paused(setting)
    }
}

#[test]
fn a_pause_outlasts_the_brokers_patience() {
    hold(100, |setting| possible(short_consumer_timeout(setting)));
}

/// A broker that loses the content of its youngest queues.
fn young(setting: Setting) -> Setting {
    possible(Setting {
        loses_young_queues: true,
        waiting: QueueType::Quorum,
        strategy: Strategy::RetryQueues,
        operators: 0,
        faults: Faults {
            broker: true,
            full_parking: false,
            ..setting.faults
        },
        ..setting
    })
}

#[test]
fn nothing_is_lost_that_is_copied_into_a_young_queue() {
    hold(150, young);
}

/// The same, where replicas notice the death of the broker some seconds late, as when its host dies with it.
fn silent(setting: Setting) -> Setting {
    Setting {
        dies_silently: true,
        unmarked: setting.messages.is_multiple_of(2),
        ..young(setting)
    }
}

#[test]
fn nothing_is_lost_when_a_young_broker_dies_without_a_word() {
    hold(150, silent);
}

/// The same, where the broker itself moves what failed.
fn rejected_young(setting: Setting) -> Setting {
    possible(Setting {
        strategy: Strategy::DeadLetter,
        ..young(setting)
    })
}

#[test]
fn nothing_is_lost_that_is_rejected_into_a_young_queue() {
    hold(150, rejected_young);
}

/// An alarm of an hour or two, in which connections are lost. Each loss is one more that is counted of what cannot be copied meanwhile,
/// so that nobody else may take consumers down.
fn alarmed(setting: Setting) -> Setting {
    possible(Setting {
        long_alarm: true,
        strategy: Strategy::RetryQueues,
        operators: 0,
        faults: Faults {
            cuts: true,
            stops: false,
            poison: false,
            alarms: true,
            delivery_limit: false,
            full_parking: false,
            ..setting.faults
        },
        ..setting
    })
}

#[test]
fn what_an_alarm_holds_up_for_long_comes_once_when_it_is_over() {
    hold(150, alarmed);
}

/// A long alarm, and a queue that drops what it has delivered often.
fn counted(setting: Setting) -> Setting {
    let setting = alarmed(setting);
    possible(Setting {
        work: QueueType::Quorum,
        replicas: 1,
        patience: Some(Duration::from_secs(120)),
        faults: Faults {
            alarms: true,
            delivery_limit: true,
            ..setting.faults.quiet()
        },
        ..setting
    })
}

#[test]
fn what_an_alarm_holds_up_does_not_use_up_its_deliveries() {
    hold(100, counted);
}

/// Consumers without `dlx`. What is taken from them too often is lost with the broker's delivery limit, which is not theirs to keep.
fn plain(setting: Setting) -> Setting {
    possible(Setting {
        plain: true,
        strategy: Strategy::RetryQueues,
        operators: 0,
        faults: Faults {
            poison: false,
            full_parking: false,
            delivery_limit: false,
            ..setting.faults
        },
        ..setting
    })
}

#[test]
fn what_is_put_off_without_waiting_queues_is_not_lost() {
    hold(150, plain);
}

/// Several who take turns, and nothing in their way.
fn in_turn(setting: Setting) -> Setting {
    Setting {
        single_active: true,
        replicas: setting.replicas.max(2),
        faults: Faults {
            full_parking: false,
            delivery_limit: false,
            ..setting.faults.quiet()
        },
        operators: 0,
        strategy: Strategy::RetryQueues,
        auto_delete: false,
        ..setting
    }
}

#[test]
fn of_those_that_take_turns_one_runs_at_a_time() {
    hold(100, in_turn);
}

/// One consumer, and messages that arrive as suspects, counted only by their own queue.
fn suspected(setting: Setting) -> Setting {
    Setting {
        work: QueueType::Quorum,
        version: if setting.messages.is_multiple_of(2) {
            Version::V3_10
        } else {
            Version::V4_0
        },
        replicas: 1,
        suspects: true,
        faults: Faults {
            full_parking: false,
            delivery_limit: false,
            ..setting.faults.quiet()
        },
        operators: 0,
        strategy: Strategy::RetryQueues,
        ..setting
    }
}

#[test]
fn no_suspect_is_parked_for_what_its_queue_counted_unseen() {
    hold(150, suspected);
}

/// If nothing can be parked, and the consumer has few places, the messages that can be handled are.
#[test]
fn what_cannot_be_stored_keeps_nobody_from_running() {
    for seed in 0..150 {
        let setting = setting(seed);
        let setting = Setting {
            prefetch: setting.prefetch.min(2),
            single_active: seed % 2 == 0,
            faults: Faults {
                full_parking: true,
                ..setting.faults.quiet()
            },
            operators: 0,
            strategy: Strategy::RetryQueues,
            auto_delete: seed % 3 == 0 && setting.work == QueueType::Classic,
            ..setting
        };
        if let Err(broken) = run(seed, setting) {
            panic!("{broken}");
        }
    }
}

/// The broker refuses parked copies as they are: too large, for instance. No pause between tries helps against that.
fn refused(setting: Setting) -> Setting {
    possible(Setting {
        refused: true,
        prefetch: setting.prefetch.min(2),
        faults: Faults {
            full_parking: false,
            ..setting.faults.quiet()
        },
        operators: 0,
        strategy: Strategy::RetryQueues,
        ..setting
    })
}

#[test]
fn what_is_refused_as_it_is_keeps_nobody_from_running() {
    hold(150, refused);
}

/// Handlers that take whatever is there, and end all of it at the same instant.
fn batched(setting: Setting) -> Setting {
    Setting {
        batch: [2, 3, 20][setting.messages as usize % 3],
        prefetch: setting.prefetch.max(8),
        ..setting
    }
}

#[test]
fn what_ends_together_ends_as_what_ends_alone() {
    hold(150, batched);
    hold(50, |setting| batched(handed_over(setting)));
    hold(50, |setting| batched(paused(setting)));
}

/// One handler that hangs, and few enough suspects that each gets its time. A single active consumer takes one message at a time.
fn hung(setting: Setting) -> Setting {
    Setting {
        hangs: true,
        messages: setting.messages.min(12),
        prefetch: setting.prefetch.max(2),
        concurrency: setting.concurrency.max(2),
        single_active: false,
        ..suspected(setting)
    }
}

#[test]
fn a_handler_that_hangs_keeps_nobody_from_running() {
    hold(150, hung);
}

/// A broker whose waiting queues dead-letter at most once, until somebody mends it.
fn careless(setting: Setting) -> Setting {
    let careless = match setting.version {
        Version::V3_10 if setting.messages.is_multiple_of(2) => AtMostOnce::FeatureFlag,
        Version::V3_10 => AtMostOnce::Policy,
        _ if setting.messages.is_multiple_of(2) => AtMostOnce::OperatorPolicy,
        _ => AtMostOnce::Policy,
    };
    possible(Setting {
        careless: Some(careless),
        waiting: QueueType::Quorum,
        strategy: Strategy::RetryQueues,
        operators: 0,
        // Nobody can try it out during an alarm.
        faults: Faults {
            broker: true,
            alarms: false,
            work_queue_changes: true,
            full_parking: false,
            ..setting.faults
        },
        ..setting
    })
}

#[test]
fn nothing_is_lost_where_the_broker_would_dead_letter_at_most_once() {
    hold(60, careless);
}

/// A connection that may have few channels: fewer than there are queues to copy to.
fn narrow(setting: Setting) -> Setting {
    possible(Setting {
        channels: Some(3),
        strategy: Strategy::RetryQueues,
        operators: 0,
        ..setting
    })
}

#[test]
fn copies_share_the_channels_that_there_are() {
    hold(60, narrow);
}

/// Messages that no consumer can be given. Each counts for the queue when it costs a connection, and connections are not lost otherwise.
fn odd(setting: Setting, unreadable: Unreadable) -> Setting {
    let version = match setting.version {
        Version::V3_10 => Version::V4_0,
        version => version,
    };
    possible(Setting {
        version,
        unreadable: Some(unreadable),
        // It would go with the connection of its last consumer.
        auto_delete: false,
        strategy: Strategy::RetryQueues,
        operators: 0,
        faults: Faults {
            delivery_limit: false,
            full_parking: false,
            ..setting.faults
        },
        ..setting
    })
}

fn movable(setting: Setting) -> Setting {
    odd(setting, Unreadable::Movable)
}

#[test]
fn what_cannot_be_delivered_is_moved_out_of_the_way() {
    hold(100, movable);
}

/// The same without faults. A process that starts again forgets how many connections it has lost, and what was returned because of other faults
/// counts as well.
fn odd_alone(setting: Setting, unreadable: Unreadable) -> Setting {
    let faults = setting.faults.quiet();
    odd(Setting { faults, ..setting }, unreadable)
}

/// With priorities the messages in front change, and a consumer may have to be started again (`docs/reference/limits.md`).
fn hidden(setting: Setting) -> Setting {
    let in_order = Setting {
        priorities: false,
        ..setting
    };
    odd_alone(in_order, Unreadable::Hidden)
}

#[test]
fn what_cannot_be_delivered_is_found_behind_what_no_look_can_pass() {
    hold(100, hidden);
}

fn stuck(setting: Setting) -> Setting {
    odd_alone(setting, Unreadable::Stuck)
}

#[test]
fn what_cannot_be_delivered_or_moved_is_not_dropped() {
    hold(60, stuck);
}

fn full(setting: Setting) -> Setting {
    odd_alone(setting, Unreadable::Full)
}

#[test]
fn what_cannot_be_delivered_is_not_dropped_while_there_is_no_room_for_it() {
    hold(60, full);
}

/// Replicas that live for less than two seconds.
fn crash_looping(setting: Setting) -> Setting {
    possible(Setting {
        crash_loops: true,
        replicas: setting.replicas.min(2),
        waiting: QueueType::Quorum,
        strategy: Strategy::RetryQueues,
        operators: 0,
        faults: Faults {
            kills: true,
            delivery_limit: false,
            full_parking: false,
            ..setting.faults.quiet()
        },
        ..setting
    })
}

#[test]
fn crash_loops_do_not_multiply_messages() {
    hold(60, crash_looping);
}

#[test]
fn the_same_seed_plays_the_same_run() {
    for seed in 0..20 {
        let steps = || run(seed, unseen(seed)).map_err(|broken| broken.to_string());
        assert_eq!(steps(), steps());
    }
}

/// The simulation can fail: it finds these defects within seconds.
#[test]
fn defects_that_are_put_back_are_found() {
    for mutant in [
        Mutant::AcknowledgesFirst,
        Mutant::BelievesIds,
        Mutant::SpendsTheLimit,
        Mutant::LosesItsPlace,
        Mutant::CancelsFirst,
        Mutant::TrustsTheCount,
        Mutant::TrustsTheLimit,
        Mutant::LetsGoFirst,
        Mutant::ForgetsTheChannel,
        Mutant::WaitsTwice,
        Mutant::PublishesTwice,
        Mutant::HasCompany,
        Mutant::DoesNotAsk,
        Mutant::LetsGoEarly,
        Mutant::CopiesToTheNew,
        Mutant::TrustsTheNew,
        Mutant::MarksTheNew,
        Mutant::BelievesSilence,
        Mutant::RejectsEarly,
        Mutant::BelievesRedeliveryHash,
        Mutant::KeepsWhatIsHeldUp,
        Mutant::ForgetsTheTimeout,
        Mutant::ConsumesOn,
        Mutant::TakesReturnedForStored,
        Mutant::PutsBackDeferred,
        Mutant::KeepsItsPlace,
        Mutant::TrustsTheArguments,
        Mutant::ProbesLast,
        Mutant::KeepsItsChannel,
        Mutant::ForgetsTheMarker,
        Mutant::DoesNotLook,
        Mutant::NeverStops,
    ] {
        let setting = |seed| match mutant {
            Mutant::LosesItsPlace | Mutant::PublishesTwice => in_turn(setting(seed)),
            Mutant::CancelsFirst => Setting {
                work: QueueType::Classic,
                single_active: false,
                auto_delete: true,
                replicas: 1,
                ..in_turn(setting(seed))
            },
            Mutant::TrustsTheCount => suspected(setting(seed)),
            Mutant::WaitsTwice => hung(setting(seed)),
            Mutant::LetsGoEarly | Mutant::TrustsTheNew => young(setting(seed)),
            Mutant::MarksTheNew => Setting {
                replicas: 2,
                ..young(setting(seed))
            },
            Mutant::BelievesSilence => silent(setting(seed)),
            Mutant::RejectsEarly => rejected_young(setting(seed)),
            Mutant::TakesReturnedForStored => served_late(setting(seed)),
            Mutant::PutsBackDeferred => plain(setting(seed)),
            Mutant::KeepsItsPlace => refused(setting(seed)),
            // A run that does not end takes the longer, the more messages there are.
            Mutant::SpendsTheLimit => {
                let setting = setting(seed);
                let messages = setting.messages.min(12);
                Setting {
                    messages,
                    ..setting
                }
            }
            Mutant::TrustsTheArguments => trusting(Setting {
                messages: 59,
                ..setting(seed)
            }),
            // With a policy a queue changes when that does.
            Mutant::ProbesLast => careless(Setting {
                version: Version::V3_10,
                work: QueueType::Classic,
                messages: 50,
                ..setting(seed)
            }),
            Mutant::KeepsItsChannel => narrow(setting(seed)),
            Mutant::ForgetsTheMarker | Mutant::CopiesToTheNew => crash_looping(setting(seed)),
            // A classic queue would keep it for ever.
            Mutant::DoesNotLook => Setting {
                work: QueueType::Quorum,
                ..movable(setting(seed))
            },
            Mutant::NeverStops => Setting {
                work: QueueType::Quorum,
                ..stuck(setting(seed))
            },
            Mutant::ForgetsTheTimeout => possible(short_consumer_timeout(setting(seed))),
            Mutant::ConsumesOn => counted(setting(seed)),
            Mutant::KeepsWhatIsHeldUp => alarmed(setting(seed)),
            Mutant::TrustsTheLimit | Mutant::LetsGoFirst | Mutant::ForgetsTheChannel => {
                walked(setting(seed))
            }
            _ => setting(seed),
        };
        finds(mutant, setting);
    }
}

/// The probe is what finds each of the reasons to dead-letter at most once.
#[test]
fn without_the_probe_each_reason_to_dead_letter_at_most_once_loses_messages() {
    for (version, messages, careless) in [
        (Version::V3_10, 58, AtMostOnce::FeatureFlag),
        (Version::V4_0, 58, AtMostOnce::OperatorPolicy),
        (Version::V4_0, 59, AtMostOnce::Policy),
    ] {
        finds(Mutant::TrustsTheArguments, |seed| {
            let setting = trusting(Setting {
                version,
                messages,
                ..setting(seed)
            });
            assert_eq!(setting.careless, Some(careless));
            setting
        });
    }
}

/// A run without a probe: a full classic queue refuses what comes back.
fn trusting(setting: Setting) -> Setting {
    careless(Setting {
        work: QueueType::Classic,
        faults: setting.faults.quiet(),
        ..setting
    })
}

/// Plays runs with this defect until one fails.
fn finds(mutant: Mutant, setting: impl Fn(u64) -> Setting) {
    const SEEDS: u64 = 2_000;
    let began = Instant::now();
    let found = mutants::with(mutant, || {
        (0..SEEDS).find_map(|seed| run(seed, setting(seed)).err())
    });
    let found = found.unwrap_or_else(|| panic!("{mutant:?} is not found in {SEEDS} seeds"));
    let time = began.elapsed();
    if let Err(broken) = run(found.seed, setting(found.seed)) {
        panic!("{mutant:?}: fails without it as well: {broken}");
    }
    println!("{mutant:?}: seed {}, {time:.1?}: {}", found.seed, found.why);
}
