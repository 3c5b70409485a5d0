//! Checks at compile time what may cross, and be shared between, threads.

use crate::{
    Addresses, Attempt, Browse, Client, ClientOptions, Consumer, Credentials, Decision, Delivery,
    EraseWalk, Error, ErrorClassifier, Event, FailedMessage, FakeClient, Message, Messages,
    Outcome, Parked, Plan, Policy, Publish, Published, Record, Resend, Retrier, Rule, Rules,
    RunningConsumer, Server, Signal, Simulation, Stats, StreamReader, Subscription, Token, Trial,
    Waiting, WaitingWalk,
};

const fn is_send_and_sync<T: Send + Sync + 'static>() {}
const fn is_send<T: Send + 'static>() {}

const _: () = {
    is_send_and_sync::<Addresses>();
    is_send_and_sync::<Attempt>();
    is_send_and_sync::<Browse>();
    is_send_and_sync::<Client>();
    is_send_and_sync::<ClientOptions>();
    is_send_and_sync::<Consumer>();
    is_send_and_sync::<Credentials>();
    is_send_and_sync::<Decision>();
    is_send_and_sync::<Delivery>();
    is_send_and_sync::<EraseWalk>();
    is_send_and_sync::<Error>();
    is_send_and_sync::<Event>();
    is_send_and_sync::<FailedMessage>();
    is_send_and_sync::<FakeClient>();
    is_send_and_sync::<ErrorClassifier>();
    is_send_and_sync::<WaitingWalk>();
    is_send_and_sync::<Message>();
    is_send_and_sync::<Messages>();
    is_send_and_sync::<Outcome>();
    is_send_and_sync::<Parked>();
    is_send_and_sync::<Plan>();
    is_send_and_sync::<Policy>();
    is_send_and_sync::<Publish>();
    is_send_and_sync::<Published>();
    is_send_and_sync::<Record>();
    is_send_and_sync::<Resend>();
    is_send_and_sync::<Retrier>();
    is_send_and_sync::<Rule>();
    is_send_and_sync::<Rules>();
    is_send_and_sync::<RunningConsumer>();
    is_send_and_sync::<Server>();
    is_send_and_sync::<Signal>();
    is_send_and_sync::<Stats>();
    is_send_and_sync::<Subscription>();
    is_send_and_sync::<Token>();
    is_send_and_sync::<Trial>();
    is_send_and_sync::<Waiting>();
    // Each belongs to one task, which may move.
    is_send::<Simulation>();
    is_send::<StreamReader>();
};
