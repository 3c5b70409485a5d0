//! Each setting is a test, so that a failure names it.
#![allow(missing_docs)]

mod everything;
mod limits;
mod nodes;
mod parking;
mod types;
mod waiting;
mod work;

use retryrmq_strange::Setting;
use serde_json::Value;

/// Who sets a policy: a user ([`Setting::policy`]) or an operator ([`Setting::operator_policy`]).
pub(crate) type By = fn(&'static str, Value) -> Setting;

/// A test for a policy of a user, and one for that of an operator.
macro_rules! by_both {
    ($($name:ident),+ $(,)?) => {$(
        mod $name {
            use super::$name;
            use retryrmq_strange::{Setting, check};

            #[tokio::test]
            async fn of_a_user() {
                check(|cell| $name(Setting::policy, cell)).await;
            }

            #[tokio::test]
            async fn of_an_operator() {
                check(|cell| $name(Setting::operator_policy, cell)).await;
            }
        }
    )+};
}
pub(crate) use by_both;
