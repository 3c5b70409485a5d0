//! Connections that are taken one at a time, and made anew when they have failed.

use std::sync::{Mutex, PoisonError};

use redis::{Cmd, Pipeline, Value};
use tokio::sync::Semaphore;

use super::{configuration::Configuration, fault, fitness, place, reply::Reply, connection::Connection};
use crate::store::{Error, Result};

pub(super) struct Pool {
    configuration: Configuration,
    room: Semaphore,
    idle: Mutex<Vec<Connection>>,
}

impl Pool {
    pub(super) fn new(configuration: &Configuration, connections: usize) -> Self {
        Self {
            configuration: configuration.clone(),
            room: Semaphore::new(connections),
            idle: Mutex::default(),
        }
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends commands in one go, on a connection that nobody else uses meanwhile. It goes back only if all is well with it: whoever
    /// gives up half-way leaves none behind, and one that the server has disowned is not used again.
    pub(super) async fn ask_all(&self, commands: &Pipeline) -> Result<(String, Vec<Value>)> {
        let _room = self
            .room
            .acquire()
            .await
            .map_err(|_| Error::Away("the store is closed".to_owned()))?;
        let idle = self.idle().pop();
        let connection = match idle {
            Some(connection) => connection,
            None => place::reach(&self.configuration).await?,
        };
        let answers = match connection.ask_all(commands).await {
            Ok(answers) => answers,
            Err(why) => {
                // The others go to the same server, and it may be another now.
                self.idle().clear();
                return Err(why);
            }
        };
        let address = connection.address().to_owned();
        for answer in &answers {
            if let Value::ServerError(why) = answer {
                let why = fault::refused(&address, why);
                if matches!(why, Error::Full(_) | Error::NotDurable(_)) {
                    self.idle().push(connection);
                } else {
                    self.idle().clear();
                }
                return Err(why);
            }
        }
        self.idle().push(connection);
        Ok((address, answers))
    }

    /// Makes sure again that the server is set up safely: somebody may have changed that since we connected.
    pub(super) async fn prove(&self) -> Result<()> {
        let mut asked = redis::cmd("INFO");
        asked.arg(&fitness::SECTIONS);
        let reply = self.ask(asked).await?;
        let judged = reply.info();
        if judged.is_err() {
            self.idle().clear();
        }
        judged
    }

    pub(super) async fn ask(&self, command: Cmd) -> Result<Reply> {
        let mut commands = Pipeline::new();
        commands.add_command(command);
        let (address, answers) = self.ask_all(&commands).await?;
        match answers.into_iter().next() {
            Some(answer) => Reply::new(&address, answer),
            None => Err(fault::unexpected(&address)),
        }
    }
}
