//! What an operator of RabbitMQ needs beside AMQP: bodies decoded, dead letters of other libraries read, the management API
//! asked. The command and the service share it; the library does without.

pub mod condition;
pub mod configuration;
pub mod decoding;
pub mod dlx_policy;
pub mod doctor;
pub mod http_server;
pub mod management;
pub mod note;
pub mod other_libraries;
pub mod plural;
pub mod rough_duration;
pub mod tls;
pub mod webhook_signature;
