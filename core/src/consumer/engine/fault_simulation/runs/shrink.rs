//! Makes a failing run small.

use super::*;

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
                prefetch_bytes: None,
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
pub(super) fn fail(broken: Box<FailedRun>) -> ! {
    eprintln!("{broken}\nto be made small:");
    panic!("{}", shortest(broken));
}
