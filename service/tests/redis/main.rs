//! The store in Redis, on real servers: Valkey and Redis, which the tests start themselves (`tests/redis/redis`).

mod broker;
mod claiming;
mod cluster;
mod crashing;
mod dispatching;
mod listing;
mod measuring;
mod message_drafts;
mod power_loss;
mod server;
mod storing;
mod tls;
mod unsafe_servers;
