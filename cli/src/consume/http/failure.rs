//! What becomes of a request that was never answered: a failure with a type that rules and groups can rely on.

use std::error::Error;

use reqwest::Error as HttpError;
use retryrmq::{Failure, terminal_escape};

/// The failure of a request to `origin`. Nothing of the URL beyond that is in it.
pub(super) fn of(error: &HttpError, origin: &str) -> Failure {
    let why = cause(error);
    let (kind, text) = if let Some(tls) = find::<rustls::Error>(error) {
        (
            "TlsFailed",
            format!("TLS with {origin} failed: {tls}{}", hint(tls)),
        )
    } else if error.is_connect() || error.is_dns() {
        (
            "ConnectionFailed",
            format!("cannot connect to {origin}: {why}"),
        )
    } else {
        (
            "NoAnswer",
            format!("{origin} took the connection, and gave no answer that is HTTP: {why}"),
        )
    };
    let text: String = text.chars().take(1_000).collect();
    Failure::new(terminal_escape::line(&text)).of_type(kind)
}

/// The innermost reason, which is the one that says something.
fn cause(error: &HttpError) -> String {
    let mut innermost: &dyn Error = error;
    while let Some(inner) = innermost.source() {
        innermost = inner;
    }
    if innermost.is::<HttpError>() {
        // Its own text names the URL.
        return "the request could not be sent".to_owned();
    }
    let text = innermost.to_string();
    text.split(" (os error")
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// The error of type `T` among the causes; one in an I/O error, too, which does not name it as its source.
fn find<'a, T: Error + 'static>(error: &'a HttpError) -> Option<&'a T> {
    let mut next: Option<&'a (dyn Error + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<T>() {
            return Some(found);
        }
        let io = error.downcast_ref::<std::io::Error>();
        next = match io.and_then(std::io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}

fn hint(error: &rustls::Error) -> &'static str {
    match error {
        rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType) => {
            "; the port answers without TLS: use http://, or the endpoint's TLS port"
        }
        rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer) => {
            "; name its CA with --http-ca"
        }
        _ => "",
    }
}
