//! One request and its answer.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::Value;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use url::Url;

const TIMEOUT: Duration = Duration::from_secs(120);

/// The management interface did not answer, or refused.
#[derive(Debug)]
pub struct ManagementError {
    status: Option<u16>,
    request: String,
    reason: String,
}

impl ManagementError {
    /// The HTTP status, when there was an answer.
    pub fn status(&self) -> Option<u16> {
        self.status
    }

    /// Why, in the broker's words.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

impl fmt::Display for ManagementError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status {
            Some(status) => write!(f, "{}: {status}, {}", self.request, self.reason),
            None => write!(f, "{}: {}", self.request, self.reason),
        }
    }
}

impl std::error::Error for ManagementError {}

#[derive(Clone)]
pub(super) struct Http {
    agent: ureq::Agent,
    base: Arc<str>,
    authorization: Arc<str>,
}

impl Http {
    pub(super) fn new(url: &Url) -> Self {
        let decode = |text| percent_encoding::percent_decode_str(text).decode_utf8_lossy();
        let credentials = format!(
            "{}:{}",
            decode(url.username()),
            decode(url.password().unwrap_or_default())
        );
        let mut base = url.clone();
        // These fail only for URLs without a host, and then the request says so.
        let _ = base.set_username("");
        let _ = base.set_password(None);
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(TIMEOUT))
            .max_idle_connections(0) // a broker that was killed leaves connections that look alive
            .build()
            .into();
        Http {
            agent,
            base: base.as_str().trim_end_matches('/').into(),
            authorization: format!("Basic {}", BASE64.encode(credentials)).into(),
        }
    }

    pub(super) fn base(&self) -> &str {
        &self.base
    }

    /// Asks for a path below `/api/`. An answer without a body is `Null`.
    pub(super) fn call(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, ManagementError> {
        let request = format!("{method} /api/{path}");
        let failed = |status, reason: String| ManagementError {
            status,
            request: request.clone(),
            reason,
        };
        let content = body.map(Value::to_string).unwrap_or_default();
        let http = ureq::http::Request::builder()
            .method(method)
            .uri(format!("{}/api/{path}", self.base))
            .header("authorization", &*self.authorization)
            .header("content-type", "application/json");
        // A DELETE or GET must not announce a body.
        let answer = match body {
            Some(_) => http.body(content).map(|request| self.agent.run(request)),
            None => http.body(()).map(|request| self.agent.run(request)),
        };
        let mut answer = answer
            .map_err(|error| failed(None, error.to_string()))?
            .map_err(|error| failed(None, error.to_string()))?;
        let status = answer.status();
        let text = answer
            .body_mut()
            .with_config()
            .limit(64 << 20)
            .read_to_string()
            .map_err(|error| failed(Some(status.as_u16()), error.to_string()))?;
        let value: Value = serde_json::from_str(&text).unwrap_or_default();
        if status.is_success() {
            return Ok(value);
        }
        let reason = value["reason"].as_str().map_or(text.clone(), str::to_owned);
        Err(failed(Some(status.as_u16()), reason))
    }
}
