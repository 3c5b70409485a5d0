//! How many steps a second the model does: publishes, deliveries, and settlements of every kind on a work queue whose
//! dead letters wait and return.

use retryrmq_model::{
    Broker, Consume, Declare, Frame, Method, Profile, Publish, QueueType, Seeded, Version,
};
use std::time::{Duration, Instant};

const ROUNDS: u64 = 250_000;

fn main() {
    for version in Version::ALL {
        for kind in QueueType::ALL {
            let start = Instant::now();
            let steps = run(version, kind);
            let pace = steps as f64 / start.elapsed().as_secs_f64();
            println!(
                "{version:?} {}: {steps} steps, {pace:.0} a second",
                kind.as_str()
            );
        }
    }
}

fn run(version: Version, kind: QueueType) -> u64 {
    let nondeterminism = Seeded::new(1, Duration::from_millis(2));
    let mut broker = Broker::new(Profile::new(version), nondeterminism);
    let work = Declare::durable("work", kind)
        .with("x-dead-letter-exchange", "")
        .with("x-dead-letter-routing-key", "wait");
    let wait = Declare::durable("wait", kind)
        .with("x-dead-letter-exchange", "")
        .with("x-dead-letter-routing-key", "work")
        .with_number("x-message-ttl", 20);
    for declare in [work, wait] {
        broker.make_queue(&declare).expect("it can be declared");
    }
    let client = broker.connect().expect("it runs");
    broker.send(client, 1, Method::OpenChannel);
    broker.send(client, 1, Method::SelectConfirms);
    broker.send(client, 1, Method::Qos { prefetch: 64 });
    broker.send(client, 1, Method::Consume(Consume::new("work", "handler")));
    let publish = Publish::to_queue("work", vec![7; 256]);
    let mut random = fastrand::Rng::with_seed(1);
    let mut steps = 0;
    for _ in 0..ROUNDS {
        broker.send(client, 1, Method::Publish(Box::new(publish.clone())));
        broker.advance(broker.now() + Duration::from_micros(500));
        steps += 2;
        while let Some((channel, frame)) = broker.receive(client) {
            steps += 1;
            let Frame::Deliver(delivery) = frame else {
                continue;
            };
            let tag = delivery.tag;
            let method = match random.u32(0..8) {
                0 => Method::Reject { tag, requeue: true },
                1 | 2 => Method::Nack {
                    tag,
                    multiple: false,
                    requeue: false,
                },
                _ => Method::Ack {
                    tag,
                    multiple: false,
                },
            };
            broker.send(client, channel, method);
            steps += 1;
        }
    }
    steps
}
