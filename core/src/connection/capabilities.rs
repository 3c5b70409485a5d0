//! What a broker can do, from its product and version: the one place that knows which version changed what.
//!
//! Of RabbitMQ it is measured (`docs/broker-facts.md`, whose facts are named here). Of LavinMQ it is what the documentation and the
//! source of 2.9 say, and what they leave open counts as not there. Of everything else nothing is known.

use super::Server;

/// What one broker can do. What is not known to be there is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capabilities {
    /// Quorum queues with a time to live whose messages are dead-lettered at least once: what waits is kept while its work queue is
    /// gone or full (13, 26). RabbitMQ 3.10 brought them; LavinMQ takes the arguments and makes an ordinary queue.
    pub(crate) dead_letters_at_least_once: bool,
    /// A message that is rejected into a dead-letter route is known not to be lost on a sound broker, and counted in `x-death`
    /// by queue and reason (1, 8). LavinMQ drops what its target rejects or is closed for.
    pub(crate) dead_letters_safely: bool,
    /// Quorum queues can delay what is returned to them (`x-delayed-retry-*`), RabbitMQ 4.3 and later.
    pub(crate) delays_returns: bool,
    /// RabbitMQ's delayed-message plugin can run there; whether it does shows when its exchange is declared. LavinMQ has such an
    /// exchange built in; how safe what waits in it is has not been measured.
    pub(crate) runs_delayed_exchange: bool,
    /// How often a quorum queue delivers a message again before it gives it up, if nobody said otherwise (5).
    pub(crate) delivery_limit: Option<u32>,
    /// Dead-letter rounds are in the delivery count, and begin anew with a return (6): quorum queues of RabbitMQ 4.0 to 4.2.
    pub(crate) counts_hold_rounds: bool,
    /// What a classic queue gets back from a dead-letter loop it hands out as redelivered (7): RabbitMQ 4.3. Where it is not known,
    /// it is expected: what is only a retry must not pass for a crash.
    pub(crate) loops_look_redelivered: bool,
    /// `basic.nack` leaves the delivery count as it is (4). Where it is not known, a message is rather copied than counted.
    pub(crate) nack_is_uncounted: bool,
    /// A classic queue can hand out nothing to its next active consumer until something else happens to it (48). Where it is not
    /// known, its consumer wakes it once too often.
    pub(crate) queues_sleep: bool,
    /// To consume from an offset is refused by every queue that is no stream. LavinMQ takes it for a usual consumer.
    pub(crate) refuses_offsets: bool,
}

/// The delivery limit of quorum queues since RabbitMQ 4.0.
const DELIVERY_LIMIT: u32 = 20;

impl Capabilities {
    /// Nothing is known.
    const UNKNOWN: Self = Self {
        dead_letters_at_least_once: false,
        dead_letters_safely: false,
        delays_returns: false,
        runs_delayed_exchange: false,
        delivery_limit: None,
        counts_hold_rounds: false,
        loops_look_redelivered: true,
        nack_is_uncounted: false,
        queues_sleep: true,
        refuses_offsets: false,
    };

    /// LavinMQ 2: one type of queue (and streams), which counts deliveries only where it has an `x-delivery-limit`, by reject and
    /// nack alike, and writes `x-delivery-count` then.
    const LAVINMQ: Self = Self {
        queues_sleep: false,
        ..Self::UNKNOWN
    };

    pub(super) fn of(server: &Server) -> Self {
        if server.is_rabbitmq() {
            Self::of_rabbitmq(server)
        } else if server.product == "LavinMQ" {
            Self::LAVINMQ
        } else {
            Self::UNKNOWN
        }
    }

    fn of_rabbitmq(server: &Server) -> Self {
        let (v4_0, v4_3) = (server.at_least(4, 0), server.at_least(4, 3));
        Self {
            dead_letters_at_least_once: server.at_least(3, 10),
            dead_letters_safely: true,
            delays_returns: v4_3,
            runs_delayed_exchange: !v4_3,
            delivery_limit: v4_0.then_some(DELIVERY_LIMIT),
            counts_hold_rounds: v4_0 && !v4_3,
            loops_look_redelivered: v4_3,
            nack_is_uncounted: v4_3,
            queues_sleep: !v4_0,
            refuses_offsets: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(product: &str, version: &str) -> Capabilities {
        Server::for_tests(product, version).capabilities()
    }

    #[test]
    fn each_tested_version_has_what_was_measured_on_it() {
        let old = of("RabbitMQ", "3.10.8");
        assert!(old.dead_letters_at_least_once && old.queues_sleep && old.runs_delayed_exchange);
        assert!(!old.delays_returns && !old.nack_is_uncounted && !old.counts_hold_rounds);
        assert!(!old.loops_look_redelivered && !of("RabbitMQ", "4.0.5").loops_look_redelivered);
        assert_eq!(old.delivery_limit, None);
        let middle = of("RabbitMQ", "4.0.5");
        assert!(middle.counts_hold_rounds && middle.runs_delayed_exchange);
        assert!(!middle.queues_sleep && !middle.delays_returns && !middle.nack_is_uncounted);
        assert_eq!(middle.delivery_limit, Some(20));
        let new = of("RabbitMQ", "4.3.6");
        assert!(new.delays_returns && new.nack_is_uncounted && new.loops_look_redelivered);
        assert!(!new.runs_delayed_exchange && !new.counts_hold_rounds && !new.queues_sleep);
        assert_eq!(new.delivery_limit, Some(20));
        assert!(
            [old, middle, new]
                .iter()
                .all(|known| known.refuses_offsets && known.dead_letters_safely)
        );
    }

    #[test]
    fn versions_between_are_like_their_neighbours() {
        assert_eq!(of("RabbitMQ", "3.13.7"), of("RabbitMQ", "3.10.8"));
        assert_eq!(of("RabbitMQ", "4.2.1"), of("RabbitMQ", "4.0.5"));
        assert_eq!(of("RabbitMQ", "4.3.0-rc.1"), of("RabbitMQ", "4.3.6"));
        assert_eq!(of("RabbitMQ", "5.0.0"), of("RabbitMQ", "4.3.6"));
    }

    #[test]
    fn what_is_older_or_unreadable_has_no_safe_place_to_wait() {
        for version in ["3.9.29", "", "main", "-1.0"] {
            assert!(
                !of("RabbitMQ", version).dead_letters_at_least_once,
                "{version}"
            );
        }
    }

    #[test]
    fn of_lavinmq_only_what_it_documents_counts() {
        let lavin = of("LavinMQ", "2.9.1");
        assert!(!lavin.dead_letters_at_least_once && !lavin.dead_letters_safely);
        assert!(!lavin.delays_returns && !lavin.runs_delayed_exchange && !lavin.refuses_offsets);
        assert!(!lavin.queues_sleep && !lavin.nack_is_uncounted);
        assert_eq!(lavin.delivery_limit, None);
        assert_eq!(
            of("LavinMQ", "99.0"),
            lavin,
            "a version nobody has seen is no reason to believe more"
        );
    }

    #[test]
    fn a_broker_that_calls_itself_otherwise_is_not_taken_for_a_new_rabbitmq() {
        for product in ["", "AMQProxy", "rabbitmq", "RabbitMQ "] {
            assert_eq!(of(product, "4.3.6"), Capabilities::UNKNOWN, "{product}");
        }
    }
}
