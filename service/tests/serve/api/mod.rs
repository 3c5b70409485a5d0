//! The API for programs, by HTTP, on real brokers. Every answer is compared with the description that the service gives of itself.

mod acting;
mod program;
mod reading;
mod refusing;
mod schema;

use program::Program;
