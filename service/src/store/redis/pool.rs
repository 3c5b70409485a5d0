//! Connections that are taken one at a time, and made anew when they have failed.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use redis::{Cmd, Pipeline, Value};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::{
    configuration::Configuration, connection::Connection, failure, reply::Reply, slot_lookup,
};
use crate::store::{Error, Result};

pub(super) struct Pool {
    configuration: Configuration,
    /// One of our keys: it names our slot.
    key: String,
    room: Semaphore,
    idle: Mutex<Vec<Connection>>,
    /// How often what was proven has been forgotten.
    forgotten: AtomicU64,
}

impl Pool {
    pub(super) fn new(configuration: &Configuration, key: &str, connections: usize) -> Self {
        Self {
            configuration: configuration.clone(),
            key: key.to_owned(),
            room: Semaphore::new(connections),
            idle: Mutex::default(),
            forgotten: AtomicU64::default(),
        }
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends commands in one go, on a connection that nobody else uses meanwhile. It goes back only if all is well with it: whoever
    /// gives up half-way leaves none behind, and one that the server has disowned is not used again.
    ///
    /// `repeatable` commands are sent again when it shows that a connection was closed while it lay idle.
    pub(super) async fn ask_all(
        &self,
        commands: &Pipeline,
        repeatable: bool,
    ) -> Result<(String, Vec<Value>)> {
        let _room = self.room().await?;
        let since = self.forgotten.load(Ordering::Relaxed);
        let idle = self.idle().pop();
        if let Some(connection) = idle {
            match connection.ask_all(commands).await {
                Ok(answers) => match self.judged(connection, answers, since) {
                    // It is not the master of our slot any more, and has done nothing.
                    Err(Error::Away(_)) => {}
                    judged => return judged,
                },
                Err(lost) => {
                    // The others go to the same server, and it may be another now.
                    self.idle().clear();
                    if !(repeatable && lost.closed) {
                        return Err(lost.error);
                    }
                }
            }
        }
        let connection = slot_lookup::reach(&self.configuration, &self.key).await?;
        let answers = connection.ask_all(commands).await;
        let answers = answers.map_err(|lost| lost.error)?;
        self.judged(connection, answers, since)
    }

    /// The answers, or what the server refuses. The connection goes back unless it was taken before its settings were forgotten.
    fn judged(
        &self,
        connection: Connection,
        answers: Vec<Value>,
        since: u64,
    ) -> Result<(String, Vec<Value>)> {
        let address = connection.address().to_owned();
        let refused = answers.iter().find_map(|answer| match answer {
            Value::ServerError(why) => Some(failure::refused(&address, why)),
            _ => None,
        });
        match refused {
            None => {
                self.give_back(connection, since);
                Ok((address, answers))
            }
            Some(why) => {
                if matches!(why, Error::Full(_) | Error::NotDurable(_)) {
                    self.give_back(connection, since);
                } else {
                    self.idle().clear();
                }
                Err(why)
            }
        }
    }

    /// Makes sure again that the server is set up safely: somebody may have changed that since we connected.
    pub(super) async fn prove(&self) -> Result<()> {
        let _room = self.room().await?;
        let idle = self.idle().pop();
        let proven = match idle {
            Some(connection) => match connection.prove(&self.configuration).await {
                Ok(()) => Ok(connection),
                Err(Error::Away(_)) => slot_lookup::reach(&self.configuration, &self.key).await,
                Err(why) => Err(why),
            },
            None => slot_lookup::reach(&self.configuration, &self.key).await,
        };
        match proven {
            Ok(connection) => {
                self.idle().push(connection);
                Ok(())
            }
            Err(why) => {
                self.idle().clear();
                Err(why)
            }
        }
    }

    fn give_back(&self, connection: Connection, since: u64) {
        let mut idle = self.idle();
        if self.forgotten.load(Ordering::Relaxed) == since {
            idle.push(connection);
        }
    }

    /// Every connection is made anew, which proves the settings, before anything further is sent: those that lie idle are closed, those in
    /// use when they come back.
    pub(super) fn forget(&self) {
        let mut idle = self.idle();
        self.forgotten.fetch_add(1, Ordering::Relaxed);
        idle.clear();
    }

    async fn room(&self) -> Result<SemaphorePermit<'_>> {
        let room = self.room.acquire().await;
        room.map_err(|_| Error::Away("the store is closed".to_owned()))
    }

    pub(super) async fn ask(&self, command: Cmd, repeatable: bool) -> Result<Reply> {
        let mut commands = Pipeline::new();
        commands.add_command(command);
        let (address, answers) = self.ask_all(&commands, repeatable).await?;
        match answers.into_iter().next() {
            Some(answer) => Reply::new(&address, answer),
            None => Err(failure::unexpected(&address)),
        }
    }
}
