//! Following a driver while it consumes, and letting happen what the scenario says happens meanwhile.

use std::time::Instant;

use super::{Ended, LOOK_EVERY, Run};
use crate::driver::{Driver, DriverEvent};
use crate::fixture::CheckerError;
use crate::scenario::{Condition, Later};

impl Run<'_> {
    /// Listens until enough was seen, something went wrong, or time is up.
    pub(super) async fn listen(
        &mut self,
        driver: &mut Driver,
        later: &mut Vec<&Later>,
        unpublished: &mut bool,
        deadline: Instant,
    ) -> Result<Ended, CheckerError> {
        loop {
            match tokio::time::timeout(LOOK_EVERY, driver.hear()).await {
                // what has been printed is read before the broker is asked
                Ok(DriverEvent::Line(line)) if Instant::now() < deadline => {
                    self.note(line);
                    continue;
                }
                Ok(DriverEvent::Line(line)) => self.note(line),
                Ok(DriverEvent::Noise(noise)) => self.seen.problems.push(noise),
                Ok(DriverEvent::End) => {
                    return Ok(if self.seen.refused.is_some() {
                        Ended::Refused
                    } else {
                        Ended::Died
                    });
                }
                Err(_) => {}
            }
            if *unpublished
                && self
                    .holds(&Condition {
                        consuming: true,
                        ..Condition::default()
                    })
                    .await
            {
                *unpublished = false;
                let scenario = self.scenario;
                self.publish(&scenario.publish).await?;
            }
            if let Some(next) = later.last().copied() {
                if (self.is_ready || !next.stop) && self.holds(&next.once).await {
                    later.pop();
                    self.happen(next).await?;
                    if next.stop {
                        return Ok(Ended::Stopped);
                    }
                }
            } else if !*unpublished
                && self.scenario.expect.refused.is_none()
                && self.is_enough().await
            {
                return Ok(Ended::Enough);
            }
            if Instant::now() > deadline {
                return Ok(Ended::Late);
            }
        }
    }

    async fn holds(&self, condition: &Condition) -> bool {
        let runs = self.seen.run_counts();
        if condition
            .runs
            .iter()
            .any(|(id, least)| runs.get(id).copied().unwrap_or(0) < *least)
        {
            return false;
        }
        for (queue, least) in &condition.queues {
            if self.fixture.depth(queue).await < *least {
                return false;
            }
        }
        !condition.consuming
            || self
                .fixture
                .is_consumed(&self.scenario.topology.queue.name)
                .await
    }
}
