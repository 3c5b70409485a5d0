//! Checks at compile time what may cross, and be shared between, threads.

use crate::{
    Addresses, Attempt, Client, ClientOptions, Consumer, Credentials, Decision, Error, Event,
    Failed, Judge, Message, Messages, Parked, Plan, Publish, Record, Retrier, Rules, Running,
    Signal, Simulation, Stats, Subscription,
};

const fn is_send_and_sync<T: Send + Sync + 'static>() {}
const fn is_send<T: Send + 'static>() {}

const _: () = {
    is_send_and_sync::<Addresses>();
    is_send_and_sync::<Attempt>();
    is_send_and_sync::<Client>();
    is_send_and_sync::<ClientOptions>();
    is_send_and_sync::<Consumer>();
    is_send_and_sync::<Credentials>();
    is_send_and_sync::<Decision>();
    is_send_and_sync::<Error>();
    is_send_and_sync::<Event>();
    is_send_and_sync::<Failed>();
    is_send_and_sync::<Judge>();
    is_send_and_sync::<Message>();
    is_send_and_sync::<Messages>();
    is_send_and_sync::<Parked>();
    is_send_and_sync::<Plan>();
    is_send_and_sync::<Publish>();
    is_send_and_sync::<Record>();
    is_send_and_sync::<Retrier>();
    is_send_and_sync::<Running>();
    is_send_and_sync::<Rules>();
    is_send_and_sync::<Signal>();
    is_send_and_sync::<Stats>();
    is_send_and_sync::<Subscription>();
    // It belongs to one test, which may move it.
    is_send::<Simulation>();
};
