//! A webhook: the notice as JSON, signed.

use std::{path::PathBuf, time::SystemTime};

use reqwest::header::HeaderMap;
use retryrmq_operator::webhook_signature::{SigningKey, sign};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    SendResult, http::HttpClient, secret::SecretSource, send_result::SendError, token::TokenSource,
};
use crate::alerts::{ConfigDuration, Notice};

/// Posts each notice as JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Webhook {
    /// Where to; one that holds a secret belongs into `url_file` or `url_env`.
    pub url: Option<String>,
    /// A file that holds the URL.
    pub url_file: Option<PathBuf>,
    /// An environment variable that holds the URL.
    pub url_env: Option<String>,
    /// A file that holds the secret of the signature, `whsec_…`. Without a secret nothing is signed.
    pub secret_file: Option<PathBuf>,
    /// An environment variable that holds the secret.
    pub secret_env: Option<String>,
    /// A file that holds a bearer token.
    pub token_file: Option<PathBuf>,
    /// An environment variable that holds the token.
    pub token_env: Option<String>,
    /// A PEM file of the only authorities that count; otherwise those of the system.
    pub ca: Option<PathBuf>,
    /// How long one try may take; 10 s.
    pub timeout: Option<ConfigDuration>,
}

#[derive(Debug)]
pub(super) struct WebhookClient {
    http: HttpClient,
    secret: Option<SecretSource>,
    token: TokenSource,
}

impl Webhook {
    pub(super) fn open(&self) -> Result<WebhookClient, String> {
        let url = SecretSource::of(
            "url",
            self.url.as_deref(),
            self.url_file.as_deref(),
            self.url_env.as_deref(),
        )?
        .ok_or("it needs `url`, `url_file` or `url_env`")?;
        let secret = SecretSource::of(
            "secret",
            None,
            self.secret_file.as_deref(),
            self.secret_env.as_deref(),
        )?;
        if let Some(secret) = &secret {
            signing_key(&secret.read()?)?;
        }
        let token = TokenSource::of(self.token_file.as_deref(), self.token_env.as_deref())?;
        Ok(WebhookClient {
            http: HttpClient::new(url, "", self.ca.as_deref(), super::timeout(self.timeout))?,
            secret,
            token,
        })
    }
}

impl WebhookClient {
    pub(super) async fn send(&self, notice: &Notice) -> SendResult {
        let body = payload(notice).to_string().into_bytes();
        let mut headers = HeaderMap::new();
        let token = self.token.authorize(&mut headers)?;
        let secret = self.secret.as_ref().map(SecretSource::read).transpose();
        let secret = secret.map_err(SendError::soon)?;
        if let Some(secret) = &secret {
            let key = signing_key(secret).map_err(SendError::soon)?;
            // The same at each try, so that the other side can tell that it has it.
            let id = format!("{}-{}", notice.incident.replace('.', "_"), notice.number);
            sign(&mut headers, &[key], &id, SystemTime::now(), &body);
        }
        let secrets: Vec<&str> = token.iter().chain(&secret).map(String::as_str).collect();
        self.http.post(headers, body, &secrets).await
    }
}

fn signing_key(secret: &str) -> Result<SigningKey, String> {
    SigningKey::read(secret).map_err(|why| format!("the secret cannot be used: {why}"))
}

fn payload(notice: &Notice) -> Value {
    let mut payload = serde_json::to_value(notice).unwrap_or_else(|_| json!({}));
    if let Value::Object(payload) = &mut payload {
        payload.remove("channels");
        payload.insert("version".to_owned(), json!(1));
    }
    payload
}
