//! Parked messages.

use napi::Env;
use napi_derive::napi;
use retryrmq_bindings::json_rows;

use crate::{
    errors::Result,
    message::{Batch, alone},
    notification_queue::NotificationQueue,
    notifier::Answer,
    object_count::{LiveObject, ObjectKind},
    operation::begin,
};

/// One walk through the messages parked for a queue.
#[napi]
pub struct Walk {
    inner: retryrmq_bindings::Walk,
    _alive: LiveObject,
}

impl Walk {
    pub(crate) fn new(browse: retryrmq::Browse) -> Self {
        Self {
            inner: retryrmq_bindings::Walk::new(browse),
            _alive: LiveObject::new(ObjectKind::Walk),
        }
    }
}

#[napi]
impl Walk {
    /// The next `Record`; nothing at the end.
    #[napi(catch_unwind)]
    pub fn next(&self, notifications: &NotificationQueue, ticket: f64) -> Result<()> {
        begin(
            &notifications.notifier,
            ticket,
            self.inner.next(),
            |record| record.map_or(Answer::Nothing, |record| Answer::Record(Box::new(record))),
        )
    }

    /// Replays a record to the tail of its own queue.
    #[napi(catch_unwind)]
    pub fn replay(
        &self,
        notifications: &NotificationQueue,
        ticket: f64,
        record: &Record,
    ) -> Result<()> {
        self.replay_to(notifications, ticket, record, record.inner.home.clone())
    }

    /// Replays a record to the tail of this queue.
    #[napi(catch_unwind)]
    pub fn replay_to(
        &self,
        notifications: &NotificationQueue,
        ticket: f64,
        record: &Record,
        queue: String,
    ) -> Result<()> {
        let replaying = self.inner.replay_to(record.inner.clone(), queue);
        begin(&notifications.notifier, ticket, replaying, |()| {
            Answer::Nothing
        })
    }

    /// Drops a record for good.
    #[napi(catch_unwind)]
    pub fn drop(
        &self,
        notifications: &NotificationQueue,
        ticket: f64,
        record: &Record,
    ) -> Result<()> {
        let dropping = self.inner.drop(record.inner.clone());
        begin(&notifications.notifier, ticket, dropping, |()| {
            Answer::Nothing
        })
    }

    /// Ends the walk.
    #[napi(catch_unwind)]
    pub fn close(&self, notifications: &NotificationQueue, ticket: f64) -> Result<()> {
        begin(&notifications.notifier, ticket, self.inner.close(), |()| {
            Answer::Nothing
        })
    }

    /// How many messages were ready when the walk began and were not shown yet.
    #[napi(getter, catch_unwind)]
    pub fn remaining(&self) -> u32 {
        self.inner.remaining()
    }

    /// How many other consumers the parking queue had when the walk began.
    #[napi(getter, catch_unwind)]
    pub fn others(&self) -> u32 {
        self.inner.others()
    }

    /// How many messages others took before this walk came to them.
    #[napi(getter, catch_unwind)]
    pub fn missed(&self) -> u32 {
        self.inner.missed()
    }

    /// What is wrong with the parking queue.
    #[napi(getter, catch_unwind)]
    pub fn warning(&self) -> Option<String> {
        self.inner.warning().map(str::to_owned)
    }
}

/// The record of a parked message.
#[napi]
pub struct Record {
    inner: retryrmq::Record,
    _alive: LiveObject,
}

impl Record {
    pub(crate) fn new(inner: retryrmq::Record) -> Self {
        Self {
            inner,
            _alive: LiveObject::new(ObjectKind::Record),
        }
    }
}

#[napi]
impl Record {
    /// The message itself.
    #[napi(catch_unwind)]
    pub fn message<'env>(&self, env: &'env Env) -> Result<Batch<'env>> {
        alone(env, &self.inner.message())
    }

    /// What is known of it, as a row.
    #[napi(catch_unwind)]
    pub fn row(&self) -> String {
        json_rows::record(&self.inner)
    }
}
