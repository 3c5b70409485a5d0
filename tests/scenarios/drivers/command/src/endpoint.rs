//! The handler: an HTTP endpoint, one request per run.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::{Request, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use nix::{
    sys::signal::{Signal, kill, raise},
    unistd::Pid,
};
use percent_encoding::percent_decode_str;
use retryrmq_scenarios::{
    observations::sha256,
    script::{Act, Script, now_ms, say},
};
use serde_json::{Map, Value, json};
use tokio::{net::TcpListener, time::sleep};

use crate::{Failed, command::ms};

struct Player {
    script: Arc<Script>,
    retryrmq: Pid,
}

/// Plays the script until the task is aborted.
pub(crate) async fn serve(listener: TcpListener, script: Arc<Script>, retryrmq: Pid) {
    let player = Arc::new(Player { script, retryrmq });
    let router = Router::new().fallback(play).with_state(player);
    if let Err(error) = axum::serve(listener, router).await {
        eprintln!("the endpoint ended: {error}");
    }
}

/// One run. Where the command gives the request up, this ends at the next wait, and says no more.
async fn play(State(player): State<Arc<Player>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let mut fields = match seen(&parts.headers, body).await {
        Ok(fields) => fields,
        Err(error) => {
            eprintln!("a request was not understood: {error}");
            return StatusCode::NOT_IMPLEMENTED.into_response();
        }
    };
    let id = fields["id"].as_str().unwrap_or_default().to_owned();
    let (run, step) = player.script.next(&id);
    fields.insert("line".into(), "attempt".into());
    fields.insert("run".into(), run.into());
    say(&Value::Object(fields));
    sleep(Duration::from_millis(step.sleep_ms)).await;
    if step.act == Act::Exit {
        let _ = kill(player.retryrmq, Signal::SIGKILL);
        let _ = raise(Signal::SIGKILL);
    }
    say(&json!({"line": "settled", "id": id, "run": run, "at_ms": now_ms()}));
    answer(step.act)
}

/// What headers and body show.
async fn seen(headers: &HeaderMap, body: Body) -> Result<Map<String, Value>, Failed> {
    let text = |name: &str| -> Result<Option<String>, Failed> {
        let Some(value) = headers.get(format!("retryrmq-{name}")) else {
            return Ok(None);
        };
        let decoded = percent_decode_str(value.to_str()?).decode_utf8()?;
        Ok(Some(decoded.into_owned()))
    };
    let needed = |name: &str| -> Result<String, Failed> {
        text(name)?.ok_or_else(|| format!("Retryrmq-{name} is not there").into())
    };
    let table = headers
        .get("retryrmq-headers")
        .ok_or("no Retryrmq-Headers")?;
    let table: Map<String, Value> = serde_json::from_slice(table.as_bytes())?;
    let message_id = text("message-id")?;
    let mark = table.get("scenario-id").and_then(Value::as_str);
    let id = mark.map(str::to_owned).or_else(|| message_id.clone());
    let body = to_bytes(body, usize::MAX).await?;
    let fields = json!({
        "id": id.unwrap_or_default(),
        "at_ms": now_ms(),
        "attempt": needed("attempt")?.parse::<u64>()?,
        "retries": needed("retries")?.parse::<u64>()?,
        "queue": needed("queue")?,
        "exchange": needed("exchange")?,
        "routing_key": needed("routing-key")?,
        "message_id": message_id,
        "last_error": text("last-error")?,
        "headers": table,
        "body_bytes": body.len(),
        "body_sha256": sha256(&body),
    });
    match fields {
        Value::Object(fields) => Ok(fields),
        _ => unreachable!("it was written as an object"),
    }
}

/// How an endpoint says what became of its message.
fn answer(act: Act) -> Response {
    let failed = StatusCode::INTERNAL_SERVER_ERROR;
    let says = |words: String, message: String| {
        (failed, [("retryrmq-outcome", words)], message).into_response()
    };
    match act {
        Act::Ok => StatusCode::NO_CONTENT.into_response(),
        Act::Error { message, .. } | Act::Panic { message } => (failed, message).into_response(),
        Act::Fatal { message }
        | Act::Park {
            reason: message, ..
        } => (StatusCode::UNPROCESSABLE_ENTITY, message).into_response(),
        Act::RetryAfter { delay_ms, message } => {
            says(format!("retry-after: {}", ms(delay_ms)), message)
        }
        Act::Defer { delay_ms } => says(format!("defer: {}", ms(delay_ms)), String::new()),
        Act::Exit => unreachable!("the driver has ended everything"),
    }
}
