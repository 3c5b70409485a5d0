//! What a broker can do, from its product and version. Only this module knows which version changed what.
//!
//! For RabbitMQ it is measured (`docs/broker-facts.md`; the numbers are its facts). For LavinMQ it is taken from the documentation and the
//! source of 2.9; what they leave open counts as missing. Of other brokers nothing is known.

use super::Server;

/// What one broker can do. What is unknown counts as missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capabilities {
    /// Quorum queues dead-letter expired messages at least once: a waiting message is kept while its work queue is gone or full (13, 26).
    /// RabbitMQ has this since 3.10. LavinMQ accepts the arguments and creates an ordinary queue.
    pub(crate) dead_letters_at_least_once: bool,
    /// A message rejected into a dead-letter route is not lost while the broker runs, and is counted in `x-death` by queue and reason (1,
    /// 8). LavinMQ drops what the target queue rejects.
    pub(crate) dead_letters_safely: bool,
    /// Quorum queues can delay requeued messages (`x-delayed-retry-*`), from RabbitMQ 4.3 on.
    pub(crate) delays_returns: bool,
    /// RabbitMQ's delayed-message plugin can run there. Whether it does shows when its exchange is declared. LavinMQ has such an exchange
    /// built in, but how safe messages in it are was not measured.
    pub(crate) runs_delayed_exchange: bool,
    /// How often a quorum queue delivers a message again before it drops it, by default (5).
    pub(crate) delivery_limit: Option<u32>,
    /// The delivery count includes dead-letter rounds, and starts again after a requeue (6): quorum queues of RabbitMQ 4.0 to 4.2.
    pub(crate) counts_hold_rounds: bool,
    /// The broker counts deaths on from what a publisher wrote into `x-death` (2): before RabbitMQ 4.0.
    pub(crate) continues_foreign_deaths: bool,
    /// A classic queue marks a message as redelivered when it returns from a dead-letter loop (7): RabbitMQ 4.3. If unknown, it is assumed:
    /// a retry must not look like a crash.
    pub(crate) loops_look_redelivered: bool,
    /// `basic.nack` does not change the delivery count (4). If unknown, a message is copied rather than counted.
    pub(crate) nack_is_uncounted: bool,
    /// A classic queue may deliver nothing to its next active consumer until something else happens to it (48). If unknown, the consumer
    /// wakes it once more than needed.
    pub(crate) queues_sleep: bool,
    /// Every queue that is not a stream refuses to be consumed from an offset. LavinMQ makes an ordinary consumer.
    pub(crate) refuses_offsets: bool,
    /// A declaration with arguments that no queue type takes creates nothing, and its refusal names the type that the queue would have (84).
    /// LavinMQ ignores arguments that it does not know.
    pub(crate) tells_default_type: bool,
    /// A declaration without `x-queue-type` equals one that names the default type (18): RabbitMQ 4.0.
    pub(crate) fills_in_default_type: bool,
    /// A refusal that is longer than 255 bytes and not ASCII is cut, not an error that closes the connection (85): RabbitMQ before 4.0.
    pub(crate) cuts_long_refusals: bool,
    /// It serves AMQP 1.0 on the same port, and stores what AMQP 0-9-1 cannot carry: RabbitMQ 4.0.
    pub(crate) serves_amqp10: bool,
    /// In a message of AMQP 1.0, it leaves out decimal and infinite numbers for an AMQP 0-9-1 client, rather than fail: RabbitMQ 4.3.
    pub(crate) leaves_out_odd_numbers: bool,
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
        continues_foreign_deaths: false,
        loops_look_redelivered: true,
        nack_is_uncounted: false,
        queues_sleep: true,
        refuses_offsets: false,
        tells_default_type: false,
        fills_in_default_type: false,
        cuts_long_refusals: true,
        serves_amqp10: false,
        leaves_out_odd_numbers: false,
    };

    /// LavinMQ 2: one type of queue, besides streams. It counts deliveries only with an `x-delivery-limit`, for reject and nack alike, and
    /// then writes `x-delivery-count`.
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
            continues_foreign_deaths: !v4_0,
            loops_look_redelivered: v4_3,
            nack_is_uncounted: v4_3,
            queues_sleep: !v4_0,
            refuses_offsets: true,
            tells_default_type: server.at_least(3, 10),
            fills_in_default_type: v4_0,
            cuts_long_refusals: !v4_0,
            serves_amqp10: v4_0,
            leaves_out_odd_numbers: v4_3,
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
        assert!(old.continues_foreign_deaths);
        let middle = of("RabbitMQ", "4.0.5");
        assert!(middle.counts_hold_rounds && middle.runs_delayed_exchange);
        assert!(!middle.queues_sleep && !middle.delays_returns && !middle.nack_is_uncounted);
        assert_eq!(middle.delivery_limit, Some(20));
        assert!(!middle.continues_foreign_deaths);
        let new = of("RabbitMQ", "4.3.6");
        assert!(new.delays_returns && new.nack_is_uncounted && new.loops_look_redelivered);
        assert!(!new.runs_delayed_exchange && !new.counts_hold_rounds && !new.queues_sleep);
        assert!(old.cuts_long_refusals && !middle.cuts_long_refusals && !new.cuts_long_refusals);
        assert!(!old.fills_in_default_type && middle.fills_in_default_type);
        assert_eq!(new.delivery_limit, Some(20));
        assert!(!old.serves_amqp10 && middle.serves_amqp10 && new.serves_amqp10);
        assert!(!middle.leaves_out_odd_numbers && new.leaves_out_odd_numbers);
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
