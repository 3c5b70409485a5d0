//! A driver's process: started with one order, read line by line, stopped by SIGTERM.

use std::collections::BTreeMap;
use std::fmt;
use std::process::{ExitStatus, Stdio};
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

use crate::line::{self, Line};
use crate::task::{Order, Task};

/// How a driver is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverCommand {
    /// The name in the report.
    pub name: String,
    /// A shell command.
    pub command: String,
}

impl FromStr for DriverCommand {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, command)) if !name.is_empty() && !command.trim().is_empty() => Ok(Self {
                name: name.into(),
                command: command.into(),
            }),
            _ => Err(format!("'{text}' is not of the form NAME=COMMAND")),
        }
    }
}

/// What is heard of a running driver.
#[derive(Debug)]
pub enum DriverEvent {
    /// A line of the contract.
    Line(Line),
    /// Something else on its standard output.
    Noise(String),
    /// Its standard output was closed.
    End,
}

/// A running driver. It is killed when this is dropped, with everything that it started.
#[derive(Debug)]
pub struct Driver {
    child: Child,
    group: Option<Pid>,
    lines: mpsc::UnboundedReceiver<DriverEvent>,
    errors: Arc<Mutex<String>>,
}

/// More of a driver's standard error than this is not kept.
const KEPT_ERRORS: usize = 16 * 1024;

impl Driver {
    /// Starts a driver and gives it its order.
    pub async fn start(driver: &DriverCommand, task: Task<'_>) -> std::io::Result<Self> {
        let order = serde_json::to_vec(&Order::from(task))?;
        let mut child = Command::new("sh")
            .arg("-c")
            .arg(format!("exec {}", driver.command))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let group = child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .map(Pid::from_raw);
        if let Some(mut input) = child.stdin.take() {
            // a driver that ends without reading its order fails by what it prints, not here
            drop(input.write_all(&order).await);
        }
        let (heard, lines) = mpsc::unbounded_channel();
        if let Some(output) = child.stdout.take() {
            tokio::spawn(async move {
                let mut output = BufReader::new(output).lines();
                while let Ok(Some(text)) = output.next_line().await {
                    let read = line::read(&text).map_or_else(DriverEvent::Noise, DriverEvent::Line);
                    if heard.send(read).is_err() {
                        return;
                    }
                }
                drop(heard.send(DriverEvent::End));
            });
        }
        let errors = Arc::new(Mutex::new(String::new()));
        if let Some(mut output) = child.stderr.take() {
            let errors = Arc::clone(&errors);
            tokio::spawn(async move {
                let mut piece = vec![0; 4096];
                while let Ok(read @ 1..) = output.read(&mut piece).await {
                    let mut kept = errors
                        .lock()
                        .unwrap_or_else(std::sync::PoisonError::into_inner);
                    kept.push_str(&String::from_utf8_lossy(&piece[..read]));
                    if kept.len() > KEPT_ERRORS {
                        let cut = kept.len() - KEPT_ERRORS / 2;
                        let cut = (cut..kept.len())
                            .find(|at| kept.is_char_boundary(*at))
                            .unwrap_or(cut);
                        kept.drain(..cut);
                    }
                }
            });
        }
        Ok(Self {
            child,
            group,
            lines,
            errors,
        })
    }

    /// The next thing it prints; [`DriverEvent::End`] for ever after its standard output was closed.
    pub async fn hear(&mut self) -> DriverEvent {
        self.lines.recv().await.unwrap_or(DriverEvent::End)
    }

    /// Asks it to drain and end.
    pub fn stop(&self) {
        if let Some(process) = self.group {
            // one that has ended already needs no signal
            let _ = kill(process, Signal::SIGTERM);
        }
    }

    /// Waits until it has ended; after `patience` it is killed and there is no status.
    pub async fn ended(&mut self, patience: Duration) -> Option<ExitStatus> {
        let status = tokio::time::timeout(patience, self.child.wait())
            .await
            .ok()
            .and_then(Result::ok);
        self.kill_group();
        // its id may belong to another process from here on
        self.group = None;
        status
    }

    /// The last lines of its standard error.
    pub fn last_words(&self) -> String {
        let kept = self
            .errors
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let lines: Vec<&str> = kept.lines().collect();
        lines[lines.len().saturating_sub(12)..].join("\n      ")
    }

    fn kill_group(&self) {
        if let Some(group) = self.group {
            let _ = killpg(group, Signal::SIGKILL);
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.kill_group();
    }
}

/// What a driver says it can do.
#[derive(Clone, Debug)]
pub struct Described {
    /// How it is called.
    pub command: DriverCommand,
    /// The steps, options and other words it knows.
    pub can: Vec<String>,
    /// Scenarios that are not for it, by name or pattern, and why.
    pub cannot: BTreeMap<String, String>,
}

impl Described {
    /// Why this scenario is not for the driver, beside words that it does not know.
    #[must_use]
    pub fn refuses(&self, scenario: &str) -> Option<&str> {
        let fits = |pattern: &str| wildmatch::WildMatch::new(pattern).matches(scenario);
        let refused = self.cannot.iter().find(|(pattern, _)| fits(pattern));
        refused.map(|(_, why)| why.as_str())
    }
}

/// A driver that did not say what it can do.
#[derive(Debug)]
pub struct Undescribed(String);

impl fmt::Display for Undescribed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Undescribed {}

/// A driver that is asked what it can do has this long, however busy the machine.
const DEADLINE: Duration = Duration::from_secs(120);
/// What a driver that said something else may still have to say.
const MOMENT: Duration = Duration::from_secs(5);

/// Asks a driver what it can do.
pub async fn describe(command: &DriverCommand) -> Result<Described, Undescribed> {
    let failed = |why: String| Undescribed(format!("driver {}: {why}", command.name));
    let mut driver = Driver::start(command, Task::Describe)
        .await
        .map_err(|error| failed(error.to_string()))?;
    let answer = tokio::time::timeout(DEADLINE, driver.hear()).await;
    match answer {
        Ok(DriverEvent::Line(Line::Driver { can, cannot, .. })) => Ok(Described {
            command: command.clone(),
            can,
            cannot,
        }),
        Ok(DriverEvent::Noise(noise)) => Err(failed(noise)),
        Ok(other) => {
            driver.ended(MOMENT).await;
            Err(failed(format!(
                "expected a line \"driver\", saw {other:?}\n      {}",
                driver.last_words()
            )))
        }
        Err(_) => Err(failed(format!(
            "it did not describe itself within {} s",
            DEADLINE.as_secs()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_names_what_is_not_for_it_by_patterns() {
        let command = "rust=driver".parse().unwrap();
        let cannot = [("strategy-*".to_owned(), "no".to_owned())];
        let driver = Described {
            command,
            can: Vec::new(),
            cannot: cannot.into(),
        };
        assert_eq!(driver.refuses("strategy-native"), Some("no"));
        assert_eq!(driver.refuses("fail-once"), None);
    }

    #[test]
    fn a_driver_is_a_name_and_a_command() {
        let driver: DriverCommand = "rust=driver --x=1".parse().unwrap();
        assert_eq!(
            (driver.name.as_str(), driver.command.as_str()),
            ("rust", "driver --x=1")
        );
        for wrong in ["", "rust", "=x", "rust= "] {
            assert!(wrong.parse::<DriverCommand>().is_err(), "{wrong}");
        }
    }

    #[tokio::test]
    async fn a_driver_that_does_not_describe_itself_is_refused() {
        for (command, why) in [
            ("echo hello", "no line of the contract"),
            ("sh -c 'echo broken >&2; exit 3'", "broken"),
        ] {
            let command = DriverCommand {
                name: "x".into(),
                command: command.into(),
            };
            let error = describe(&command)
                .await
                .expect_err("it was accepted")
                .to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[tokio::test]
    async fn what_a_driver_started_ends_with_it() {
        let command = DriverCommand {
            name: "x".into(),
            command: "sh -c 'sleep 1000 & echo $! ; wait'".into(),
        };
        let mut driver = Driver::start(&command, Task::Describe).await.unwrap();
        let DriverEvent::Noise(noise) = driver.hear().await else {
            panic!("it printed its child's id")
        };
        let id: i32 = noise.rsplit(": ").next().unwrap().trim().parse().unwrap();
        driver.stop();
        driver.ended(DEADLINE).await;
        let deadline = std::time::Instant::now() + DEADLINE;
        while kill(Pid::from_raw(id), None).is_ok() && !is_zombie(id) {
            assert!(
                std::time::Instant::now() < deadline,
                "process {id} still runs"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn is_zombie(id: i32) -> bool {
        std::fs::read_to_string(format!("/proc/{id}/stat")).is_ok_and(|stat| stat.contains(") Z "))
    }
}
