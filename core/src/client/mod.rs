//! The connection to the broker: everything in which the AMQP client would lose, mix up, hang or crash stays in here.

mod address;
mod begun;
mod chunk;
mod connection;
mod link;
mod refusal;
mod runtime;
mod sanitiser;
mod session;
mod tls;
mod transport;

pub use address::Address;
pub use connection::Server;
pub use runtime::runtime;
pub use session::{Client, ClientOptions};

pub(crate) use begun::Begun;
pub(crate) use chunk::put_off;
pub(crate) use connection::{ANSWER, Connection, OpenChannel, ask};
pub(crate) use link::Link;
pub(crate) use refusal::{Doing, refusal};
