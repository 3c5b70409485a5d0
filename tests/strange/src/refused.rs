//! A setting with which a consumer does not start: every message is where it was.

use crate::observations::Observations;
use crate::handler_script::HandlerScript;
use crate::environment::Environment;
use crate::{PATIENCE, QUEUE, Setting, inspection, scenarios};
use retryrmq_harness::{eventually, lapin::BasicProperties};

const MESSAGES: u32 = 5;

pub(crate) async fn run(place: &Environment, setting: &Setting, words: &[&str]) {
    place.declare_plain().await;
    for number in 0..MESSAGES as usize {
        let id = HandlerScript::Succeeds.id("refused", number);
        let named = BasicProperties::default().with_message_id(id.as_str().into());
        place.amqp.publish_with(QUEUE, &id, named).await;
    }
    let why = refusal(place).await;
    println!("{place}: {why}");
    for word in words {
        assert!(
            why.contains(word),
            "{place}: `{word}` is not said in: {why}"
        );
    }
    // A stream counts what is in it every few seconds.
    eventually(PATIENCE, "all are still there", || async {
        let depth = place.amqp.depth(QUEUE).await;
        if depth == Some(MESSAGES) {
            Ok(())
        } else {
            Err(format!("{place}: {depth:?}"))
        }
    })
    .await;
    inspection::finds(place, setting).await;
}

/// Why no consumer starts.
async fn refusal(place: &Environment) -> String {
    let client = match place.connect().await {
        Ok(client) => client,
        Err(error) => return error.to_string(),
    };
    let diary = Observations::default();
    let started = scenarios::consumer(&client, &diary);
    let refused = match started.start(diary.handler(0)).await {
        Ok(_) => panic!(
            "{place}: the consumer starts, and handled {:?}",
            diary.handled()
        ),
        Err(error) => error.to_string(),
    };
    client.close().await;
    refused
}
