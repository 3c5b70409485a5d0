//! The command that can kill and start a node: `tests/broker/broker`, as `with-brokers` names it.

use crate::Version;
use std::process::{Command, Stdio};
use std::sync::Arc;

/// One node under our control.
#[derive(Clone, Debug)]
pub(crate) struct NodeControl {
    prefix: Arc<str>,
    version: Version,
    node: u32,
}

impl NodeControl {
    pub(crate) fn new(prefix: &str, version: Version) -> Self {
        NodeControl {
            prefix: prefix.into(),
            version,
            node: 0,
        }
    }

    pub(crate) fn with_node(&self, node: u32) -> Self {
        NodeControl {
            node,
            ..self.clone()
        }
    }

    pub(crate) fn node(&self) -> u32 {
        self.node
    }

    /// Runs `broker VERB VERSION NODE ARGUMENTS…` and returns what it printed.
    ///
    /// # Panics
    /// When it fails, with what it said.
    pub(crate) async fn run(&self, verb: &str, arguments: &[&str]) -> String {
        let node = self.node.to_string();
        let mut all = vec![node.as_str()];
        all.extend(arguments);
        self.run_for_version(verb, &all).await
    }

    /// Runs `broker VERB VERSION ARGUMENTS…`, for what is not about one node.
    pub(crate) async fn run_for_version(&self, verb: &str, arguments: &[&str]) -> String {
        let mut command = self.command(verb, arguments);
        let output = tokio::task::spawn_blocking(move || command.output())
            .await
            .expect("the thread that ran the broker command ended")
            .expect("sh is there");
        let says = String::from_utf8_lossy(&output.stderr);
        let node = self.node;
        assert!(
            output.status.success(),
            "broker {verb} {} {node} failed: {says}",
            self.version
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// For `Drop`, where nothing can be awaited; what goes wrong is left to the end of the whole run.
    pub(crate) fn run_blocking(&self, verb: &str) {
        let _ = self.command(verb, &[&self.node.to_string()]).status();
    }

    fn command(&self, verb: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("sh");
        // The prefix is quoted for a shell, because the project may live in a folder with a space in its name.
        command.args(["-c", &format!("{} \"$@\"", self.prefix), "sh", verb]);
        command
            .arg(self.version.to_string())
            .args(arguments)
            .stdin(Stdio::null());
        command
    }
}
