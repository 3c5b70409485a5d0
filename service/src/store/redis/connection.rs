//! A connection to one server. It is never re-made by itself: `WAITAOF` says something about the writes of its own connection only, so
//! what was written on one that broke has to be written again.

use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, IntoConnectionInfo, Pipeline,
    ProtocolVersion, RedisConnectionInfo, Value, aio::MultiplexedConnection,
};

use super::{certificates, configuration::Configuration, failure, server_check};
use crate::store::{Error, Result};

/// Whom to log in at.
#[derive(Clone, Copy)]
pub(super) enum RedisLogin {
    Server,
    Sentinel,
}

/// An open connection.
pub(super) struct Connection {
    open: MultiplexedConnection,
    address: String,
}

/// A connection is of no more use.
pub(super) struct ConnectionLost {
    pub(super) error: Error,
    /// It was closed, rather than that nothing came in time.
    pub(super) closed: bool,
}

/// Connects and logs in.
pub(super) async fn open(
    configuration: &Configuration,
    host: &str,
    port: u16,
    login: RedisLogin,
) -> Result<Connection> {
    let address = if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    };
    let plain = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP2);
    let time_limit = configuration.timeout;
    let settings = match login {
        RedisLogin::Server => {
            let plain = plain.set_db(configuration.database.into());
            configuration.secret().login(plain, time_limit).await?
        }
        RedisLogin::Sentinel => {
            let secret = configuration.sentinel_secret();
            secret.login(plain, time_limit).await?
        }
    };
    let client = match &configuration.tls {
        None => ConnectionAddr::Tcp(host.to_owned(), port)
            .into_connection_info()
            .and_then(|to| Client::open(to.set_redis_settings(settings))),
        Some(tls) => {
            let certificates = certificates::read(tls, time_limit).await?;
            // Another user of rustls in this process may have chosen one.
            let _ = rustls::crypto::ring::default_provider().install_default();
            ConnectionAddr::TcpTls {
                host: host.to_owned(),
                port,
                insecure: false,
                tls_params: None,
            }
            .into_connection_info()
            .and_then(|to| Client::build_with_tls(to.set_redis_settings(settings), certificates))
        }
    }
    .map_err(|why| failure::connecting(&address, &why))?;
    // `WAITAOF` and `WAIT` may each take as long as they are told to.
    let answers = configuration.timeout * 3;
    let settings = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(configuration.timeout))
        .set_response_timeout(Some(answers));
    let connecting = client.get_multiplexed_async_connection_with_config(&settings);
    // Of its own, because the library's covers less than all that connecting takes.
    let open = tokio::time::timeout(answers, connecting)
        .await
        .map_err(|_| Error::Away(format!("Redis at {address} does not answer")))?
        .map_err(|why| failure::connecting(&address, &why))?;
    Ok(Connection { open, address })
}

impl Connection {
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Sends commands in one go and returns their answers; an error of one does not hide the others'.
    ///
    /// # Errors
    /// The connection is of no more use.
    pub(super) async fn ask_all(
        &self,
        commands: &Pipeline,
    ) -> std::result::Result<Vec<Value>, ConnectionLost> {
        let count = commands.len();
        let answers = self
            .open
            .clone()
            .send_packed_commands(commands, 0, count)
            .await
            .map_err(|why| ConnectionLost {
                error: failure::lost(&self.address, &why),
                closed: why.is_connection_dropped(),
            })?;
        if answers.len() == count {
            Ok(answers)
        } else {
            Err(ConnectionLost {
                error: failure::unexpected(&self.address),
                closed: false,
            })
        }
    }

    /// Sends one command.
    pub(super) async fn ask(&self, command: Cmd) -> Result<Value> {
        let mut commands = Pipeline::new();
        commands.add_command(command);
        let answers = self.ask_all(&commands).await;
        let answers = answers.map_err(|lost| lost.error)?;
        match answers.into_iter().next() {
            Some(Value::ServerError(why)) => Err(failure::refused(&self.address, &why)),
            Some(value) => Ok(value),
            None => Err(failure::unexpected(&self.address)),
        }
    }

    /// Makes sure that the server is a master that loses nothing.
    pub(super) async fn prove(&self, configuration: &Configuration) -> Result<()> {
        let answers = self.ask_all(&server_check::questions()).await;
        let answers = answers.map_err(|lost| lost.error)?;
        server_check::check(configuration, &self.address, answers)
    }
}
