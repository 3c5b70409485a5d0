//! Asking, one request at a time: HTTP/1.1, bounded in time and size, without redirects and proxies.

use std::{collections::BTreeMap, fmt, path::Path, time::Duration};

use reqwest::{Method, StatusCode, redirect};
use rustls::ClientConfig;
use serde_json::{Value, json};

use super::{
    Address, Binding, Channel, Consumer, Deprecated, Error, Exchange, ManagementErrorKind,
    Overview, Permissions, Policy, Queue, Result, Scope, error_mapping::cause,
};
use crate::tls;

/// How long one request may take.
const TIME_LIMIT: Duration = Duration::from_secs(60);
/// The largest answer.
const MOST_BYTES: usize = 64 * 1024 * 1024;
/// How many rows a page has. The API gives 500 at most.
const PAGE: &str = "500";
/// For queues: what the metadata says now, and counts that the broker keeps anyway; not what a metrics collector gathered
/// seconds ago, or was told not to gather.
const FRESH: [(&str, &str); 2] = [("disable_stats", "true"), ("enable_queue_totals", "true")];

/// A client of the management API. Clones share their connections. `Debug` shows the address alone.
#[derive(Clone)]
pub struct Management {
    http: reqwest::Client,
    pub(super) address: Address,
}

impl Management {
    /// A client for that address. Nothing is asked yet.
    ///
    /// # Errors
    /// [`ManagementErrorKind::Unreachable`] when the CA file cannot be read or holds no certificate.
    pub fn new(address: Address) -> Result<Self> {
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(tls_config(address.authority.as_deref())?)
            .http1_only()
            .no_proxy()
            // To another host it would take the login along.
            .redirect(redirect::Policy::none())
            .connect_timeout(Duration::from_secs(10))
            .timeout(TIME_LIMIT)
            .build()
            .map_err(|why| {
                Error::new(
                    ManagementErrorKind::Broken,
                    format!("cannot speak HTTP: {why}"),
                )
            })?;
        Ok(Self { http, address })
    }

    /// Where it asks.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// What the broker says of itself.
    ///
    /// # Errors
    /// Those of [`ManagementErrorKind`].
    pub async fn overview(&self) -> Result<Overview> {
        let found = self.get(&["overview"], &[]).await?;
        let overview = found.as_ref().and_then(Overview::of);
        overview.ok_or_else(|| self.is_something_else())
    }

    /// The tags of the user that asks, such as `monitoring`.
    ///
    /// # Errors
    /// Those of [`ManagementErrorKind`].
    pub async fn tags(&self) -> Result<Vec<String>> {
        let found = self.get(&["whoami"], &[]).await?.unwrap_or_default();
        Ok(match &found["tags"] {
            Value::String(tags) => tags.split(',').map(|tag| tag.trim().to_owned()).collect(),
            tags => rows(Some(tags))
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect(),
        })
    }

    /// The name of the user that asks.
    ///
    /// # Errors
    /// Those of [`ManagementErrorKind`].
    pub async fn whoami(&self) -> Result<String> {
        let found = self.get(&["whoami"], &[]).await?.unwrap_or_default();
        let name = found["name"].as_str().map(str::to_owned);
        name.ok_or_else(|| self.is_something_else())
    }

    /// Whether there is a user of this name.
    ///
    /// # Errors
    /// [`ManagementErrorKind::Forbidden`] without the tag `administrator`.
    pub async fn has_user(&self, user: &str) -> Result<bool> {
        Ok(self.get(&["users", user], &[]).await?.is_some())
    }

    /// What a user may do in a virtual host; `None` for nothing at all.
    ///
    /// # Errors
    /// [`ManagementErrorKind::Forbidden`] without the tag `administrator`.
    pub async fn permissions(&self, vhost: &str, user: &str) -> Result<Option<Permissions>> {
        let found = self.get(&["permissions", vhost, user], &[]).await?;
        Ok(found.as_ref().and_then(Permissions::of))
    }

    /// Gives a user these permissions in place of those that he has there.
    ///
    /// # Errors
    /// [`ManagementErrorKind::Forbidden`] without the tag `administrator`; [`ManagementErrorKind::NotFound`] for a virtual host that is not there.
    pub async fn put_permissions(
        &self,
        vhost: &str,
        user: &str,
        permissions: &Permissions,
    ) -> Result<()> {
        let body = json!({
            "configure": permissions.configure,
            "write": permissions.write,
            "read": permissions.read,
        });
        self.put(&["permissions", vhost, user], &body).await
    }

    /// All queues of a virtual host, by name, page by page. What comes and goes meanwhile may be among them or not.
    ///
    /// # Errors
    /// [`ManagementErrorKind::NotFound`] when the virtual host is not there, or the user has no permission in it.
    pub async fn queues(&self, vhost: &str) -> Result<BTreeMap<String, Queue>> {
        self.queues_like(vhost, "").await
    }

    /// One queue; `None` when it is not there.
    ///
    /// # Errors
    /// Those of [`queues`](Self::queues).
    pub async fn queue(&self, vhost: &str, name: &str) -> Result<Option<Queue>> {
        // Alone, a queue of RabbitMQ 3.10 shows its policy seconds later than in a list.
        Ok(self.queues_like(vhost, name).await?.remove(name))
    }

    /// Those with this text in their name.
    ///
    /// # Errors
    /// Those of [`queues`](Self::queues).
    pub async fn queues_like(&self, vhost: &str, text: &str) -> Result<BTreeMap<String, Queue>> {
        let mut all = BTreeMap::new();
        let mut query = FRESH.to_vec();
        if !text.is_empty() {
            query.extend([("name", text), ("use_regex", "false")]);
        }
        self.pages(&["queues", vhost], &query, |row| {
            if let Some(queue) = Queue::of(row) {
                all.insert(queue.name.clone(), queue);
            }
        })
        .await?;
        Ok(all)
    }

    /// All exchanges of a virtual host, by name.
    ///
    /// # Errors
    /// Those of [`queues`](Self::queues).
    pub async fn exchanges(&self, vhost: &str) -> Result<BTreeMap<String, Exchange>> {
        let mut all = BTreeMap::new();
        self.pages(&["exchanges", vhost], &FRESH[..1], |row| {
            if let Some(exchange) = Exchange::of(row) {
                all.insert(exchange.name.clone(), exchange);
            }
        })
        .await?;
        Ok(all)
    }

    /// What is bound to an exchange.
    ///
    /// # Errors
    /// Those of [`ManagementErrorKind`]; an exchange that is not there has no bindings.
    pub async fn bindings(&self, vhost: &str, exchange: &str) -> Result<Vec<Binding>> {
        let path = ["exchanges", vhost, exchange, "bindings", "source"];
        let found = self.get(&path, &[]).await?;
        Ok(rows(found.as_ref()).filter_map(Binding::of).collect())
    }

    /// Who consumes in a virtual host; `None` when the metrics collector is off, without which nobody knows. A user without the tag
    /// `monitoring` sees its own consumers alone.
    ///
    /// # Errors
    /// Those of [`ManagementErrorKind`].
    pub async fn consumers(&self, vhost: &str) -> Result<Option<Vec<Consumer>>> {
        match self.get(&["consumers", vhost], &[]).await {
            Ok(found) => {
                let all = rows(found.as_ref()).filter_map(Consumer::of).collect();
                Ok(Some(all))
            }
            Err(error) if error.kind() == ManagementErrorKind::Refused => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A channel; `None` when it is not there, or the metrics collector is off.
    ///
    /// # Errors
    /// Those of [`ManagementErrorKind`].
    pub async fn channel(&self, name: &str) -> Result<Option<Channel>> {
        match self.get(&["channels", name], &[]).await {
            Ok(found) => Ok(found.as_ref().and_then(Channel::of)),
            Err(error) if error.kind() == ManagementErrorKind::Refused => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The policies of a virtual host.
    ///
    /// # Errors
    /// Those of [`queues`](Self::queues).
    pub async fn policies(&self, vhost: &str, scope: Scope) -> Result<Vec<Policy>> {
        let found = self.get(&[scope.path(), vhost], &[]).await?;
        let found = found.ok_or_else(|| self.no_vhost(vhost))?;
        Ok(rows(Some(&found)).filter_map(Policy::of).collect())
    }

    /// Makes or replaces a policy.
    ///
    /// # Errors
    /// [`ManagementErrorKind::Forbidden`] without the tag `policymaker`; [`ManagementErrorKind::Refused`] for a definition that this version does not know.
    pub async fn put_policy(&self, vhost: &str, policy: &Policy) -> Result<()> {
        let body = json!({
            "pattern": policy.pattern,
            "definition": policy.definition,
            "priority": policy.priority,
            "apply-to": policy.apply_to,
        });
        self.put(&["policies", vhost, &policy.name], &body).await
    }

    /// Deletes a policy. One that is not there is as good as deleted.
    ///
    /// # Errors
    /// [`ManagementErrorKind::Forbidden`] without the tag `policymaker`.
    pub async fn delete_policy(&self, vhost: &str, name: &str) -> Result<()> {
        let path = ["policies", vhost, name];
        self.call(Method::DELETE, &path, &[], None).await.map(drop)
    }

    /// Makes a durable queue with these arguments, or leaves an equal one as it is.
    ///
    /// # Errors
    /// [`ManagementErrorKind::Forbidden`] without the permission to configure it; [`ManagementErrorKind::Refused`] when it is there with other arguments.
    pub async fn put_queue(&self, vhost: &str, name: &str, arguments: &Value) -> Result<()> {
        let body = json!({ "durable": true, "arguments": arguments });
        self.put(&["queues", vhost, name], &body).await
    }

    /// The deprecated features in use; none on a broker that does not know of them.
    ///
    /// # Errors
    /// Those of [`ManagementErrorKind`].
    pub async fn deprecated_in_use(&self) -> Result<Vec<Deprecated>> {
        let found = self.get(&["deprecated-features", "used"], &[]).await?;
        Ok(rows(found.as_ref()).filter_map(Deprecated::of).collect())
    }

    /// The feature flags that are not enabled; `None` on a broker that has none.
    ///
    /// # Errors
    /// [`ManagementErrorKind::Forbidden`] or [`ManagementErrorKind::Login`] without the tag `administrator`.
    pub async fn disabled_feature_flags(&self) -> Result<Option<Vec<String>>> {
        let Some(found) = self.get(&["feature-flags"], &[]).await? else {
            return Ok(None);
        };
        let disabled = rows(Some(&found)).filter(|flag| flag["state"] == "disabled");
        let names = disabled.filter_map(|flag| flag["name"].as_str());
        Ok(Some(names.map(str::to_owned).collect()))
    }

    /// Reads a list page by page, so that a broker with many queues sends no answer without bound.
    async fn pages(
        &self,
        path: &[&str; 2],
        query: &[(&str, &str)],
        mut take: impl FnMut(&Value),
    ) -> Result<()> {
        let mut page = 1_u64;
        loop {
            let number = page.to_string();
            let mut query = query.to_vec();
            query.extend([("page", number.as_str()), ("page_size", PAGE)]);
            let found = match self.get(path, &query).await {
                // The list has become shorter meanwhile.
                Err(error) if error.kind() == ManagementErrorKind::Refused && page > 1 => {
                    return Ok(());
                }
                found => found?,
            };
            let found = found.ok_or_else(|| self.no_vhost(path[1]))?;
            found["items"]
                .as_array()
                .ok_or_else(|| self.is_something_else())?
                .iter()
                .for_each(&mut take);
            if found["page_count"].as_u64().is_none_or(|all| page >= all) {
                return Ok(());
            }
            page += 1;
        }
    }

    async fn put(&self, path: &[&str], body: &Value) -> Result<()> {
        match self.call(Method::PUT, path, &[], Some(body)).await? {
            Some(_) => Ok(()),
            None => Err(self.no_vhost(path.get(1).unwrap_or(&""))),
        }
    }

    /// `None` for what is not there.
    async fn get(&self, path: &[&str], query: &[(&str, &str)]) -> Result<Option<Value>> {
        self.call(Method::GET, path, query, None).await
    }

    async fn call(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Result<Option<Value>> {
        let request = self.http.request(method, self.address.at(path, query));
        let request = if self.address.is_token() {
            request.bearer_auth(&self.address.secret)
        } else {
            request.basic_auth(&self.address.user, Some(&self.address.secret))
        };
        let request = match body {
            Some(body) => request.json(body),
            None => request,
        };
        let answer = request.send().await.map_err(|why| self.unreachable(&why))?;
        let status = answer.status();
        let bytes = self.bytes_of(answer).await?;
        match status {
            StatusCode::NOT_FOUND => {
                // Only RabbitMQ says so in JSON; whatever else answers there has no such page.
                let said = serde_json::from_slice::<Value>(&bytes).ok();
                said.filter(|said| said["error"].is_string())
                    .map(|_| None)
                    .ok_or_else(|| self.is_something_else())
            }
            status if status.is_success() && bytes.is_empty() => Ok(Some(Value::Null)),
            status if status.is_success() => serde_json::from_slice(&bytes)
                .map(Some)
                .map_err(|_| self.is_something_else()),
            status => Err(self.refused(status, &bytes, path)),
        }
    }

    async fn bytes_of(&self, mut answer: reqwest::Response) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(|why| {
            Error::new(
                ManagementErrorKind::Broken,
                format!(
                    "{} stopped in the middle of its answer ({})",
                    self.address,
                    cause(&why)
                ),
            )
        })? {
            if bytes.len() + chunk.len() > MOST_BYTES {
                return Err(Error::new(
                    ManagementErrorKind::Broken,
                    format!(
                        "an answer of {} is larger than 64 MiB: name the queues to look at",
                        self.address
                    ),
                ));
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }
}

impl fmt::Debug for Management {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Management({})", self.address)
    }
}

/// Trusts the certificates of that file alone, or without one what the system trusts.
fn tls_config(authority: Option<&Path>) -> Result<ClientConfig> {
    let failed = |why: String| Error::new(ManagementErrorKind::Unreachable, why);
    let roots = match authority {
        Some(file) => tls::roots_of(file)
            .map_err(|why| failed(format!("the CA file {}: {why}", file.display())))?,
        None => tls::system_roots(),
    };
    tls::client_config(roots).map_err(failed)
}

fn rows(found: Option<&Value>) -> impl Iterator<Item = &Value> {
    found.and_then(Value::as_array).into_iter().flatten()
}
