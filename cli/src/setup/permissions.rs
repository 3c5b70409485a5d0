//! What a user of the broker may do, as RabbitMQ wants it: three regular expressions.

use std::collections::BTreeSet;

use retryrmq::{
    DEAD_EXCHANGE, HANDOVER_QUEUE, Strategy, dropped_queue, parking_queue, permission_for,
    permission_pattern, unreadable_queue,
};
use retryrmq_operator::{configuration::Permission, note};
use serde_json::{Value, json};

use super::desired::DesiredQueue;

/// The permissions that a user needs in this virtual host.
pub(crate) struct Grant {
    pub(crate) user: String,
    configure: BTreeSet<String>,
    write: BTreeSet<String>,
    read: BTreeSet<String>,
}

/// The default exchange goes by this name among permissions.
const DEFAULT_EXCHANGE: &str = "amq.default";

impl Grant {
    /// For what this user does with these queues, and nothing more.
    pub(super) fn of(permission: &Permission, queues: &[DesiredQueue]) -> Self {
        let mut grant = Self {
            user: permission.user.get_ref().clone(),
            configure: BTreeSet::new(),
            write: BTreeSet::new(),
            read: BTreeSet::new(),
        };
        for name in &permission.consumes {
            let queue = queues.iter().find(|queue| queue.name == *name.get_ref());
            let strategy = queue.map_or(Strategy::default(), |queue| queue.strategy);
            grant.consumes(name.get_ref(), strategy, permission.declares);
        }
        for name in &permission.operates {
            // What is looked at goes back as a copy, and a replay is one.
            grant.write.insert(permission_for(DEFAULT_EXCHANGE));
            grant.read.insert(permission_pattern(name.get_ref()));
            // What is dropped is kept for a while, in a queue that the first drop makes.
            let dropped = permission_for(&dropped_queue(name.get_ref()));
            grant.configure.insert(dropped.clone());
            grant.read.insert(dropped);
            // What is on hold stands in the notes.
            let notes = parking_queue(&note::family(name.get_ref()));
            grant.read.insert(permission_for(&notes));
        }
        if !permission.publishes.is_empty() {
            grant.write.insert(permission_for(DEFAULT_EXCHANGE));
        }
        for name in &permission.exchanges {
            let name = match name.get_ref().as_str() {
                "" => DEFAULT_EXCHANGE,
                name => name,
            };
            grant.write.insert(permission_for(name));
        }
        grant
    }

    fn consumes(&mut self, queue: &str, strategy: Strategy, declares: bool) {
        if strategy == Strategy::Service {
            return self.hands_over(queue, declares);
        }
        let family = permission_pattern(queue);
        // A passive declaration takes a permission on the name, too (4.3), and so the waiting and parking queues stand here.
        self.read.insert(family.clone());
        self.write.insert(permission_for(DEFAULT_EXCHANGE));
        if declares {
            // To mark waiting and parking queues.
            self.write.insert(family.clone());
            self.configure.insert(family);
        }
        if strategy == Strategy::DelayedExchange {
            let exchange = permission_for(&format!("{queue}.delayed"));
            // The binding is made with each subscription.
            self.write.extend([exchange.clone(), permission_for(queue)]);
            self.read.insert(exchange.clone());
            if declares {
                self.configure.insert(exchange);
            }
        }
    }

    /// The waiting and parking queues are the service's affair.
    fn hands_over(&mut self, queue: &str, declares: bool) {
        self.read.insert(permission_for(queue));
        self.write.insert(permission_for(DEFAULT_EXCHANGE));
        // A look takes any permission (4.3), and this one lets nobody read or delete what others handed over.
        self.write.insert(permission_for(HANDOVER_QUEUE));
        if declares {
            self.configure.insert(permission_for(queue));
            self.configure
                .insert(permission_for(&unreadable_queue(queue)));
            // The dead-letter route of a work queue that is made.
            self.write.insert(permission_for(DEAD_EXCHANGE));
        }
    }

    /// Configure, write and read.
    pub(super) fn patterns(&self) -> [String; 3] {
        [&self.configure, &self.write, &self.read].map(|patterns| {
            let all: Vec<&str> = patterns.iter().map(String::as_str).collect();
            match all[..] {
                // No name is empty.
                [] => "^$".to_owned(),
                _ => all.join("|"),
            }
        })
    }

    /// The command that gives them.
    pub(super) fn command(&self, vhost: &str) -> String {
        let [configure, write, read] = self.patterns();
        let words = [
            "rabbitmqctl",
            "set_permissions",
            "-p",
            vhost,
            &self.user,
            &configure,
            &write,
            &read,
        ];
        shell_words::join(words)
    }

    pub(super) fn as_json(&self, vhost: &str) -> Value {
        let [configure, write, read] = self.patterns();
        json!({"user": self.user, "configure": configure, "write": write, "read": read, "command": self.command(vhost)})
    }
}
