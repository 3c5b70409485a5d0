//! `service`: a failed message is handed over to `retryrmq serve`, which lets it wait, brings it back and parks it.

use super::{
    Plan,
    plan::{self, text},
    strategy_plan::{Route, StrategyPlan, Target, Wait, refused},
};
use crate::{
    Result,
    connection::Server,
    queue_names::{DEAD_EXCHANGE, HANDOVER_QUEUE},
    retry::{Counting, Policy},
};

const NAME: &str = "service";

pub(super) struct Service;

impl StrategyPlan for Service {
    fn counting(&self, _: &Server) -> Counting {
        Counting::Header
    }

    fn check_rules(&self, target: &Target<'_>) -> Result<()> {
        let rules = target.rules;
        if rules.rules.is_empty() && rules.otherwise == Policy::default() {
            return Ok(());
        }
        Err(refused(
            NAME,
            "leaves it to the service when a message comes back, so that a policy and rules of the consumer would mean nothing",
            "`retry` and `[[rules]]` in the policy file of `retryrmq serve`, or the strategy retry-queues",
        ))
    }

    fn check_server(&self, server: &Server, _: &Target<'_>) -> Result<()> {
        if server.capabilities().dead_letters_at_least_once {
            return Ok(());
        }
        Err(refused(
            NAME,
            format!(
                "needs the quorum queues of `retryrmq serve`, and {server} is not known to have them"
            ),
            "RabbitMQ 3.10 or later, or the strategy retry-queues",
        ))
    }

    /// The service's queue first: nothing is created if no service was ever there.
    fn plan(&self, target: &Target<'_>) -> Plan {
        let dead = [("x-dead-letter-exchange", text(DEAD_EXCHANGE))];
        let work = plan::work_that_dead_letters(target.queue, dead);
        Plan {
            items: vec![plan::handover(), work],
        }
    }

    /// The service decides how long it waits.
    fn route(&self, _: &str, _: Wait) -> Route {
        Route::Copy {
            exchange: String::new(),
            routing_key: HANDOVER_QUEUE.to_owned(),
            expiration: None,
            delay_header: None,
            mandatory: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorKind, QueueType, Strategy, retry::Rules};

    #[test]
    fn nothing_is_made_but_the_work_queue_and_that_last() {
        let rules = Rules::default();
        let plan = |work: Option<&str>| {
            let work = work.map(|work| work.parse().unwrap());
            let plan = Strategy::Service.plan("orders", &rules, QueueType::Quorum, work.as_ref());
            plan.unwrap()
        };
        let names = |plan: &Plan| {
            let names = plan.items.iter().map(|item| item.name().to_owned());
            names.collect::<Vec<_>>()
        };
        assert_eq!(names(&plan(None)), ["retryrmq.handover", "orders"]);
        assert_eq!(
            plan(Some("classic")).items[1].to_string(),
            "queue orders (x-queue-type=\"classic\", x-dead-letter-exchange=\"retryrmq.dead\")"
        );
        assert_eq!(
            plan(Some("{}")).items[1].to_string(),
            "queue orders ()",
            "its owner says what dies where"
        );
        assert_eq!(
            names(&plan(Some("existing"))),
            ["orders", "retryrmq.handover"]
        );
    }

    #[test]
    fn a_policy_of_the_consumers_own_is_refused_with_where_it_belongs() {
        let rules = Rules::new([], "fixed(1s)".parse().unwrap());
        let error = Strategy::Service
            .plan("orders", &rules, QueueType::Quorum, None)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StrategyRefused);
        assert!(error.to_string().contains("policy file"), "{error}");
    }
}
