//! A node of its own for a test that does harm.

use crate::control::NodeControl;
use crate::{Broker, Version};
use std::ops::Deref;

/// A broker that belongs to one test. When it is dropped, it is emptied for another test, or goes.
#[derive(Debug)]
pub struct Node {
    broker: Broker,
}

impl Node {
    pub(crate) async fn start(version: Version, control: &NodeControl, settings: &[&str]) -> Self {
        let number = control.run_for_version("spawn", settings).await;
        let number = number
            .trim()
            .parse()
            .expect("`broker spawn` prints the number of the node");
        let control = control.with_node(number);
        let urls = control.run("url", &[]).await;
        Node {
            broker: Broker::at(version, &urls, control),
        }
    }

    /// Joins the cluster that the other node is in. The other must be of the same version.
    pub async fn join(&self, other: &Node) {
        let other = other.broker.control().node().to_string();
        self.broker.control().run("join", &[&other]).await;
    }
}

impl Deref for Node {
    type Target = Broker;

    fn deref(&self) -> &Broker {
        &self.broker
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // What a test that failed has left behind may be anything.
        let verb = if std::thread::panicking() {
            "reset"
        } else {
            "release"
        };
        self.broker.control().run_blocking(verb);
    }
}
