//! A vhost per test, so that tests never meet.

use crate::{Amqp, Broker, ManagementError, Permissions, Policy, QueueInfo, QueueType};
use std::fmt;

/// A vhost that belongs to one test; it goes, with its queues, policies and connections, when it is dropped.
pub struct Vhost {
    broker: Broker,
    name: String,
    url: String,
}

impl Vhost {
    pub(crate) async fn create(broker: Broker, default_queue_type: Option<QueueType>) -> Self {
        let name = format!("test-{}-{:08x}", std::process::id(), fastrand::u32(..));
        let management = broker.management();
        management
            .create_vhost(&name, default_queue_type)
            .await
            .expect("a vhost can be made");
        management
            .set_permissions(&name, &broker.user(), Permissions::ALL)
            .await
            .expect("permissions can be set");
        let url = broker.url_of_vhost(&name);
        Vhost { broker, name, url }
    }

    /// As [`Broker::vhost`], with a type for queues that are declared without one.
    pub async fn with_default_queue_type(broker: &Broker, kind: QueueType) -> Self {
        Vhost::create(broker.clone(), Some(kind)).await
    }

    /// As [`Broker::vhost`], where queues that are declared without a type are streams. Not before RabbitMQ 4.0.
    ///
    /// # Panics
    /// If the broker has no such setting.
    pub async fn with_default_stream(broker: &Broker) -> Self {
        let vhost = Vhost::create(broker.clone(), None).await;
        let body = serde_json::json!({"default_queue_type": "stream"});
        let path = format!("vhosts/{}", crate::management::segment(&vhost.name));
        let set = broker.management().put(path, body).await;
        set.expect("a vhost has a default queue type");
        vhost
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its `amqp://` URL, with the password.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// As [`Vhost::url`], as another user.
    pub fn url_as(&self, user: &str, password: &str) -> String {
        self.broker.url_of_vhost_as(&self.name, user, password)
    }

    /// The broker it is on.
    pub fn broker(&self) -> &Broker {
        &self.broker
    }

    /// Opens a connection and a channel in it.
    pub async fn connect(&self) -> Amqp {
        Amqp::connect(&self.url).await
    }

    /// What the management interface knows about a queue, `None` when it does not exist. Its numbers can be some
    /// seconds old.
    ///
    /// # Panics
    /// When the management interface does not answer.
    pub async fn queue(&self, name: &str) -> Option<QueueInfo> {
        self.broker
            .management()
            .queue(&self.name, name)
            .await
            .expect("the management interface answers")
    }

    /// All its queues, by name.
    ///
    /// # Panics
    /// When the management interface does not answer.
    pub async fn queues(&self) -> Vec<QueueInfo> {
        self.broker
            .management()
            .queues(&self.name)
            .await
            .expect("the management interface answers")
    }

    /// Makes or replaces a policy.
    ///
    /// # Errors
    /// When the broker refuses it, which some versions do.
    pub async fn put_policy(&self, name: &str, policy: &Policy) -> Result<(), ManagementError> {
        self.broker
            .management()
            .put_policy(&self.name, name, policy)
            .await
    }
}

impl fmt::Debug for Vhost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "vhost {} of {:?}", self.name, self.broker)
    }
}

impl Drop for Vhost {
    fn drop(&mut self) {
        // A broker that the test has killed takes its vhost with it.
        let _ = self.broker.management().delete_vhost_blocking(&self.name);
    }
}
