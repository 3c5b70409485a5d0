//! The HTTP interface of the management plugin: what AMQP does not show or cannot do.

mod http;
mod info;

pub use http::ManagementError;
pub use info::{ConnectionInfo, Permissions, Policy, QueueInfo};

use crate::{QueueType, Version};
use http::Http;
use serde_json::{Map, Value, json};
use std::fmt;
use url::Url;

/// The management interface of one broker. Clones talk to the same one.
///
/// Each call fails with a [`ManagementError`] when the interface does not answer or refuses. Numbers it gives are
/// gathered by the broker every few seconds: probe with [`eventually`](crate::eventually).
#[derive(Clone)]
pub struct Management(Http);

impl Management {
    pub(crate) fn new(url: &Url) -> Self {
        Management(Http::new(url))
    }

    /// Where it is, without user and password.
    pub fn url(&self) -> &str {
        self.0.base()
    }

    /// What the broker says about itself.
    pub async fn overview(&self) -> Result<Value, ManagementError> {
        self.get("overview".into()).await
    }

    pub(crate) fn version_blocking(&self) -> Option<Version> {
        let overview = self.0.call("GET", "overview", None).ok()?;
        overview["rabbitmq_version"].as_str()?.parse().ok()
    }

    /// A queue; `None` when it does not exist.
    pub async fn queue(
        &self,
        vhost: &str,
        name: &str,
    ) -> Result<Option<QueueInfo>, ManagementError> {
        let found = self
            .get(format!("queues/{}/{}", segment(vhost), segment(name)))
            .await;
        match found {
            Ok(queue) => Ok(Some(QueueInfo::from(queue))),
            Err(error) if error.status() == Some(404) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All queues of a vhost, but for the clocks of new queues (`<queue>.retry.80000000000`), which go by themselves two seconds later.
    pub async fn queues(&self, vhost: &str) -> Result<Vec<QueueInfo>, ManagementError> {
        let all = self.get(format!("queues/{}", segment(vhost))).await?;
        let all = rows(all).into_iter().map(QueueInfo::from);
        Ok(all
            .filter(|queue| !queue.name().ends_with(".retry.80000000000"))
            .collect())
    }

    /// Makes or replaces a policy.
    pub async fn put_policy(
        &self,
        vhost: &str,
        name: &str,
        policy: &Policy,
    ) -> Result<(), ManagementError> {
        self.put(
            format!("policies/{}/{}", segment(vhost), segment(name)),
            policy.to_json(),
        )
        .await
    }

    /// Deletes a policy.
    pub async fn delete_policy(&self, vhost: &str, name: &str) -> Result<(), ManagementError> {
        self.delete(format!("policies/{}/{}", segment(vhost), segment(name)))
            .await
    }

    /// Makes a user, with tags such as `management`, and without permission to anything.
    pub async fn create_user(
        &self,
        name: &str,
        password: &str,
        tags: &str,
    ) -> Result<(), ManagementError> {
        self.put(
            format!("users/{}", segment(name)),
            json!({ "password": password, "tags": tags }),
        )
        .await
    }

    /// Deletes a user.
    pub async fn delete_user(&self, name: &str) -> Result<(), ManagementError> {
        self.delete(format!("users/{}", segment(name))).await
    }

    /// Says what a user may do in a vhost.
    pub async fn set_permissions(
        &self,
        vhost: &str,
        user: &str,
        may: Permissions<'_>,
    ) -> Result<(), ManagementError> {
        let body = json!({ "configure": may.configure, "write": may.write, "read": may.read });
        self.put(
            format!("permissions/{}/{}", segment(vhost), segment(user)),
            body,
        )
        .await
    }

    /// Makes a vhost, with a type for queues that are declared without one.
    pub async fn create_vhost(
        &self,
        name: &str,
        default: Option<QueueType>,
    ) -> Result<(), ManagementError> {
        let mut body = Map::new();
        if let Some(kind) = default {
            body.insert("default_queue_type".into(), kind.as_str().into());
        }
        self.put(format!("vhosts/{}", segment(name)), body.into())
            .await
    }

    /// Deletes a vhost with all that is in it.
    pub async fn delete_vhost(&self, name: &str) -> Result<(), ManagementError> {
        self.delete(format!("vhosts/{}", segment(name))).await
    }

    pub(crate) fn delete_vhost_blocking(&self, name: &str) -> Result<(), ManagementError> {
        self.0
            .call("DELETE", &format!("vhosts/{}", segment(name)), None)
            .map(drop)
    }

    /// The open client connections in a vhost.
    pub async fn connections(&self, vhost: &str) -> Result<Vec<ConnectionInfo>, ManagementError> {
        let all = self
            .get(format!("vhosts/{}/connections", segment(vhost)))
            .await?;
        Ok(rows(all)
            .into_iter()
            .filter_map(ConnectionInfo::parse)
            .collect())
    }

    /// Closes a connection, as an operator would.
    pub async fn close_connection(&self, name: &str) -> Result<(), ManagementError> {
        self.delete(format!("connections/{}", segment(name))).await
    }

    /// Any `GET` below `/api/`, for what is not offered here.
    pub async fn get(&self, path: String) -> Result<Value, ManagementError> {
        self.call("GET", path, None).await
    }

    /// Any `PUT` below `/api/`.
    pub async fn put(&self, path: String, body: Value) -> Result<(), ManagementError> {
        self.call("PUT", path, Some(body)).await.map(drop)
    }

    /// Any `DELETE` below `/api/`.
    pub async fn delete(&self, path: String) -> Result<(), ManagementError> {
        self.call("DELETE", path, None).await.map(drop)
    }

    async fn call(
        &self,
        method: &'static str,
        path: String,
        body: Option<Value>,
    ) -> Result<Value, ManagementError> {
        let http = self.0.clone();
        tokio::task::spawn_blocking(move || http.call(method, &path, body.as_ref()))
            .await
            .expect("the thread that asked the management interface ended")
    }
}

impl fmt::Debug for Management {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Management") // the address holds a password
    }
}

/// A name as one segment of a path.
pub(crate) fn segment(name: &str) -> String {
    percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC).to_string()
}

fn rows(value: Value) -> Vec<Value> {
    match value {
        Value::Array(rows) => rows,
        _ => Vec::new(),
    }
}
