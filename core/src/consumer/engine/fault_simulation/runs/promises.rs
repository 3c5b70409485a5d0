//! The promises, each under the settings that try it most.

use super::{
    super::{AtMostOnce, Unreadable},
    *,
};

/// Mainly operators.
pub(super) fn walked(setting: Setting) -> Setting {
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
pub(super) fn served_late(setting: Setting) -> Setting {
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
pub(super) fn short_consumer_timeout(setting: Setting) -> Setting {
    Setting {
        pause: Some(Duration::from_secs(2_400)),
        consumer_timeout: Some(Duration::from_secs(30)),
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
pub(super) fn young(setting: Setting) -> Setting {
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
pub(super) fn silent(setting: Setting) -> Setting {
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
pub(super) fn rejected_young(setting: Setting) -> Setting {
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
pub(super) fn alarmed(setting: Setting) -> Setting {
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
pub(super) fn counted(setting: Setting) -> Setting {
    let setting = alarmed(setting);
    possible(Setting {
        work: QueueType::Quorum,
        replicas: 1,
        consumer_timeout: Some(Duration::from_secs(120)),
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
pub(super) fn plain(setting: Setting) -> Setting {
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
pub(super) fn in_turn(setting: Setting) -> Setting {
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
pub(super) fn suspected(setting: Setting) -> Setting {
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
pub(super) fn refused(setting: Setting) -> Setting {
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

/// Consumers that may hold few bytes, some of them fewer than a single message has. What cannot be stored may take all of them.
pub(super) fn limited(setting: Setting) -> Setting {
    Setting {
        prefetch_bytes: Some([20, 500, 1_500, 5_000][setting.messages as usize % 4]),
        faults: Faults {
            full_parking: false,
            ..setting.faults
        },
        ..setting
    }
}

#[test]
fn what_takes_too_many_bytes_waits_for_its_turn() {
    hold(150, limited);
    hold(50, |setting| limited(batched(setting)));
    hold(50, |setting| limited(paused(setting)));
    hold(50, |setting| limited(handed_over(setting)));
    hold(50, |setting| limited(suspected(setting)));
    hold(50, |setting| limited(in_turn(setting)));
    hold(50, |setting| limited(plain(setting)));
}

/// A consumer in a long alarm. What it may hold is enough for all of these messages, if what an alarm holds up takes no room from others.
pub(super) fn held_up(setting: Setting) -> Setting {
    let setting = alarmed(setting);
    // What is returned for want of room comes back as a copy elsewhere, and that waits as well.
    let returns_itself = setting.version == Version::V4_3 && setting.work == QueueType::Quorum;
    let prefetch = if returns_itself { setting.prefetch } else { 1 };
    possible(Setting {
        prefetch,
        prefetch_bytes: Some(3_000),
        messages: setting.messages.min(20),
        served_in_alarm: true,
        single_active: false,
        replicas: 1,
        batch: 1,
        faults: Faults {
            alarms: true,
            ..setting.faults.quiet()
        },
        ..setting
    })
}

#[test]
fn what_an_alarm_holds_up_takes_no_room_from_others() {
    hold(150, held_up);
}

/// One handler that hangs, and few enough suspects that each gets its time. A single active consumer takes one message at a time.
pub(super) fn hung(setting: Setting) -> Setting {
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
pub(super) fn careless(setting: Setting) -> Setting {
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
pub(super) fn narrow(setting: Setting) -> Setting {
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

pub(super) fn movable(setting: Setting) -> Setting {
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

pub(super) fn stuck(setting: Setting) -> Setting {
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
pub(super) fn crash_looping(setting: Setting) -> Setting {
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
