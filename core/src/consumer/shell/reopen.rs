//! Opens the channel of the next session in the background, after the one before was lost.

use std::{sync::Arc, time::Duration};

use tokio::{sync::mpsc, time::Instant};

use super::{Shell, ShellEvent, channel::Channel, is_closed};
use crate::{
    Error, ErrorKind, Server,
    topology::{self, DelayQueues, Finding, Mode, Plan, QueueType},
};

/// A channel, and what is known when it is opened.
pub(super) struct OpenedChannel {
    pub(super) channel: Box<Channel>,
    /// The broker behind it.
    pub(super) server: Server,
    /// The type of the work queue, if it is known.
    pub(super) kind: Option<QueueType>,
    /// How many messages are to be taken one at a time.
    pub(super) one_by_one: u32,
}

/// The type of the work queue, if it is known.
pub(super) fn kind(findings: &[Finding]) -> Option<QueueType> {
    let work_queue = findings.iter().find(|finding| finding.item.is_work_queue());
    work_queue.and_then(|finding| finding.queue_type)
}

pub(super) fn mode(declare: bool) -> Mode {
    if declare { Mode::Apply } else { Mode::Require }
}

/// Finds out whether the waiting queue is old to which the broker itself moves what is rejected. Copies ask for themselves.
pub(super) async fn report_old_queues(
    session: u64,
    plan: Plan,
    waits: Arc<DelayQueues>,
    mail: mpsc::UnboundedSender<ShellEvent>,
) {
    let Some(queue) = topology::dead_lettered_to(&plan) else {
        return;
    };
    let asked = Instant::now();
    waits.find_marker(&queue);
    if waits.age_from_marker(&queue, asked).await.is_none() {
        let _ = mail.send(ShellEvent::IsOld(session));
    }
}

impl Shell {
    /// Opens the next channel in the background; it arrives as mail.
    pub(super) fn open(&self, session: u64, pause: Duration) {
        let (client, plan, queue) = (
            self.client.clone(),
            self.plan.clone(),
            self.wire_queue.clone(),
        );
        let (mode, priority) = (mode(self.declare), self.priority);
        let (mail, waits) = (self.mail.clone(), Arc::clone(&self.waits));
        let requirements = Arc::clone(&self.requirements);
        let internal_errors = self.internal_errors.clone();
        let pause = internal_errors.pause(pause);
        let (may_set_aside, window) = (self.may_set_aside, self.window);
        let delivery_queue = Arc::clone(&self.delivery_queue);
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            let opened = async {
                let connection = tokio::select! {
                    biased;
                    connection = client.consuming().connection() => connection,
                    error = client.consuming().refused() => {
                        let _ = mail.send(ShellEvent::Refused(error));
                        client.consuming().connection().await
                    }
                };
                // A client that ended by itself counts as closed.
                let connection =
                    connection.map_err(|error| Error::new(ErrorKind::Closed, error.to_string()))?;
                // The broker may have been upgraded, or be another node of a cluster under upgrade.
                let server = connection.server().clone();
                requirements.check(&server)?;
                // Queues may have been deleted, or lost with their broker, meanwhile.
                let findings = client.examine(&plan, mode).await;
                // This uses a connection of its own, which the broker may refuse while the others are open.
                let refused = findings.as_ref().err();
                if client.consuming().report(refused).await
                    && let Some(error) = refused
                {
                    let error = Error::new(error.kind(), error.to_string());
                    let _ = mail.send(ShellEvent::Refused(error));
                }
                let findings = findings?;
                waits.note(&findings);
                waits.mark_when_old(&connection);
                let kind = kind(&findings);
                let mut one_by_one = internal_errors.one_by_one(window);
                let mut ready = None;
                if internal_errors.should_count() {
                    internal_errors
                        .wait_for_returns(&client, plan.return_delays())
                        .await;
                    ready = internal_errors
                        .ready(&client, &connection, &queue, kind)
                        .await?;
                }
                // Before RabbitMQ 4.0, what AMQP 0-9-1 cannot carry does not get into a queue.
                if internal_errors.should_scan() && server.capabilities().serves_amqp10 {
                    let queue = (&queue, kind, window, ready);
                    let send_event = |event| {
                        let _ = mail.send(ShellEvent::Moved(event));
                    };
                    let is_ending = || delivery_queue.is_closing() || is_closed(&client);
                    let scan = internal_errors.scan(
                        &client,
                        &connection,
                        queue,
                        may_set_aside,
                        is_ending,
                        send_event,
                    );
                    one_by_one = scan.await.inspect_err(|error| {
                        let _ = mail.send(ShellEvent::Stopped(error.to_string()));
                    })?;
                }
                let channel = Channel::open(connection, queue, priority, session).await?;
                Ok(OpenedChannel {
                    channel: Box::new(channel),
                    server,
                    kind,
                    one_by_one,
                })
            };
            let opened = opened.await;
            let is_open = opened.is_ok();
            let _ = mail.send(ShellEvent::Opened(session, opened));
            if is_open {
                report_old_queues(session, plan, waits, mail).await;
            }
        });
    }
}
