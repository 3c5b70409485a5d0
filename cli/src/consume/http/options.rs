//! The options of `consume --http`, read and checked before anything is connected.

use std::{path::PathBuf, sync::Arc, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use clap::Args;
use percent_encoding::percent_decode_str;
use reqwest::{
    StatusCode, Url,
    header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue},
};
use retryrmq_operator::webhook_signature;

use super::{
    Endpoint,
    client::{self, HttpClientConfig},
    cloud_event::CloudEvents,
    redirect, request,
    secret::{self, RedactedTexts, SecretFile, SecretOption},
    signature::SigningKeys,
};
use crate::{error::CliError, redact};

/// How long an answer may take, unless `--timeout` says otherwise.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Messages over HTTP.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "HTTP")]
pub(in super::super) struct HttpOptions {
    /// POST each message to this URL instead of running a command: 2xx acknowledges, 422 parks, all else retries
    ///
    /// http:// or https://; a login in it is sent as basic authentication. Other users of the machine can see the arguments
    /// of a program: a token belongs in --bearer-file.
    #[arg(long, value_name = "URL")]
    http: Option<SecretOption>,

    /// The statuses that park a message, with commas between them, or `none` [default: 422]
    #[arg(long, value_name = "STATUS", value_delimiter = ',')]
    park_status: Vec<String>,

    /// A header of each request; may be given several times. It replaces the message's header of that name
    #[arg(long = "header", value_name = "NAME: VALUE")]
    headers: Vec<SecretOption>,

    /// Send CloudEvents 1.0: each message in binary mode, or with --batch a batch of events. SOURCE is the `source` of messages that
    /// are no CloudEvents themselves [default: /queues/QUEUE]
    #[arg(long, value_name = "SOURCE", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    cloudevents: Option<String>,

    /// A file with a bearer token, which is sent with each request; read again when it changes
    #[arg(long, value_name = "FILE")]
    bearer_file: Option<PathBuf>,

    /// A file with a secret (whsec_…) to sign each request with, by the Standard Webhooks specification; read again when it
    /// changes. Several, one a line, make several signatures
    #[arg(long, value_name = "FILE")]
    sign_secret_file: Option<PathBuf>,

    /// A PEM file with the authorities that may have signed the endpoint's certificate [default: those of the system]
    #[arg(long, value_name = "FILE")]
    http_ca: Option<PathBuf>,

    /// HTTP/2 without TLS, to an endpoint that is known to speak it; with https:// HTTP/2 is negotiated
    #[arg(long)]
    http2_prior_knowledge: bool,
}

impl HttpOptions {
    /// Where messages go, if that is an endpoint.
    ///
    /// # Errors
    /// A sentence that names the option and what to change.
    pub(in super::super) fn endpoint(
        &self,
        timeout: Option<Duration>,
        longest: Duration,
    ) -> Result<Option<Endpoint>, CliError> {
        let Some(SecretOption(url)) = &self.http else {
            return match self.any() {
                Some(option) => Err(CliError::usage(format!(
                    "{option} needs --http: a command has no use for it"
                ))),
                None => Ok(None),
            };
        };
        let mut hidden = RedactedTexts::default();
        let (url, login) = read_url(url, &mut hidden)?;
        let is_tls = url.scheme() == "https";
        if !is_tls && self.http_ca.is_some() {
            return Err(CliError::usage(
                "--http-ca is for https://, and the URL is http://",
            ));
        }
        if is_tls && self.http2_prior_knowledge {
            return Err(CliError::usage(
                "--http2-prior-knowledge is for http://; with https:// HTTP/2 is agreed on by itself",
            ));
        }
        let mut headers = self.own_headers(&mut hidden)?;
        let logins = [
            ("a login in the URL", login.is_some()),
            ("--bearer-file", self.bearer_file.is_some()),
            (
                "--header Authorization",
                headers.contains_key(AUTHORIZATION),
            ),
        ];
        let given: Vec<&str> = logins
            .iter()
            .filter(|(_, is_given)| *is_given)
            .map(|(name, _)| *name)
            .collect();
        if let [one, another, ..] = given[..] {
            return Err(CliError::usage(format!(
                "{one} and {another} cannot be combined: a request has one Authorization"
            )));
        }
        if let Some(login) = login {
            headers.insert(AUTHORIZATION, login);
        }
        let cloud_events = self.cloudevents.as_deref().map(CloudEvents::new);
        let cloud_events = cloud_events.transpose();
        let cloud_events =
            cloud_events.map_err(|why| CliError::usage(format!("--cloudevents: {why}")))?;
        let timeout = timeout.unwrap_or(TIMEOUT);
        let client = client::make(&HttpClientConfig {
            is_tls,
            ca: self.http_ca.as_deref(),
            http2_at_once: self.http2_prior_knowledge,
            timeout,
        })?;
        let bearer = self.bearer_file.as_deref();
        let bearer = bearer.map(|file| SecretFile::open("--bearer-file", file, secret::bearer));
        let sign = self.sign_secret_file.as_deref();
        let sign = sign.map(|file| {
            SecretFile::open("--sign-secret-file", file, |text| {
                SigningKeys::read(text).map(Arc::new)
            })
        });
        Ok(Some(Endpoint {
            client,
            origin: redirect::shown(&url),
            url,
            headers,
            cloud_events,
            bearer: bearer.transpose()?,
            sign: sign.transpose()?,
            hidden,
            park: self.park()?,
            timeout,
            longest,
        }))
    }

    fn any(&self) -> Option<&'static str> {
        [
            ("--park-status", !self.park_status.is_empty()),
            ("--header", !self.headers.is_empty()),
            ("--cloudevents", self.cloudevents.is_some()),
            ("--bearer-file", self.bearer_file.is_some()),
            ("--sign-secret-file", self.sign_secret_file.is_some()),
            ("--http-ca", self.http_ca.is_some()),
            ("--http2-prior-knowledge", self.http2_prior_knowledge),
        ]
        .into_iter()
        .find_map(|(option, is_given)| is_given.then_some(option))
    }

    fn park(&self) -> Result<Vec<StatusCode>, CliError> {
        match &self.park_status[..] {
            [] => Ok(vec![StatusCode::UNPROCESSABLE_ENTITY]),
            [none] if none == "none" => Ok(Vec::new()),
            all => all.iter().map(|text| status(text.trim())).collect(),
        }
    }

    fn own_headers(&self, hidden: &mut RedactedTexts) -> Result<HeaderMap, CliError> {
        let mut all = HeaderMap::new();
        for (number, SecretOption(text)) in self.headers.iter().enumerate() {
            let bad = |why: &str| {
                CliError::usage(format!(
                    "--header, number {}: {why}; write it like 'Name: value'",
                    number + 1
                ))
            };
            let (name, value) = text.split_once(':').ok_or_else(|| bad("it has no colon"))?;
            let name: HeaderName = name
                .trim()
                .parse()
                .map_err(|_| bad("the name before the colon is not a valid header name"))?;
            if is_ours(name.as_str()) {
                return Err(bad(&format!("`{name}` is set by retryrmq")));
            }
            let mut value = HeaderValue::from_str(value.trim())
                .map_err(|_| bad(&format!("the value of `{name}` must be printable ASCII")))?;
            value.set_sensitive(true);
            if redact::is_telling(name.as_str()) {
                hidden.add_bearer(&value);
                hidden.add(value.to_str().unwrap_or_default());
            }
            if all.insert(name.clone(), value).is_some() {
                return Err(bad(&format!("`{name}` is given twice")));
            }
        }
        Ok(all)
    }
}

/// What the request has of its own, or of the connection's.
fn is_ours(name: &str) -> bool {
    let reserved = [
        "host",
        "content-length",
        "transfer-encoding",
        "connection",
        "te",
        "trailer",
        "upgrade",
        "expect",
        webhook_signature::ID,
        webhook_signature::TIMESTAMP,
        webhook_signature::SIGNATURE,
    ];
    name.starts_with(request::PREFIX) || reserved.contains(&name)
}

fn status(text: &str) -> Result<StatusCode, CliError> {
    let number = text
        .parse::<u16>()
        .ok()
        .filter(|number| (300..=599).contains(number));
    number
        .and_then(|number| StatusCode::from_u16(number).ok())
        .ok_or_else(|| {
            let shown: String = text.chars().take(20).collect();
            CliError::usage(format!(
                "--park-status: `{}` is not a status that can park; write numbers from 300 to 599, such as 400,422, or none",
                retryrmq::terminal_escape::line(&shown)
            ))
        })
}

/// The URL without its login, and the login as a header.
fn read_url(
    text: &str,
    hidden: &mut RedactedTexts,
) -> Result<(Url, Option<HeaderValue>), CliError> {
    let bad = |why: String| {
        CliError::usage(format!(
            "--http: {why}; write it like http://127.0.0.1:8080/orders"
        ))
    };
    let mut url = Url::parse(text).map_err(|why| bad(format!("it is not a URL ({why})")))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(bad(format!(
            "its scheme is `{}`, not http or https",
            url.scheme()
        )));
    }
    for (name, value) in url.query_pairs() {
        if redact::is_telling(&name) {
            hidden.add(value);
        }
    }
    let decoded = |part: &str| {
        let text = percent_decode_str(part).decode_utf8();
        text.map(String::from)
            .map_err(|_| bad("its login is not UTF-8".to_owned()))
    };
    let (user, password) = (
        decoded(url.username())?,
        decoded(url.password().unwrap_or_default())?,
    );
    if user.is_empty() && url.password().is_none() {
        url.set_fragment(None);
        return Ok((url, None));
    }
    let login = BASE64_STANDARD.encode(format!("{user}:{password}"));
    let mut header = HeaderValue::from_str(&format!("Basic {login}"))
        .map_err(|_| bad("its login cannot be sent".to_owned()))?;
    header.set_sensitive(true);
    hidden.add(login);
    hidden.add(password);
    let removed = url.set_username("").and_then(|()| url.set_password(None));
    removed.map_err(|()| bad("it has a login and no host".to_owned()))?;
    url.set_fragment(None);
    Ok((url, Some(header)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_leaves_the_url_and_what_it_is_stays_hidden() {
        let mut hidden = RedactedTexts::default();
        let url = "https://us%20er:p%40ss-w0rd@h.example/a?api_key=k3y-k3y&b=1#c";
        let (url, login) = read_url(url, &mut hidden).unwrap();
        assert_eq!(url.as_str(), "https://h.example/a?api_key=k3y-k3y&b=1");
        let login = login.unwrap();
        assert_eq!(login, "Basic dXMgZXI6cEBzcy13MHJk");
        let echo = format!("{} p@ss-w0rd k3y-k3y", login.to_str().unwrap());
        assert_eq!(hidden.hide(&echo), "Basic *** *** ***");
        assert!(!format!("{login:?}").contains("dXM"));
        for text in [
            "",
            "orders",
            "ftp://h/",
            "http://",
            "http://h:99999/",
            "mailto:a@b",
        ] {
            assert!(
                read_url(text, &mut RedactedTexts::default()).is_err(),
                "{text}"
            );
        }
    }

    #[test]
    fn what_the_request_has_of_its_own_is_not_for_options() {
        for name in ["host", "retryrmq-attempt", "webhook-id", "content-length"] {
            assert!(is_ours(name), "{name}");
        }
        for name in ["content-type", "x-tenant", "authorization"] {
            assert!(!is_ours(name), "{name}");
        }
        assert!(status("422").is_ok() && status("200").is_err() && status("x").is_err());
    }
}
