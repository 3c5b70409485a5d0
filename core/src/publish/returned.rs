//! Which messages of a wave were returned as unroutable.

use std::collections::HashMap;

use lapin::message::BasicReturnMessage;

use super::job::Task;

/// What a returned message has in common with the sent one: RabbitMQ returns it unchanged.
#[derive(PartialEq, Eq, Hash)]
struct ReturnedKey<'a> {
    exchange: &'a str,
    routing_key: &'a str,
    message_id: Option<&'a str>,
    body: &'a [u8],
}

/// For every job of the wave, whether it was returned. If a returned message fits several jobs that are not equal, all of them count as
/// returned: one too many is published twice, one too few would be lost.
pub(super) fn returned_jobs(batch: &[Task], returned: &[BasicReturnMessage]) -> Vec<bool> {
    let mut back = vec![false; batch.len()];
    if returned.is_empty() {
        return back;
    }
    let mut groups: HashMap<ReturnedKey<'_>, Vec<usize>> = HashMap::new();
    for (index, job) in batch.iter().enumerate() {
        let returned_key = ReturnedKey {
            exchange: job.exchange.as_str(),
            routing_key: job.routing_key.as_str(),
            message_id: job.properties.message_id().as_ref().map(|id| id.as_str()),
            body: job.body(),
        };
        groups.entry(returned_key).or_default().push(index);
    }
    for message in returned {
        let returned_key = ReturnedKey {
            exchange: message.exchange.as_str(),
            routing_key: message.routing_key.as_str(),
            message_id: message
                .properties
                .message_id()
                .as_ref()
                .map(|id| id.as_str()),
            body: &message.data,
        };
        match groups.get(&returned_key) {
            Some(group) => {
                let equal = group
                    .iter()
                    .copied()
                    .find(|index| !back[*index] && *batch[*index].properties == message.properties);
                match equal {
                    Some(index) => back[index] = true,
                    None => group.iter().for_each(|index| back[*index] = true),
                }
            }
            // No sent message is like it, so all with the same exchange and routing key are in doubt.
            None => {
                for (index, job) in batch.iter().enumerate() {
                    back[index] |=
                        job.exchange == message.exchange && job.routing_key == message.routing_key;
                }
            }
        }
    }
    back
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lapin::{BasicProperties, message::Delivery, types::ShortString};

    use super::{super::Job, *};

    fn job(routing_key: &str, body: &str, id: &str) -> Task {
        let job = Job {
            exchange: ShortString::default(),
            routing_key: routing_key.into(),
            properties: BasicProperties::default().with_message_id(id.into()).into(),
            body: Arc::new(body.as_bytes().to_vec()),
            mandatory: true,
            done: Box::new(|_| ()),
        };
        Task::new(job, None)
    }

    fn back(routing_key: &str, body: &str, id: &str) -> BasicReturnMessage {
        let mut delivery = Delivery::mock(
            0,
            ShortString::default(),
            routing_key.into(),
            false,
            body.as_bytes().to_vec(),
        );
        delivery.properties = BasicProperties::default().with_message_id(id.into());
        BasicReturnMessage {
            delivery,
            reply_code: 312,
            reply_text: "NO_ROUTE".into(),
        }
    }

    #[test]
    fn each_return_finds_its_job() {
        let batch = [
            job("a", "x", "1"),
            job("b", "x", "2"),
            job("a", "x", "3"),
            job("a", "y", "1"),
        ];
        assert_eq!(returned_jobs(&batch, &[]), [false; 4]);
        assert_eq!(
            returned_jobs(&batch, &[back("b", "x", "2")]),
            [false, true, false, false]
        );
        assert_eq!(
            returned_jobs(&batch, &[back("a", "y", "1"), back("a", "x", "3")]),
            [false, false, true, true]
        );
    }

    #[test]
    fn equal_messages_come_back_one_by_one() {
        let batch = [job("a", "x", "1"), job("a", "x", "1")];
        assert_eq!(returned_jobs(&batch, &[back("a", "x", "1")]), [true, false]);
        assert_eq!(
            returned_jobs(&batch, &[back("a", "x", "1"), back("a", "x", "1")]),
            [true, true]
        );
    }

    #[test]
    fn doubt_is_a_duplicate_never_a_loss() {
        let batch = [job("a", "x", "1"), job("a", "x", "2"), job("b", "x", "3")];
        assert_eq!(
            returned_jobs(&batch, &[back("a", "z", "9")]),
            [true, true, false]
        );
    }
}
