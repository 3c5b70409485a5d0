//! A model of RabbitMQ 3.10, 4.0 and 4.3: one value, without a clock, a thread or a socket.
//!
//! ```text
//!            client                                     Broker
//!   connect() ─────────────────────────────────►  a ConnectionId
//!   send(connection, channel, Method) ─────────►  happens at once, at virtual time now()
//!                                                   │ frames go into one queue per connection, in order
//!   receive(connection) ◄───────────────────────────┤ Deliver, Confirm, Return, CloseChannel …
//!   cut(connection) ───────────────────────────►  the network lost it, and the broker has noticed
//!
//!            time                                       what takes time
//!   next_event_at() ◄───────────────────────────  confirms, dead letters, expiry, leases, timeouts
//!   advance(to) ───────────────────────────────►  all that is due by then happens, in order
//!
//!            operators and accidents                    how long, and what is lost
//!   set_policy, delete_queue, purge_queue,         a Chance decides: Prompt (at once, nothing),
//!   close_connection, close_channel, set_alarm,    Seeded (up to a time, from a seed), or one's own
//!   kill, stop, start …
//! ```
//!
//! A simulation owns the network: it calls [`Broker::send`] when a frame of a client arrives, and [`Broker::receive`] when
//! it lets one through. So it can cut a connection between any two frames: it takes as many as it likes and calls
//! [`Broker::cut`]; the rest is lost, as it is in a socket. A frame that the client has written and that should not
//! arrive is just not sent.
//!
//! What the broker does follows `docs/broker-facts.md`; `tests/conformance` runs random programs on the model and on the
//! real brokers and compares what clients see.
//!
//! ```
//! use retryrmq_model::{Broker, Consume, Declare, Frame, Method, Profile, Prompt, Publish, QueueType, Version};
//!
//! let mut broker = Broker::new(Profile::new(Version::V4_3), Prompt);
//! let client = broker.connect().expect("it runs");
//! broker.send(client, 1, Method::OpenChannel);
//! broker.send(client, 1, Method::Declare(Box::new(Declare::durable("orders", QueueType::Quorum))));
//! broker.send(client, 1, Method::Publish(Box::new(Publish::to_queue("orders", *b"1"))));
//! broker.send(client, 1, Method::Consume(Consume::new("orders", "handler")));
//! let frames: Vec<_> = std::iter::from_fn(|| broker.receive(client)).collect();
//! assert!(matches!(&frames[3], (1, Frame::Deliver(delivery)) if &*delivery.body == b"1"));
//! ```
//!
//! Not modelled: exchanges other than direct and fanout, priorities of messages in classic queues, how quorum queues of 4.x
//! mix the two that they know (what has a priority of 5 or more goes first here), priorities of consumers, streams, clusters,
//! transactions, `basic.qos` for a whole channel, `x-max-length-bytes`, permissions, consumers of a queue that is gone
//! but for its cancel, the server's naming of queues and consumers.

mod broker;
mod connection;
mod death;
mod declaration;
mod event_queue;
mod frame;
mod message;
mod method;
mod nondeterminism;
mod profile;
mod queue;
mod settings;
mod size;

pub use broker::{Broker, QueueView};
pub use connection::ConnectionId;
pub use frame::{Delivery, Frame, Refusal, Returned};
pub use lapin;
pub use message::MessageId;
pub use method::{Consume, Declare, Method, Publish};
pub use nondeterminism::{Delay, Nondeterminism, Prompt, Seeded, UnknownOutcome};
pub use profile::{Profile, Version};
pub use settings::{Policy, QueueType};

/// The name of a queue, an exchange, a consumer, or a routing key.
pub type Name = std::sync::Arc<str>;
