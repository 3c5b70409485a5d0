//! The store in Redis, on real servers: Valkey and Redis, which the tests start themselves (`tests/redis/redis`).

mod broker;
mod claiming;
mod cluster;
mod crashing;
mod drafts;
mod keeping;
mod looking;
mod measuring;
mod power;
mod refusing;
mod server;
mod ticking;
mod tls;
