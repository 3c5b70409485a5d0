//! `retry-queues`: one queue per delay. Nothing about the work queue changes.

use super::{
    Plan, plan,
    strategy_plan::{Route, StrategyPlan, Target, Wait, check_waiting},
};
use crate::{Result, connection::Server, retry::Counting};

pub(super) struct RetryQueues;

impl StrategyPlan for RetryQueues {
    fn counting(&self, _: &Server) -> Counting {
        Counting::Header
    }

    fn check_rules(&self, _: &Target<'_>) -> Result<()> {
        Ok(())
    }

    fn check_server(&self, server: &Server, target: &Target<'_>) -> Result<()> {
        check_waiting(server, target.queue_type)
    }

    fn plan(&self, target: &Target<'_>) -> Plan {
        let mut items = vec![
            plan::parking(target.queue, target.queue_type),
            plan::work(target.queue),
        ];
        items.extend(
            target
                .delays()
                .into_iter()
                .map(|delay| plan::waiting(target.queue, delay, target.queue_type)),
        );
        items.extend(target.detour());
        Plan { items }
    }

    fn route(&self, queue: &str, wait: Wait) -> Route {
        match wait {
            Wait::Policy(delay) => Route::policy(queue, delay),
            Wait::DelayStep(delay) => Route::delay_steps(queue, delay),
        }
    }
}
