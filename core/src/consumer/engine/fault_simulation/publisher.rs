//! Publishers: they reuse ids, forge headers, use delays, and trust only confirms.

use std::time::Duration;

use retryrmq_model::{ConnectionId, Frame, Method, Publish, QueueType};

use super::{QUEUE, Simulation, Unreadable, ledger::HandlerScript};
use crate::{
    BasicProperties, Strategy,
    topology::SAFE_AGE,
    types::{AMQPValue, FieldTable},
};

/// The largest body.
pub(super) const LARGEST_BODY: u64 = 3_000;

/// The body of a message: mostly small ones, and sometimes one that takes all the room.
pub(super) fn body(number: u32) -> Vec<u8> {
    let length = match number % 11 {
        0 => LARGEST_BODY as usize,
        _ => [10, 50, 200, 900][number as usize % 4],
    };
    vec![b'x'; length]
}

impl Simulation {
    pub(super) fn publish(&mut self) {
        self.next_publish = self.now + Duration::from_millis(self.random.u64(0..800));
        let connection = match self.publisher.filter(|id| self.broker.is_open(*id)) {
            Some(connection) => connection,
            None => {
                // Nobody knows whether those were stored: their publisher publishes them again, or gives up.
                self.give_up_unconfirmed();
                let Some(connection) = self.broker.connect() else {
                    return;
                };
                self.broker.send(connection, 1, Method::OpenChannel);
                self.broker.send(connection, 1, Method::SelectConfirms);
                self.publisher = Some(connection);
                self.publishes = 0;
                connection
            }
        };
        self.published += 1;
        let number = self.published;
        let kind = if self.setting.hangs && number == 1 {
            HandlerScript::Hangs
        } else {
            HandlerScript::choose(&mut self.random, &self.setting)
        };
        self.ledger.published(number, kind);
        self.note(|| format!("message {number} is published: {kind:?}"));
        let mut headers = FieldTable::default();
        headers.insert("number".into(), AMQPValue::LongLongInt(number.into()));
        if let HandlerScript::Forged(crashes) = kind {
            headers.insert("x-retry-crashes".into(), AMQPValue::LongLongInt(crashes));
        }
        // A forged delivery count is believed if deaths are counted; it parks the message that has it.
        if matches!(kind, HandlerScript::Fine | HandlerScript::Slow)
            && self.setting.strategy == Strategy::RetryQueues
            && self.random.u8(0..6) == 0
        {
            forge(&mut self.random, &mut headers);
        }
        // A classic queue passes on whatever count the message has. It must not be taken for a real count: a poison message would never
        // end.
        if self.setting.work == QueueType::Classic
            && self.setting.strategy == Strategy::RetryQueues
            && self.random.u8(0..3) == 0
        {
            let (name, count) = [
                ("x-delivery-count", 1),
                ("x-delivery-count", 2),
                ("x-acquired-count", 1),
            ][self.random.usize(..3)];
            headers.insert(name.into(), AMQPValue::LongLongInt(count));
        }
        // A look cannot get past these. Handlers can, and their copies have it too.
        if self.setting.unreadable == Some(Unreadable::Hidden)
            && kind != HandlerScript::Unreadable
            && self.random.u8(0..6) == 0
        {
            headers.insert("x-null".into(), AMQPValue::Void);
        }
        let mut properties = BasicProperties::default()
            .with_delivery_mode(2)
            .with_headers(headers);
        let mut is_alike = false;
        match self.random.u8(0..3) {
            0 => is_alike = self.random.bool(),
            // Publishers reuse ids.
            1 => properties = properties.with_message_id("the same".into()),
            _ => properties = properties.with_message_id(number.to_string().into()),
        }
        if self.setting.priorities && self.random.u8(0..4) == 0 {
            properties = properties.with_priority(9);
        }
        let to = self.queue_for_a_delay().unwrap_or_else(|| QUEUE.into());
        let mut message = Publish::to_queue(&to, body(number)).with(properties);
        message.unreadable = kind == HandlerScript::Unreadable;
        // Without an id, two messages can be completely equal, and are still two messages.
        if is_alike {
            self.note(|| format!("another {number} is published"));
            self.ledger.published_alike(number);
            self.send(connection, number, message.clone());
        }
        // An equal one may also come long after the first, when that is settled. With an id it would be the same message.
        match &self.published_before {
            Some((number, equal)) if self.random.u8(0..4) == 0 => {
                let (number, equal) = (*number, equal.clone());
                self.note(|| format!("another {number} is published, later"));
                self.ledger.published_alike(number);
                self.send(connection, number, equal);
            }
            _ if kind == HandlerScript::Fine
                && !self.setting.suspects
                && message.properties.message_id().is_none() =>
            {
                self.published_before = Some((number, message.clone()))
            }
            _ => {}
        }
        self.send(connection, number, message);
    }

    fn send(&mut self, connection: ConnectionId, number: u32, message: Publish) {
        let method = Method::Publish(Box::new(message));
        self.broker.send(connection, 1, method);
        self.publishes += 1;
        self.unconfirmed.insert(self.publishes, number);
    }

    fn give_up_unconfirmed(&mut self) {
        for (_, number) in std::mem::take(&mut self.unconfirmed) {
            self.ledger.doubtful(number);
        }
    }

    pub(super) fn publisher_hears(&mut self) {
        let Some(connection) = self.publisher else {
            return;
        };
        let mut came_back = false;
        while let Some((_, frame)) = self.broker.receive(connection) {
            if matches!(frame, Frame::Return(_)) {
                came_back = true;
            }
            if let Frame::Confirm { publish, stored } = frame
                && let Some(number) = self.unconfirmed.remove(&publish)
            {
                if stored && !std::mem::take(&mut came_back) {
                    self.ledger.confirmed(number);
                } else {
                    self.ledger.doubtful(number);
                }
            }
        }
        if !self.broker.is_open(connection) {
            self.give_up_unconfirmed();
            self.publisher = None;
        }
    }

    /// A waiting queue, for a message that is published with a delay.
    fn queue_for_a_delay(&mut self) -> Option<String> {
        if self.random.u8(0..6) > 0 {
            return None;
        }
        let queue = format!("{QUEUE}.retry.{}", [100, 1_000][self.random.usize(..2)]);
        let view = self.broker.queue_view(&queue)?;
        (view.created + SAFE_AGE <= self.now).then_some(queue)
    }
}

/// Headers that have a meaning to us, with values that no client of ours has written.
fn forge(random: &mut fastrand::Rng, headers: &mut FieldTable) {
    let (name, value) = match random.u8(0..6) {
        0 => ("x-retry-count", AMQPValue::LongLongInt(-3)),
        1 => ("x-retry-count", AMQPValue::LongString("many".into())),
        2 => ("x-retry-crashes", AMQPValue::Boolean(true)),
        3 => ("x-delivery-count", AMQPValue::LongLongInt(77)),
        4 => ("x-death", AMQPValue::LongString("yesterday".into())),
        _ => ("x-retry-deferrals", AMQPValue::LongLongInt(i64::MAX)),
    };
    headers.insert(name.into(), value);
}
