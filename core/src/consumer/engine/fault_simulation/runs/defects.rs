//! The simulation can fail: it finds defects that are put back.

use super::{super::AtMostOnce, promises::*, *};
use crate::mutants::{self, Mutant};

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
        Mutant::IgnoresBytes,
        Mutant::StarvesTheKept,
        Mutant::CountsWhatIsHeldUp,
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
            Mutant::IgnoresBytes | Mutant::StarvesTheKept => limited(setting(seed)),
            Mutant::CountsWhatIsHeldUp => held_up(setting(seed)),
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
