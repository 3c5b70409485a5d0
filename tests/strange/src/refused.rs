//! A setting with which a consumer does not start: every message is where it was.

use crate::environment::Environment;
use crate::handler_script::HandlerScript;
use crate::observations::Observations;
use crate::{DEADLINE, QUEUE, Setting, inspection, scenarios};
use retryrmq_harness::{eventually, lapin::BasicProperties};

const MESSAGES: u32 = 5;

pub(crate) async fn run(environment: &Environment, setting: &Setting, words: &[&str]) {
    environment.declare_plain().await;
    for number in 0..MESSAGES as usize {
        let id = HandlerScript::Succeeds.id("refused", number);
        let named = BasicProperties::default().with_message_id(id.as_str().into());
        environment.amqp.publish_with(QUEUE, &id, named).await;
    }
    let why = refusal(environment).await;
    println!("{environment}: {why}");
    for word in words {
        assert!(
            why.contains(word),
            "{environment}: `{word}` is not said in: {why}"
        );
    }
    // A stream counts what is in it every few seconds.
    eventually(DEADLINE, "all are still there", || async {
        let depth = environment.amqp.depth(QUEUE).await;
        if depth == Some(MESSAGES) {
            Ok(())
        } else {
            Err(format!("{environment}: {depth:?}"))
        }
    })
    .await;
    inspection::finds(environment, setting).await;
}

/// Why no consumer starts.
async fn refusal(environment: &Environment) -> String {
    let client = match environment.connect().await {
        Ok(client) => client,
        Err(error) => return error.to_string(),
    };
    let observations = Observations::default();
    let started = scenarios::consumer(&client, &observations);
    let refused = match started.start(observations.handler(0)).await {
        Ok(_) => panic!(
            "{environment}: the consumer starts, and handled {:?}",
            observations.handled()
        ),
        Err(error) => error.to_string(),
    };
    client.close().await;
    refused
}
