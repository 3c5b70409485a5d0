//! The store in Redis, on real servers: Valkey and Redis, which the tests start themselves (`tests/redis/redis`).

mod broker;
mod claiming;
mod cluster;
mod crashing;
mod message_drafts;
mod storing;
mod listing;
mod measuring;
mod power_loss;
mod unsafe_servers;
mod server;
mod dispatching;
mod tls;
