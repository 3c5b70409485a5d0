//! The end of a run: the driver drains, and what is left is counted.

use std::time::{Duration, Instant};

use super::{DEADLINE, LOOK_EVERY, Run};
use crate::driver::{Driver, DriverEvent};
use crate::fixture::CheckerError;
use crate::line::Line;

/// What was unsettled when the driver ended comes back to its queue within this, also where the broker is busy.
const RETURN: Duration = Duration::from_secs(30);

impl Run<'_> {
    /// SIGTERM: the driver settles what runs, prints `done`, and ends with status 0.
    pub(super) async fn stop(&mut self, driver: &mut Driver) -> Result<(), CheckerError> {
        driver.stop();
        let asked = Instant::now();
        let mut done = false;
        loop {
            let left = DEADLINE.saturating_sub(asked.elapsed());
            match tokio::time::timeout(left, driver.hear()).await {
                Ok(DriverEvent::Line(line)) => {
                    done = line == Line::Done {};
                    self.note(line);
                }
                Ok(DriverEvent::Noise(noise)) => self.seen.problems.push(noise),
                Ok(DriverEvent::End) | Err(_) => break,
            }
        }
        match driver.ended(DEADLINE.saturating_sub(asked.elapsed())).await {
            Some(status) if status.success() && done => {}
            Some(status) if status.success() => {
                self.seen
                    .problems
                    .push("the driver's last line was not \"done\"".into());
            }
            Some(status) => {
                let words = driver.last_words();
                self.seen.problems.push(format!(
                    "the driver, asked to end, ended with {status}\n      {words}"
                ));
            }
            None => self.seen.problems.push(format!(
                "the driver did not end within {} s of SIGTERM",
                DEADLINE.as_secs()
            )),
        }
        Ok(())
    }

    /// Reads what is left in every queue of the virtual host.
    pub(super) async fn take_stock(&mut self) {
        let deadline = Instant::now() + RETURN;
        while !self.all_in_place(self.fixture.queues().await).await && Instant::now() < deadline {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        self.fixture.clear(self.scenario, &mut self.seen).await;
    }
}
