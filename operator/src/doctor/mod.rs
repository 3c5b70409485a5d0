//! What will lose, loop or block messages on a broker: rules, each a pure function over a [`Snapshot`].
//!
//! Each finding has a code that stays, such as `RQ101`, a sentence, and the fix as a command. `docs/doctor.md` has a section for each code.

mod consumers;
mod cycles;
mod finding;
mod limits;
mod orphans;
mod policies;
mod routes;
pub(crate) mod snapshot;
mod upgrades;

pub use finding::{Code, Finding, Severity, Subject};
pub use snapshot::{QueueNames, QueueRole, Snapshot, UnknownPart};

#[cfg(test)]
pub(crate) use snapshot::tests as tests_support;

/// One rule: all that it finds.
type Rule = fn(&Snapshot) -> Vec<Finding>;

/// Every rule, by code. The gravest come first where a queue breaks several.
const RULES: [(Code, Rule); 25] = [
    (Code::NoRoute, routes::nowhere_to_go),
    (Code::MissingExchange, routes::missing_exchange),
    (Code::DeadEnd, routes::nothing_bound),
    (Code::TtlCycle, cycles::by_time_alone),
    (Code::HiddenRoute, policies::hides_a_route),
    (Code::HeadOfLine, cycles::head_of_line),
    (
        Code::LimitWithoutRoute,
        limits::delivery_limit_without_route,
    ),
    (Code::NotAtLeastOnce, limits::at_least_once_that_is_not),
    (Code::WaitingExpires, limits::waiting_queue_expires),
    (Code::ParkingLimited, limits::parking_queue_limited),
    (Code::ForeignPolicy, policies::on_our_queues),
    (Code::NoConsumer, consumers::none_where_messages_are),
    (Code::WorkQueueGone, orphans::work_queue_gone),
    (Code::NeverAcknowledges, consumers::never_acknowledges),
    (Code::ShortTimeout, consumers::timeout_too_short),
    (Code::Deprecated, upgrades::deprecated_in_use),
    (Code::NextVersion, upgrades::next_version),
    (Code::LimitInLoop, cycles::limit_in_a_loop),
    (Code::NoAcknowledgement, consumers::without_acknowledgement),
    (Code::EnableDrifted, policies::enabled_drifted),
    (Code::RouteWithoutKey, routes::default_exchange_without_key),
    (Code::Held, orphans::held),
    (Code::DelayChanged, policies::changes_a_delay),
    (Code::Unreadable, orphans::unreadable),
    (Code::DropsOldest, limits::work_queue_drops_the_oldest),
];

/// Everything that the rules find, the gravest first, then by subject.
#[must_use]
pub fn examine(snapshot: &Snapshot) -> Vec<Finding> {
    let mut all: Vec<Finding> = RULES.iter().flat_map(|(_, rule)| rule(snapshot)).collect();
    all.sort_by(|one, other| {
        (one.severity, &one.subject, one.code).cmp(&(other.severity, &other.subject, other.code))
    });
    all.dedup_by(|one, other| (one.code, &one.subject) == (other.code, &other.subject));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_rule_and_a_section_in_the_page() {
        let page = include_str!("../../../docs/doctor.md");
        let sections: Vec<&str> = page
            .lines()
            // Exactly the code, so that a link to `#rq101` leads there.
            .filter_map(|line| line.strip_prefix("## RQ"))
            .collect();
        let codes: Vec<String> = Code::ALL.iter().map(ToString::to_string).collect();
        let numbers: Vec<&str> = codes.iter().map(|code| &code[2..]).collect();
        assert_eq!(sections, numbers, "docs/doctor.md and the codes differ");
        let ruled: Vec<Code> = RULES.iter().map(|(code, _)| *code).collect();
        assert_eq!(ruled, Code::ALL);
    }
}
