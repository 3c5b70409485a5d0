//! Sources: who says how the queues are.

mod amqp;
mod management;
mod prometheus;

pub(super) use self::{amqp::ask, management::list, prometheus::Prometheus};
