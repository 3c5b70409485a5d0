//! The handler: one process per message, between `retryrmq` and the driver's socket.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Duration;

use retryrmq_scenarios::observations::sha256;
use retryrmq_scenarios::script::{Act, now_ms};
use serde_json::{Map, Value, json};

use crate::Failed;
use crate::command::ms;
use crate::handler_protocol::{Part, Word};

/// `EX_DATAERR`: the message is parked.
const PARK: u8 = 65;
/// `EX_TEMPFAIL`: the last line of standard error may say when to come back.
const TEMPORARY: u8 = 75;

pub(crate) fn run(socket: &OsStr) -> ExitCode {
    match play(socket) {
        Ok(act) => end(act),
        Err(error) => {
            eprintln!("the driver is not there: {error}");
            ExitCode::FAILURE
        }
    }
}

fn play(socket: &OsStr) -> Result<Act, Failed> {
    let mut driver = UnixStream::connect(socket)?;
    let mut answers = BufReader::new(driver.try_clone()?);
    say(&mut driver, &Word::Sees(attempt()?))?;
    let mut line = String::new();
    answers.read_line(&mut line)?;
    let step = serde_json::from_str::<Part>(&line)?.step;
    sleep(&driver, step.sleep_ms)?;
    say(&mut driver, &Word::Settles)?;
    line.clear();
    answers.read_line(&mut line)?;
    Ok(step.act)
}

/// The driver sends nothing meanwhile: what ends the wait early is its death, and then nobody needs this process.
fn sleep(mut driver: &UnixStream, sleep_ms: u64) -> Result<(), Failed> {
    if sleep_ms > 0 {
        driver.set_read_timeout(Some(Duration::from_millis(sleep_ms)))?;
        match driver.read(&mut [0]) {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            _ => return Err("it is gone".into()),
        }
        driver.set_read_timeout(None)?;
    }
    Ok(())
}

fn say(driver: &mut UnixStream, word: &Word) -> Result<(), Failed> {
    let mut line = serde_json::to_vec(word)?;
    line.push(b'\n');
    Ok(driver.write_all(&line)?)
}

/// What the environment and standard input show.
fn attempt() -> Result<Map<String, Value>, Failed> {
    let text = |name: &str| std::env::var(format!("RETRYRMQ_{name}")).ok();
    let needed = |name: &str| text(name).ok_or_else(|| format!("RETRYRMQ_{name} is not set"));
    let headers: Map<String, Value> = serde_json::from_str(&needed("HEADERS")?)?;
    let message_id = text("MESSAGE_ID");
    let mark = headers
        .get("scenario-id")
        .and_then(Value::as_str)
        .map(str::to_owned);
    let id = mark.or_else(|| message_id.clone()).unwrap_or_default();
    let mut body = Vec::new();
    std::io::stdin().read_to_end(&mut body)?;
    let fields = json!({
        "id": id,
        "at_ms": now_ms(),
        "attempt": needed("ATTEMPT")?.parse::<u64>()?,
        "retries": needed("RETRIES")?.parse::<u64>()?,
        "queue": needed("QUEUE")?,
        "exchange": needed("EXCHANGE")?,
        "routing_key": needed("ROUTING_KEY")?,
        "message_id": message_id,
        "last_error": text("LAST_ERROR"),
        "headers": headers,
        "body_bytes": body.len(),
        "body_sha256": sha256(&body),
    });
    match fields {
        Value::Object(fields) => Ok(fields),
        _ => unreachable!("it was written as an object"),
    }
}

/// How a program says what became of its message.
fn end(act: Act) -> ExitCode {
    match act {
        Act::Ok => ExitCode::SUCCESS,
        Act::Error { kind, message } => {
            eprintln!("{message}");
            let status = kind
                .strip_prefix("exit status ")
                .and_then(|status| status.parse().ok());
            ExitCode::from(status.unwrap_or(1))
        }
        Act::Fatal { message }
        | Act::Park {
            reason: message, ..
        } => {
            eprintln!("{message}");
            ExitCode::from(PARK)
        }
        Act::RetryAfter { delay_ms, message } => {
            eprintln!("{message}\nretry-after: {}", ms(delay_ms));
            ExitCode::from(TEMPORARY)
        }
        Act::Defer { delay_ms } => {
            eprintln!("defer: {}", ms(delay_ms));
            ExitCode::from(TEMPORARY)
        }
        Act::Panic { message } => {
            eprintln!("{message}");
            std::process::abort()
        }
        Act::Exit => unreachable!("the driver has ended everything"),
    }
}
