//! A short connection to the same broker that speaks AMQP 1.0, which RabbitMQ 4.0 and later serve on the same port.

use super::{
    Addresses, Connection,
    timeouts::ANSWER,
    transport::{self, Socket},
};
use crate::{
    Error, ErrorKind, Result,
    amqp10::{Sasl, Session},
};

/// A session of AMQP 1.0 on a socket of its own.
pub(crate) type Session10 = Session<Socket>;

impl Connection {
    /// Opens a session of AMQP 1.0 with the broker that this connection leads to, or led to.
    ///
    /// # Errors
    /// Those of connecting; [`ErrorKind::Broker`] if it speaks no AMQP 1.0.
    pub(crate) async fn amqp10(&self, addresses: &Addresses) -> Result<Session10> {
        let (address, place) = &*self.at;
        let login = addresses.login(address).await?;
        let (socket, _) = transport::dial(address, *place, ANSWER).await?;
        let sasl = if address.external {
            Sasl::External
        } else {
            Sasl::Plain {
                user: login.user.clone(),
                secret: login.secret.clone(),
            }
        };
        let session = Session::begin(socket, &sasl, &address.host, &address.vhost).await;
        session.map_err(|why| {
            Error::new(
                ErrorKind::Broker,
                format!(
                    "{} gives no session of AMQP 1.0: {why}",
                    address.authority()
                ),
            )
        })
    }
}
