//! The connections to the broker. Everything in which the AMQP client would lose, mix up, hang or crash is kept in this module.

mod address;
mod addresses;
mod amqp10;
mod begun;
mod capabilities;
mod census;
mod channel;
mod chunk;
mod companions;
mod discretion;
mod kind;
mod limits;
mod line;
mod link;
mod login;
mod looks;
mod open;
mod opening;
mod parting;
mod patience;
mod places;
mod pulse;
mod refusal;
mod renewal;
mod sanitiser;
mod server;
mod survival;
mod tls;
mod transport;

pub use address::Address;
pub use addresses::Addresses;
pub use login::{Credentials, Login};
pub use refusal::{permission_for, permission_pattern};
pub use server::Server;

pub(crate) use amqp10::Session10;
pub(crate) use begun::Begun;
pub(crate) use census::{Census, Count, is_doubtful, leaderless};
pub(crate) use channel::{
    LINGER, OpenChannel, ask, is_one_channel_too_many, is_out_of_channels, look,
};
pub(crate) use chunk::put_off;
pub(crate) use kind::{Kind, kind_of};
#[cfg(test)]
pub(crate) use limits::header_room;
pub(crate) use limits::{Limits, USUAL_HEADER_ROOM};
pub(crate) use link::{Bell, Keeping, Link};
pub(crate) use looks::Looks;
pub(crate) use open::Connection;
pub(crate) use parting::Parting;
#[cfg(test)]
pub(crate) use parting::{PATIENCE as PARTING_PATIENCE, QUIET as PARTING_QUIET};
pub(crate) use patience::{ANSWER, FIRST_PAUSE, GOODBYE, LONGEST_PAUSE};
pub(crate) use refusal::{
    Doing, broker_says, can_be_said_to_be_missing, consumer_timeout, is_internal_error, is_locked,
    is_one_consumer_too_many, refusal, size_limit,
};
pub(crate) use survival::survives;
