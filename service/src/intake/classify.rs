//! Whether a message in the intake has really died, and where: a pure function of its delivery.

use retryrmq::{FailedMessage, Handover, Message, XDeath, types::FieldTable, work_queue_of};

use crate::queue_names::{
    DEAD_EXCHANGE, DELAYED_QUEUE, HANDOVER_QUEUE, INTAKE_PARKED, INTAKE_QUEUE, REPORTS_QUEUE,
    STATE_QUEUE,
};

/// What a message in the intake is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Classified {
    /// It died in a work queue.
    Dead(XDeath),
    /// It left a queue in which services tell each other of alerts. These let go on purpose of what is old.
    LetGo(XDeath),
    /// It belongs to no work queue; a sentence says why.
    Unroutable(String),
}

/// Judges a message by the exchange that the broker says it came through, and by its newest death. Both are the broker's word: nobody can
/// publish to an internal exchange, and the newest death is written by the queue that the message left.
pub(super) fn classify(delivery_exchange: &str, headers: Option<&FieldTable>) -> Classified {
    if delivery_exchange != DEAD_EXCHANGE {
        return Classified::Unroutable(format!(
            "it was published straight into {INTAKE_QUEUE}, and died in no queue: let a queue dead-letter to the exchange \
             {DEAD_EXCHANGE} (`retryrmq enable QUEUE --service`)"
        ));
    }
    let newest = headers.and_then(|table| XDeath::all(table).into_iter().next());
    let Some(death) = newest.filter(|death| !death.queue.is_empty()) else {
        return Classified::Unroutable(format!(
            "it came through {DEAD_EXCHANGE} without a readable x-death, so that nobody knows which queue it left"
        ));
    };
    if [INTAKE_QUEUE, INTAKE_PARKED, HANDOVER_QUEUE].contains(&death.queue.as_str()) {
        return Classified::Unroutable(format!(
            "it died in {}, the service's own queue: is that under a policy with a time to live or a length limit?",
            death.queue
        ));
    }
    if [REPORTS_QUEUE, STATE_QUEUE].contains(&death.queue.as_str()) {
        return Classified::LetGo(death);
    }
    if let Some(work) = work_queue_of(&death.queue) {
        return Classified::Unroutable(format!(
            "it left {}, where messages of {work} wait or are parked, and is not retried again: is that queue under a policy that \
             dead-letters to {DEAD_EXCHANGE}?",
            death.queue
        ));
    }
    Classified::Dead(death)
}

/// Reads what a client handed over, and what it asks for.
///
/// Its headers are anybody's word. What is believed of it is only that whoever sent it may publish to every queue there is: it came through
/// the default exchange, for which there is one permission for all queues together. So he gains nothing by it.
///
/// # Errors
/// Why it belongs to no work queue, in a sentence.
pub(super) fn taken_over(message: &Message) -> Result<(FailedMessage, Handover), String> {
    let by = message.delivery_exchange();
    if !by.is_empty() {
        return Err(format!(
            "it came to {HANDOVER_QUEUE} by the exchange {by}, and is not believed: only clients with the strategy service send there, \
             through the default exchange; unbind the queue"
        ));
    }
    let (failed, handover) = FailedMessage::handed_over(message).map_err(|why| {
        format!("it was published to {HANDOVER_QUEUE}, and is no failure that a client hands over: {why}")
    })?;
    let queue = failed.queue();
    let is_own = [INTAKE_QUEUE, INTAKE_PARKED, HANDOVER_QUEUE, DELAYED_QUEUE].contains(&queue)
        || queue.starts_with("retryrmq.serve.");
    if is_own || work_queue_of(queue).is_some() {
        return Err(format!(
            "it was handed over for {queue}, which is no work queue"
        ));
    }
    Ok((failed, handover))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use retryrmq::types::{AMQPValue, FieldArray};

    use super::*;

    fn died_in(queue: &str) -> FieldTable {
        let mut death = FieldTable::default();
        for (name, text) in [("queue", queue), ("reason", "rejected")] {
            death.insert(name.into(), AMQPValue::LongString(text.into()));
        }
        let mut table = FieldTable::default();
        let deaths = vec![AMQPValue::FieldTable(death)];
        table.insert(
            "x-death".into(),
            AMQPValue::FieldArray(FieldArray::from(deaths)),
        );
        table
    }

    fn says(classified: &Classified, words: &str) -> bool {
        matches!(classified, Classified::Unroutable(why) if why.contains(words))
    }

    #[test]
    fn only_what_died_in_a_work_queue_is_retried() {
        let orders = died_in("orders");
        assert!(matches!(
            classify(DEAD_EXCHANGE, Some(&orders)),
            Classified::Dead(death) if death.queue == "orders" && death.reason == "rejected"
        ));
        for exchange in ["", "amq.direct", "retryrmq.dead2"] {
            let classified = classify(exchange, Some(&orders));
            assert!(says(&classified, "published straight"), "{classified:?}");
        }
        for (queue, words) in [
            ("orders.parked", "messages of orders wait or are parked"),
            ("orders.retry.1000", "messages of orders wait or are parked"),
            (INTAKE_QUEUE, "own queue"),
            (INTAKE_PARKED, "own queue"),
            ("", "without a readable x-death"),
        ] {
            let classified = classify(DEAD_EXCHANGE, Some(&died_in(queue)));
            assert!(says(&classified, words), "{queue}: {classified:?}");
        }
        assert!(says(&classify(DEAD_EXCHANGE, None), "without a readable"));
        for queue in [REPORTS_QUEUE, STATE_QUEUE] {
            let classified = classify(DEAD_EXCHANGE, Some(&died_in(queue)));
            assert!(matches!(classified, Classified::LetGo(_)), "{classified:?}");
            assert!(matches!(
                classify("", Some(&died_in(queue))),
                Classified::Unroutable(_)
            ));
        }
    }

    proptest! {
        #[test]
        fn nothing_that_was_published_by_hand_is_ever_believed(
            exchange in "[a-z.]{0,20}", queue in "\\PC{0,40}",
        ) {
            prop_assume!(exchange != DEAD_EXCHANGE);
            prop_assert!(matches!(classify(&exchange, Some(&died_in(&queue))), Classified::Unroutable(_)));
        }
    }
}
