//! What happens beside the consumer: publishing, and second processes of the driver that do one thing and end.

use super::{DEADLINE, Run};
use crate::driver::{Driver, DriverEvent};
use crate::fixture::CheckerError;
use crate::scenario::{Later, Message};
use crate::task::{Outgoing, Task};

impl Run<'_> {
    pub(super) async fn happen(&mut self, later: &Later) -> Result<(), CheckerError> {
        self.publish(&later.publish).await?;
        if !later.driver_publish.is_empty() {
            let messages = later
                .driver_publish
                .iter()
                .flat_map(Message::each)
                .map(|message| self.outgoing(&message))
                .collect();
            self.side_task(Task::Publish {
                url: self.fixture.url(),
                messages,
            })
            .await?;
        }
        if let Some(queue) = later.replay.queue(&self.scenario.topology.queue.name) {
            self.side_task(Task::Replay {
                url: self.fixture.url(),
                queue,
            })
            .await?;
        }
        Ok(())
    }

    fn outgoing(&self, message: &Message) -> Outgoing {
        Outgoing {
            id: message.id.clone(),
            exchange: message.exchange.clone(),
            routing_key: message
                .routing_key
                .clone()
                .unwrap_or_else(|| self.scenario.topology.queue.name.clone()),
            body: String::from_utf8_lossy(&message.bytes()).into_owned(),
            headers: message.all_headers(),
            delay_ms: message.delay.map(|delay| delay.millis()),
        }
    }

    /// A second process of the driver, beside the one that consumes, which does one thing and ends.
    async fn side_task(&mut self, task: Task<'_>) -> Result<(), CheckerError> {
        let mut driver = Driver::start(&self.driver.command, task).await?;
        let lines = async {
            let mut heard = Vec::new();
            loop {
                match driver.hear().await {
                    DriverEvent::Line(line) => heard.push(line),
                    DriverEvent::Noise(noise) => return Err(noise),
                    DriverEvent::End => return Ok(heard),
                }
            }
        };
        let lines = tokio::time::timeout(DEADLINE, lines).await;
        let status = driver.ended(DEADLINE).await;
        match (lines, status) {
            (Ok(Ok(lines)), Some(status)) if status.success() => {
                lines.into_iter().for_each(|line| self.note(line))
            }
            (Ok(Err(noise)), _) => self.seen.problems.push(noise),
            (_, status) => {
                let status =
                    status.map_or_else(|| "it did not end".into(), |status| status.to_string());
                self.seen.problems.push(format!(
                    "a subcommand of the driver failed: {status}\n      {}",
                    driver.last_words()
                ));
            }
        }
        Ok(())
    }
}
