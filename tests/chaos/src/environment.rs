//! Where lives take place: nodes of our own, one after the other harmed and brought back.

use std::time::Duration;

use futures_util::future::join_all;
use retryrmq_harness::{Broker, Node, Vhost, eventually};

use crate::faults::NodeFault;
use crate::ledger::SideLedger;
use crate::plan::EnvironmentKind;

/// How long a node may take for anything on a busy machine.
const DEADLINE: Duration = Duration::from_secs(240);

/// A node or a cluster. It goes, with its data, when it is dropped.
#[derive(Debug)]
pub struct Environment {
    nodes: Vec<Node>,
    /// What the nodes call themselves.
    names: Vec<String>,
}

impl Environment {
    /// Starts nodes of the broker's version.
    ///
    /// # Panics
    /// When they do not start, or the broker cannot be controlled.
    pub async fn start(broker: &Broker, environment_kind: EnvironmentKind) -> Self {
        let count = if environment_kind == EnvironmentKind::Cluster {
            3
        } else {
            1
        };
        let nodes: Vec<Node> = join_all((0..count).map(|_| broker.own_node(&[]))).await;
        for node in &nodes[1..] {
            node.join(&nodes[0]).await;
        }
        let mut names = Vec::new();
        for node in &nodes {
            names.push(name(node).await);
        }
        Environment { nodes, names }
    }

    /// Whether there are others to lead a queue.
    pub fn is_cluster(&self) -> bool {
        self.nodes.len() > 1
    }

    /// A node, with all others of the cluster beside it.
    pub fn node(&self) -> &Node {
        &self.nodes[0]
    }

    /// How to reach a vhost on each of the nodes.
    pub fn urls(&self, vhost: &Vhost) -> Vec<String> {
        let nodes = self.nodes.iter();
        nodes.map(|node| node.url_of_vhost(vhost.name())).collect()
    }

    /// Does harm to a node and brings it back. All sides of the life hear of it.
    ///
    /// # Panics
    /// When it does not come back.
    pub async fn fault(&self, fault: NodeFault, vhost: &Vhost, queue: &str, sides: &[&SideLedger]) {
        let holder = self.holder(vhost, queue).await;
        let at = if fault.holder {
            holder
        } else {
            (holder + 1) % self.nodes.len()
        };
        let (node, name) = (&self.nodes[at], &self.names[at]);
        let held = at == holder;
        let what = if held { "holds" } else { "does not hold" };
        for side in sides {
            side.note(format!("{name}, which {what} {queue}, is {fault}"));
            side.harmed(|fault_counts| match (fault.kill, held) {
                (false, _) => fault_counts.nodes_stopped += 1,
                (true, true) => fault_counts.holders_killed += 1,
                (true, false) => fault_counts.others_killed += 1,
            });
        }
        if fault.kill {
            node.kill().await;
        } else {
            node.stop().await;
        }
        tokio::time::sleep(fault.away).await;
        node.start().await;
        for side in sides {
            side.note(format!("{name} is back"));
        }
    }

    /// Has another node lead a quorum queue, as an operator can.
    pub async fn move_leader(&self, vhost: &Vhost, queue: &str) {
        self.nodes[0].move_leader(vhost.name(), queue).await;
    }

    /// Whether a quorum queue has a leader that can be asked.
    pub async fn has_leader(&self, vhost: &Vhost, queue: &str) -> bool {
        let expression = "element(1, ra:members({Name, node()}, 10000)).";
        self.tell(vhost, queue, expression).await.trim() == "ok"
    }

    /// What the leader of a quorum queue says of itself, and what members it has.
    pub async fn told_by_leader(&self, vhost: &Vhost, queue: &str) -> String {
        let expression = "case ra:members({Name, node()}, 10000) of \
             {ok, Members, Leader} -> {Members, Leader, catch ra:leader_query(Leader, {rabbit_fifo, overview, []})}; \
             Other -> Other end.";
        self.tell(vhost, queue, expression).await
    }

    /// Evaluates something with the name of a quorum queue's process.
    async fn tell(&self, vhost: &Vhost, queue: &str, expression: &str) -> String {
        self.nodes[0]
            .eval_on_quorum_queue(vhost.name(), queue, expression)
            .await
    }

    /// The node that holds a queue, or leads it.
    async fn holder(&self, vhost: &Vhost, queue: &str) -> usize {
        if self.nodes.len() == 1 {
            return 0;
        }
        eventually(
            DEADLINE,
            "the cluster tells who holds the queue",
            || async {
                let info = self.nodes[0].management().queue(vhost.name(), queue).await;
                let info = info.map_err(|error| error.to_string())?;
                let raw = info.ok_or("there is no such queue")?.raw;
                let holder = raw["leader"].as_str().or(raw["node"].as_str());
                let holder =
                    holder.and_then(|holder| self.names.iter().position(|name| name == holder));
                holder.ok_or_else(|| format!("{} and {}", raw["leader"], raw["node"]))
            },
        )
        .await
    }
}

async fn name(node: &Node) -> String {
    eventually(DEADLINE, "a node tells its name", || async {
        let overview = node.management().overview().await;
        let overview = overview.map_err(|error| error.to_string())?;
        let name = overview["node"].as_str().map(str::to_owned);
        name.ok_or_else(|| "no name".to_owned())
    })
    .await
}
