//! The loss of a channel, and the next one.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;
use tracing::{error, warn};

use super::{super::session::Session, Engine, FIRST_PAUSE, Intake, LONGEST_PAUSE, Mail};
use crate::{ErrorKind, Result, telemetry::Event, topology::Mode};

impl Engine {
    pub(super) fn survive(&mut self, result: Result<()>) {
        if let Err(error) = result {
            warn!(queue = %self.name, %error, "the channel failed");
            self.lose_session();
        }
    }

    /// The channel is gone: what was not begun will come again, what runs may finish, and a new channel is opened.
    pub(super) fn lose_session(&mut self) {
        let Some(session) = self.session.take() else {
            return;
        };
        drop(session);
        self.intake = Intake::Stopped;
        let queue = self.queue();
        self.options.listener.tell(|| Event::Disconnected { queue });
        // Copies on their way are still of interest: once stored, their originals need not run again. So is what handlers
        // hold: a success counts when the message comes again, and the end waits for all of them.
        for token in self.take_back_the_unstarted() {
            self.forget(token);
        }
        (self.suspect, self.cautious) = (None, true);
        if self.drain_until.is_none() {
            self.open_session(Duration::ZERO);
        }
    }

    /// Opens the next session in the background; it arrives as mail.
    pub(super) fn open_session(&mut self, pause: Duration) {
        self.sessions += 1;
        let (client, plan, queue, id) = (
            self.client.clone(),
            self.plan.clone(),
            self.wire_queue.clone(),
            self.sessions,
        );
        let mode = if self.options.declare && self.options.dlx {
            Mode::Apply
        } else {
            Mode::Require
        };
        let (mail, waits) = (self.mail.clone(), Arc::clone(&self.waits));
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            let opened = async {
                let connection = client.consuming().connection().await?;
                // Queues may have been deleted, or lost with their broker, in the meantime.
                waits.note(&client.examine(&plan, mode).await?);
                let mut session = Session::open(connection, queue, id).await?;
                session.start(1).await?;
                Ok(session)
            };
            let _ = mail.send(Mail::Session(Box::new(opened.await)));
        });
    }

    pub(super) async fn receive(&mut self, mail: Mail) {
        match mail {
            Mail::Copied(token, result) => self.copied(token, result),
            Mail::Session(opened) => match *opened {
                Ok(session) if self.drain_until.is_some() => session.close().await,
                Ok(session) => {
                    self.session = Some(session);
                    self.intake = Intake::Narrow;
                    self.counters.reconnects.inc();
                    let queue = self.queue();
                    self.options.listener.tell(|| Event::Reconnected { queue });
                }
                Err(error) if error.kind() == ErrorKind::Closed => {
                    self.drain_until.get_or_insert_with(Instant::now);
                    self.inbox.close();
                    self.inbox.end();
                }
                Err(error) => {
                    error!(queue = %self.name, %error, "cannot consume; trying again");
                    self.open_session(if error.is_transient() {
                        FIRST_PAUSE * 5
                    } else {
                        LONGEST_PAUSE
                    });
                }
            },
        }
    }
}
