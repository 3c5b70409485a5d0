//! Dead-lettering for a queue whose consumers have no library: a policy for that queue alone, which keeps every key of the one in force.
//!
//! RabbitMQ applies one policy to a queue, so a second one would hide the first. What was done is remembered in the policy's name, because
//! RabbitMQ takes no key that it does not know: a fingerprint of the policy as it was made, and one of what it was made from.

mod plan;
mod policy_name;

pub use plan::{
    DeadLetterRoute, DeadLetterTarget, Obstacle, PolicyChange, PolicyPlan, base_of, plan,
    policy_for, policy_for_waiting,
};
pub use policy_name::PolicyName;
