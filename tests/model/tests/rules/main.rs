//! Rules of the model that random programs on real brokers do not reach, because brokers would have to be killed, filled
//! or waited for. Each is a fact of `docs/broker-facts.md`, whose number is given.

mod deaths;
mod fixture;
mod kills;
mod patience;
mod refusals;
mod unseen;
