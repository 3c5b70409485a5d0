//! Consumers that are killed at random moments under load.

use crate::stage::{QUEUE, Stage, WORKER};
use retryrmq_faults::accounts::Accounts;
use retryrmq_faults::publisher::Publisher;
use retryrmq_faults::trouble::Trouble;
use retryrmq_faults::worker::{Orders, Told, Worker};
use retryrmq_harness::on_queue_types;

const KILLS: usize = 6;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_when_the_consumer_is_killed_again_and_again() {
    on_queue_types(|broker, kind| async move {
        let what = format!("{broker}, {kind}, consumer killed");
        let stage = Stage::set(&broker, kind).await;
        let accounts = Accounts::new(QUEUE);
        let told = Told::default();
        let publisher = Publisher::start(stage.client().await, QUEUE, accounts.clone());
        let orders = Orders::load(stage.vhost.url(), QUEUE);
        let mut trouble = Trouble::new(&what, KILLS);
        while trouble.goes_on() {
            let mut worker = Worker::start(WORKER, &orders, &told, &accounts);
            // Now and then it is killed while it starts.
            if !trouble.made().is_multiple_of(3) {
                worker.ready().await;
            }
            trouble.pause(20..1_200).await;
            worker.kill().await;
        }
        let published = publisher.stop().await;
        let worker = Worker::start(WORKER, &orders, &told, &accounts);
        accounts.settled(&stage.amqp).await;
        worker.kill().await;
        println!(
            "{what}: {published} published over {} kills, {} attempts, {} detours, {} acknowledged unseen",
            trouble.made(),
            told.count("begin"),
            told.count_of("event", "detoured"),
            told.count_of("event", "already_handled"),
        );
        accounts.balance(&broker, stage.vhost.name(), &stage.amqp, &what).await;
    })
    .await;
}
