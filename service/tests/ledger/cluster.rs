//! Three nodes, of which one at a time is killed.

use std::time::Duration;

use futures_util::future::join_all;
use retryrmq_harness::{Broker, Node, Vhost};

pub(crate) struct Cluster {
    nodes: Vec<Node>,
}

impl Cluster {
    /// Starts nodes of the broker's version.
    pub(crate) async fn start(broker: &Broker) -> Self {
        let nodes: Vec<Node> = join_all((0..3).map(|_| broker.own_node(&[]))).await;
        for node in &nodes[1..] {
            node.join(&nodes[0]).await;
        }
        Self { nodes }
    }

    pub(crate) async fn vhost(&self) -> Vhost {
        self.nodes[0].vhost().await
    }

    /// How to reach a vhost on each of the nodes, as one list.
    pub(crate) fn urls(&self, vhost: &Vhost) -> String {
        let urls = self
            .nodes
            .iter()
            .map(|node| node.url_of_vhost(vhost.name()));
        urls.collect::<Vec<_>>().join(",")
    }

    /// Kills a node and brings it back.
    pub(crate) async fn kill_one(&self, at: usize) {
        self.nodes[at].kill().await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        self.nodes[at].start().await;
    }
}
