//! Speaking HTTP: bounded in time and size, never to a host that nobody named.

use std::{
    path::Path,
    time::{Duration, SystemTime},
};

use reqwest::{
    Client, Response, StatusCode, Url,
    header::{HeaderMap, LOCATION, RETRY_AFTER},
    redirect::Policy,
};

use super::{
    secret::{self, SecretSource},
    send_result::{RetryAdvice, SendError, SendResult},
};
use crate::{alerts::sanitize, tls::tls};

/// Redirects, one after the other.
const REDIRECTS: usize = 3;
/// Bytes of an answer that are read, to say why it was no.
const ANSWER: usize = 2_000;
/// A wish to wait for longer is not heeded in full.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(3_600);

/// A client, and where it posts to.
#[derive(Debug)]
pub(super) struct HttpClient {
    client: Client,
    url: SecretSource,
    /// What follows the path of the URL.
    path: &'static str,
}

impl HttpClient {
    /// # Errors
    /// A sentence about the file of authorities or the URL.
    pub(super) fn new(
        url: SecretSource,
        path: &'static str,
        ca: Option<&Path>,
        timeout: Duration,
    ) -> Result<Self, String> {
        let client = Client::builder()
            .user_agent(concat!("retryrmq-serve/", env!("CARGO_PKG_VERSION")))
            .tls_backend_preconfigured(tls(ca)?)
            .redirect(Policy::none()) // to another host it would take token and signature along
            .no_proxy()
            .connect_timeout(timeout)
            .timeout(timeout)
            // Common servers close an idle connection after two to five seconds, and a POST that meets the end of one fails.
            .pool_idle_timeout(Duration::from_millis(1_500))
            .build()
            .map_err(|why| format!("cannot speak HTTP: {}", why.without_url()))?;
        let http = Self { client, url, path };
        http.address()?;
        Ok(http)
    }

    fn address(&self) -> Result<Url, String> {
        let text = self.url.read()?;
        // The error of a URL may repeat it.
        let bad = || "the URL is none; write it like https://host/path".to_owned();
        let mut url = Url::parse(&text).map_err(|_| bad())?;
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
            return Err(bad());
        }
        if !self.path.is_empty() {
            let path = format!("{}{}", url.path().trim_end_matches('/'), self.path);
            url.set_path(&path);
        }
        Ok(url)
    }

    /// Posts JSON. `secrets` are texts that no error may repeat.
    pub(super) async fn post(
        &self,
        headers: HeaderMap,
        body: Vec<u8>,
        secrets: &[&str],
    ) -> SendResult {
        let mut url = self.address().map_err(SendError::soon)?;
        let parts = parts(&url);
        let hidden: Vec<&str> = secrets
            .iter()
            .copied()
            .chain(parts.iter().map(String::as_str))
            .collect();
        for _ in 0..=REDIRECTS {
            let request = self
                .client
                .post(url.clone())
                .header("content-type", "application/json")
                .headers(headers.clone())
                .body(body.clone());
            let response = request
                .send()
                .await
                .map_err(|why| SendError::soon(secret::hide(&unreachable(&url, why), &hidden)))?;
            let status = response.status();
            if status.is_success() {
                return Ok(());
            }
            if status.is_redirection() {
                url = target(&url, &response).map_err(SendError::never)?;
                continue;
            }
            return Err(refusal(&url, response, &hidden).await);
        }
        Err(SendError::never(format!(
            "{} redirects more than {REDIRECTS} times; name the final URL",
            origin(&url)
        )))
    }
}

/// What may be secret in a URL, as an answer could repeat it: the path of a Slack URL is, and a token in a query.
fn parts(url: &Url) -> Vec<String> {
    let mut parts = vec![
        url.to_string(),
        format!("{}?{}", url.path(), url.query().unwrap_or_default()),
        url.path().to_owned(),
        url.username().to_owned(),
        url.password().unwrap_or_default().to_owned(),
    ];
    parts.extend(url.query().map(str::to_owned));
    parts.extend(url.query_pairs().map(|(_, value)| value.into_owned()));
    parts
}

async fn refusal(url: &Url, response: Response, hidden: &[&str]) -> SendError {
    let status = response.status();
    let retry_after = retry_after(response.headers(), SystemTime::now());
    let said = start_of(response).await;
    let said = match said.is_empty() {
        true => String::new(),
        false => format!(": {said}"),
    };
    let why = format!("{} answers {}{said}", origin(url), status.as_u16());
    let may_come_right = status.is_server_error()
        || matches!(
            status,
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS
        );
    let again = match (may_come_right, retry_after) {
        (false, _) => RetryAdvice::Never,
        (true, Some(retry_after)) => RetryAdvice::NotBefore(retry_after),
        (true, None) => RetryAdvice::Soon,
    };
    SendError {
        why: secret::hide(&why, hidden),
        again,
    }
}

/// `Retry-After` (RFC 9110, 10.2.3): seconds, or the time when it is over.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let retry_after = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let then = httpdate::parse_http_date(text).ok()?;
            then.duration_since(now).unwrap_or_default()
        }
    };
    Some(retry_after.min(LONGEST_RETRY_AFTER))
}

async fn start_of(mut response: Response) -> String {
    let mut bytes = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        bytes.extend_from_slice(&chunk);
        if bytes.len() >= ANSWER {
            break;
        }
    }
    sanitize::line(String::from_utf8_lossy(&bytes).trim(), sanitize::FIELD)
}

/// Where a redirect leads, when that is the same origin and the same request.
fn target(from: &Url, response: &Response) -> Result<Url, String> {
    let status = response.status().as_u16();
    let keeps_the_body = matches!(status, 307 | 308);
    let location = response.headers().get(LOCATION);
    next(from, location.map(|value| value.as_bytes()), keeps_the_body)
        .map_err(|why| format!("{} answers {status}: {why}", origin(from)))
}

fn next(from: &Url, location: Option<&[u8]>, keeps_the_body: bool) -> Result<Url, String> {
    let location = location
        .and_then(|location| std::str::from_utf8(location).ok())
        .ok_or("a redirect to nowhere")?;
    let mut to = from
        .join(location)
        .map_err(|_| "a redirect to what is no URL")?;
    if to.origin() != from.origin() {
        return Err(format!(
            "a redirect to {} is not followed, because nobody named that host; name the final URL",
            origin(&to)
        ));
    }
    if !keeps_the_body {
        return Err(
            "it wants the notice to be sent elsewhere without its body; name the final URL"
                .to_owned(),
        );
    }
    // The login stays ours.
    let _ = to.set_username(from.username());
    let _ = to.set_password(from.password());
    Ok(to)
}

/// A URL without anything that may be secret.
fn origin(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    let port = url.port().map(|port| format!(":{port}"));
    let origin = format!("{}://{host}{}", url.scheme(), port.unwrap_or_default());
    sanitize::line(&origin, sanitize::FIELD)
}

fn unreachable(url: &Url, error: reqwest::Error) -> String {
    let what = match error.is_timeout() {
        true => "does not answer in time",
        false => "cannot be reached",
    };
    let error = error.without_url();
    let mut cause: &dyn std::error::Error = &error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let cause = sanitize::line(&cause.to_string(), sanitize::FIELD);
    format!("{} {what} ({cause})", origin(url))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_origin_is_followed() {
        let from = Url::parse("https://user:pw@h.example:8443/a/b?token=x").unwrap();
        let next = |location: &str, keeps| super::next(&from, Some(location.as_bytes()), keeps);
        assert_eq!(
            next("/c", true).unwrap().as_str(),
            "https://user:pw@h.example:8443/c"
        );
        assert_eq!(
            next("https://evil:x@h.example:8443/c", true)
                .unwrap()
                .as_str(),
            "https://user:pw@h.example:8443/c"
        );
        assert!(next("/c", false).unwrap_err().contains("without its body"));
        for location in [
            "https://h.example/c",
            "http://h.example:8443/c",
            "//evil.example/c",
            "https://h.example:8443@evil.example/s3cret",
            "file:///etc/passwd",
        ] {
            let why = next(location, true).unwrap_err();
            assert!(
                why.contains("nobody named") && !why.contains("s3cret"),
                "{why}"
            );
        }
        assert!(super::next(&from, None, true).is_err());
    }

    #[test]
    fn retry_after_is_seconds_or_a_date_and_has_a_limit() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        for (text, seconds) in [
            ("30", Some(30)),
            ("99999999999", Some(3_600)),
            ("Sun, 06 Nov 1994 08:50:07 GMT", Some(30)),
            ("Sun, 06 Nov 1994 08:00:00 GMT", Some(0)),
            ("soon", None),
            ("-1", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, text.parse().unwrap());
            assert_eq!(
                retry_after(&headers, now),
                seconds.map(Duration::from_secs),
                "{text}"
            );
        }
    }
}
