//! Whether a confirm can be believed about its message.

use lapin::BasicProperties;
use lapin::options::BasicPublishOptions;
use retryrmq_harness::{QueueType, brokers};
use std::time::{Duration, Instant};

const WAVE: usize = 200;

/// Lapin fact 11. The number of returned messages in a wave is right, and so are the messages; which confirm they come
/// with is not.
#[tokio::test]
async fn a_returned_message_is_attached_to_the_confirm_of_another() {
    let broker = brokers().pop().unwrap();
    let vhost = broker.vhost().await;
    let amqp = vhost.connect().await;
    amqp.declare("there", QueueType::Classic).await;
    let mandatory = BasicPublishOptions {
        mandatory: true,
        ..Default::default()
    };
    let end = Instant::now() + Duration::from_secs(60);
    let mut mistaken = 0;
    while mistaken == 0 {
        assert!(
            Instant::now() < end,
            "every return came with its own confirm: lapin may have healed"
        );
        let mut confirms = Vec::new();
        for number in 0..WAVE {
            let queue = if number % 2 == 0 { "there" } else { "missing" };
            let properties = BasicProperties::default().with_message_id(number.to_string().into());
            let publish =
                amqp.channel()
                    .basic_publish("".into(), queue.into(), mandatory, b"", properties);
            confirms.push(publish.await.unwrap());
        }
        let mut returned = Vec::new();
        for (number, confirm) in confirms.into_iter().enumerate() {
            let message = confirm.await.unwrap().take_message();
            if message.is_some() != (number % 2 == 1) {
                mistaken += 1;
            }
            returned.extend(
                message.map(|message| message.properties.message_id().clone().unwrap().to_string()),
            );
        }
        returned.sort_by_key(|id| id.parse::<usize>().unwrap());
        let expected: Vec<_> = (1..WAVE)
            .step_by(2)
            .map(|number| number.to_string())
            .collect();
        assert_eq!(
            returned, expected,
            "taken together, the returns of a wave are exact"
        );
    }
}
