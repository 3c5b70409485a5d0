//! A handler tested with its real policy and no broker, on a virtual clock.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use retryrmq::{Consumer, MINUTE, Message, ParkReason, Publish, Simulation, Step};

/// What the service runs, too.
fn orders() -> Consumer {
    Consumer::new("orders")
        .dlx(true)
        .retry("fixed(1m, retries=3)".parse().expect("a policy"))
        .fatal(|error| error.is::<serde_json::Error>())
}

async fn handle(
    stock: Arc<AtomicUsize>,
    message: Message,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let order: serde_json::Value = serde_json::from_slice(message.body())?;
    let take = |left: usize| left.checked_sub(1);
    match stock.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take) {
        Ok(_) => Ok(()),
        Err(_) => Err(format!("no {} in stock", order["item"]).into()),
    }
}

async fn tried(stock: usize, bodies: &[&str]) -> Vec<retryrmq::Trial> {
    let stock = Arc::new(AtomicUsize::new(stock));
    let mut simulation = Simulation::new(orders()).expect("the options are fine");
    for body in bodies {
        let order = Publish::to_queue("orders", *body);
        simulation.publish(order).expect("it can be published");
    }
    simulation
        .run(|message| handle(Arc::clone(&stock), message))
        .await
}

const CHAIR: &str = r#"{"item": "chair"}"#;

#[tokio::test]
async fn an_order_waits_for_the_stock() {
    let trials = tried(1, &[CHAIR, CHAIR]).await;
    assert!(matches!(trials[0].step, Step::Acked));
    assert!(matches!(trials[1].step, Step::Retried { delay, .. } if delay == MINUTE));
}

#[tokio::test]
async fn it_is_parked_after_three_minutes() {
    let trials = tried(0, &[CHAIR]).await;
    let at: Vec<_> = trials.iter().map(|trial| trial.at).collect();
    assert_eq!(at, [0, 1, 2, 3].map(|minutes| minutes * MINUTE));
    let Step::Parked {
        reason, message, ..
    } = &trials[3].step
    else {
        panic!("{:?}", trials[3].step)
    };
    assert_eq!(*reason, ParkReason::Exhausted);
    assert_eq!(message.last_error(), Some("no \"chair\" in stock"));
}

#[tokio::test]
async fn garbage_is_parked_at_once() {
    let trials = tried(9, &["\u{ff}"]).await;
    assert_eq!(trials.len(), 1);
    assert!(matches!(
        trials[0].step,
        Step::Parked {
            reason: ParkReason::Fatal,
            ..
        }
    ));
}
