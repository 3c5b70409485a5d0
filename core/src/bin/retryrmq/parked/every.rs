//! Every queue of the virtual host that dead letters end up in. Only the management API names queues.

use std::{collections::BTreeSet, error::Error, time::Duration};

use clap::Args;
use retryrmq::visible;
use serde::Deserialize;

use crate::{fault::Fault, global::Global};

/// Where the management API is.
#[derive(Clone, Debug, Args)]
pub(super) struct Api {
    /// With --all-queues: the management API, such as http://user:password@host:15672; unless given, port 15672 where the broker
    /// is (15671 and TLS with amqps://), as the same user
    // Not parsed by clap, whose complaint would show the password.
    #[arg(
        long,
        env = "RETRYRMQ_MANAGEMENT_URL",
        hide_env_values = true,
        value_name = "URL"
    )]
    management: Option<String>,
}

/// How long the API may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// A list of queues that is longer is not believed.
const MOST: usize = 256 * 1024 * 1024;

/// What is asked of each queue. Versions leave fields out, or write null.
#[derive(Clone, Debug, Deserialize)]
struct Row {
    name: String,
    #[serde(default, rename = "type")]
    kind: serde_json::Value,
    #[serde(default)]
    arguments: serde_json::Value,
    #[serde(default)]
    effective_policy_definition: serde_json::Value,
    #[serde(default)]
    auto_delete: serde_json::Value,
    #[serde(default)]
    exclusive: serde_json::Value,
    #[serde(default)]
    consumers: Option<u64>,
}

impl Row {
    /// What an argument or, failing that, a policy says.
    fn says(&self, key: &str) -> Option<&serde_json::Value> {
        let own = self.arguments.get(format!("x-{key}"));
        own.or_else(|| self.effective_policy_definition.get(key))
    }

    fn can_be_walked(&self) -> bool {
        let is_stream =
            self.kind == "stream" || self.says("queue-type").is_some_and(|kind| kind == "stream");
        !is_stream && self.auto_delete != true && self.exclusive != true
    }
}

/// The queues that hold dead letters: those named as ours or other libraries' are, and those that a queue dead-letters to by name.
/// A waiting queue, which has a time to live, sends back to work, and what somebody consumes is work.
fn dead_letter_queues(rows: &[Row]) -> Vec<String> {
    let targets: BTreeSet<&str> = rows
        .iter()
        .filter(|row| row.says("message-ttl").is_none())
        .filter(|row| {
            row.says("dead-letter-exchange")
                .is_some_and(|name| name == "")
        })
        .filter_map(|row| row.says("dead-letter-routing-key")?.as_str())
        .collect();
    let names: BTreeSet<&str> = rows.iter().map(|row| &*row.name).collect();
    // What operators wrote about the parked messages of a queue, as PROTOCOL says.
    let are_notes = |row: &Row| {
        let queue = row.name.strip_suffix(".notes.parked");
        queue.is_some_and(|queue| {
            names.contains(&*format!("{queue}.parked"))
                && !names.contains(&*format!("{queue}.notes"))
        })
    };
    rows.iter()
        .filter(|row| row.can_be_walked() && !are_notes(row))
        .filter(|row| {
            let by_name = is_named_so(&row.name);
            let is_idle = row.consumers.unwrap_or(0) == 0;
            row.name.ends_with(".parked") || (is_idle && (by_name || targets.contains(&*row.name)))
        })
        .map(|row| row.name.clone())
        .collect()
}

/// As MassTransit, NServiceBus, EasyNetQ and Spring Cloud Stream name theirs, and most people their own.
fn is_named_so(name: &str) -> bool {
    let small = name.to_ascii_lowercase();
    let ends = [
        "_error",
        "_skipped",
        ".error",
        ".dlq",
        "-dlq",
        "_dlq",
        ".dead",
        ".dead-letter",
        "-dead-letter",
        "-dead-letters",
    ];
    ends.iter().any(|end| small.ends_with(end))
        || matches!(
            &*small,
            "error" | "failed" | "dlq" | "easynetq_default_error_queue"
        )
}

/// Asks for all of them.
pub(super) async fn names(options: &Api, global: &Global) -> Result<Vec<String>, Fault> {
    let rows = rows(options, global).await?;
    Ok(dead_letter_queues(&rows))
}

async fn rows(options: &Api, global: &Global) -> Result<Vec<Row>, Fault> {
    let broker = url::Url::parse(global.url().split(',').next().unwrap_or_default())
        .map_err(|why| Fault::usage(format!("the broker's URL makes no sense: {why}")))?;
    let said = options
        .management
        .as_deref()
        .filter(|said| !said.trim().is_empty());
    let mut address = match said {
        Some(said) => url::Url::parse(said.trim())
            .map_err(|why| Fault::usage(format!("--management is no URL: {why}")))?,
        None => {
            let (scheme, port) = match broker.scheme() {
                "amqps" => ("https", 15671),
                _ => ("http", 15672),
            };
            let host = broker.host_str().unwrap_or("localhost");
            url::Url::parse(&format!("{scheme}://{host}:{port}"))
                .map_err(|why| Fault::usage(format!("the broker's URL makes no sense: {why}")))?
        }
    };
    let decoded = |text: &str| {
        percent_encoding::percent_decode_str(text)
            .decode_utf8_lossy()
            .into_owned()
    };
    let login = |url: &url::Url| {
        let user = decoded(url.username());
        (!user.is_empty()).then(|| (user, url.password().map(decoded)))
    };
    let (user, password) = login(&address)
        .or_else(|| login(&broker))
        .unwrap_or_else(|| ("guest".to_owned(), Some("guest".to_owned())));
    let _ = address
        .set_username("")
        .and_then(|()| address.set_password(None)); // a URL with a host takes both
    let vhost = match broker.path().strip_prefix('/') {
        None | Some("") => "/".to_owned(),
        Some(vhost) => decoded(vhost),
    };
    address
        .path_segments_mut()
        .map_err(|()| Fault::usage("--management is no URL of a server"))?
        .pop_if_empty()
        .extend(["api", "queues", &vhost]);
    address.set_query(Some(
        "columns=name,type,arguments,effective_policy_definition,auto_delete,exclusive,consumers",
    ));
    let shown = || visible::line(address.host_str().unwrap_or_default()).into_owned();
    let unreachable = |why: String| {
        Fault::failed(format!(
            "the management API at {}:{} does not answer ({why}); --all-queues needs it, because AMQP names no queues: give its address \
             with --management URL, or name a queue",
            shown(),
            address.port_or_known_default().unwrap_or_default()
        ))
    };
    let _ = rustls::crypto::ring::default_provider().install_default(); // somebody may have been first
    let http = reqwest::Client::builder()
        .timeout(PATIENCE)
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .map_err(|why| unreachable(cause(&why)))?;
    let asked = http
        .get(address.clone())
        .basic_auth(user, password)
        .send()
        .await;
    let mut answer = asked.map_err(|why| unreachable(cause(&why)))?;
    match answer.status().as_u16() {
        200 => {}
        401 | 403 => {
            return Err(Fault::failed(format!(
                "the management API at {} refuses the login: the user needs the tag `monitoring` or `management`",
                shown()
            )));
        }
        404 => {
            return Err(Fault::not_found(format!(
                "the management API at {} knows no virtual host `{}`",
                shown(),
                visible::line(&vhost)
            )));
        }
        status => return Err(unreachable(format!("status {status}"))),
    }
    let mut body = Vec::new();
    while let Some(chunk) = answer
        .chunk()
        .await
        .map_err(|why| unreachable(cause(&why)))?
    {
        body.extend_from_slice(&chunk);
        if body.len() > MOST {
            return Err(unreachable("its list of queues has no end".to_owned()));
        }
    }
    serde_json::from_slice(&body)
        .map_err(|why| unreachable(format!("its answer is no list of queues: {why}")))
}

/// What is at the bottom of it: the outermost sentence says only that a request failed. No cause quotes the URL.
fn cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    match error.source() {
        Some(_) => visible::line(&cause.to_string()).into_owned(),
        None => "no answer".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_holds_dead_letters_and_what_is_work() {
        let rows: Vec<Row> = serde_json::from_value(json!([
            {"name": "orders", "arguments": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "graveyard"}},
            {"name": "graveyard"},
            {"name": "orders.retry.1000", "arguments": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders", "x-message-ttl": 1000}},
            {"name": "orders.parked", "consumers": 1},
            {"name": "orders.notes.parked"},
            {"name": "memo.parked"},
            {"name": "memo.notes"},
            {"name": "memo.notes.parked"},
            {"name": "mail", "effective_policy_definition": {"dead-letter-exchange": "", "dead-letter-routing-key": "lost"}},
            {"name": "lost"},
            {"name": "submit-order_error", "type": "classic"},
            {"name": "log_error", "type": "stream"},
            {"name": "busy_error", "consumers": 2},
            {"name": "EasyNetQ_Default_Error_Queue"},
            {"name": "short.dlq", "exclusive": true},
            {"name": "none", "effective_policy_definition": []},
        ]))
        .unwrap();
        assert_eq!(
            dead_letter_queues(&rows),
            [
                "graveyard",
                "orders.parked",
                "memo.parked",
                "memo.notes.parked",
                "lost",
                "submit-order_error",
                "EasyNetQ_Default_Error_Queue"
            ]
        );
    }
}
