//! Refusals in sentences: what is missing, and who can give it.

use reqwest::StatusCode;
use serde_json::Value;

use super::{Error, Management, ManagementErrorKind};

impl Management {
    pub(super) fn unreachable(&self, why: &reqwest::Error) -> Error {
        let cause = cause(why);
        let hint = if why.is_timeout() {
            "it does not answer in time; is the broker overloaded, or a firewall between?"
        } else if cause.contains("UnknownIssuer") {
            "its certificate is signed by nobody known here: name the CA with --management-ca FILE"
        } else if cause.contains("certificate")
            || cause.contains("TLS")
            || cause.contains("InvalidContentType")
        {
            "TLS failed: is it http:// rather than https://, and is the host the one on the certificate?"
        } else if cause.contains("HTTP version") {
            "what answers there does not speak HTTP: is it https://, or the broker's AMQP port? Say --management URL"
        } else if why.is_connect() {
            "is the plugin on (`rabbitmq-plugins enable rabbitmq_management`)? If it listens elsewhere, pass --management URL"
        } else {
            "does the management API listen there? Say --management URL if it listens elsewhere"
        };
        Error::new(
            ManagementErrorKind::Unreachable,
            format!(
                "the management API does not answer at {}: {hint} ({cause})",
                self.address
            ),
        )
    }

    pub(super) fn is_something_else(&self) -> Error {
        Error::new(
            ManagementErrorKind::Unreachable,
            format!(
                "what answers at {} is not RabbitMQ's management API; pass its address with --management URL",
                self.address
            ),
        )
    }

    pub(super) fn no_vhost(&self, vhost: &str) -> Error {
        Error::new(
            ManagementErrorKind::NotFound,
            format!(
                "the virtual host `{vhost}` is not there, or user `{}` has no permissions in it (`rabbitmqctl list_permissions -p {}`)",
                self.address.user,
                shell_words::quote(vhost)
            ),
        )
    }

    pub(super) fn refused(&self, status: StatusCode, bytes: &[u8], path: &[&str]) -> Error {
        let said: Value = serde_json::from_slice(bytes).unwrap_or_default();
        let reason = said["reason"].as_str().unwrap_or_default().trim();
        let user = &self.address.user;
        let login = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        if login {
            let forbidden = |sentence: String| Error::new(ManagementErrorKind::Forbidden, sentence);
            let tagged = |tag: &str, what: &str| {
                forbidden(format!(
                    "user `{user}` may not {what}: an administrator has to give it the tag `{tag}` (`rabbitmqctl set_user_tags {} {tag}`, \
                     which replaces its other tags)",
                    shell_words::quote(user)
                ))
            };
            let place = path.get(1).copied().unwrap_or_default();
            return match reason {
                _ if reason.contains("Not management user") => {
                    tagged("management", "use the management API")
                }
                _ if matches!(path.first(), Some(&"users" | &"permissions"))
                    && !reason.is_empty() =>
                {
                    tagged("administrator", "see or change what users may do")
                }
                _ if reason.contains("virtual host") => self.no_vhost(place),
                _ if reason.contains("access object") && path.contains(&"policies") => {
                    tagged("policymaker", "change policies")
                }
                _ if reason.contains("access object") => tagged("monitoring", "see this"),
                _ if reason.contains("Access refused") || reason.contains("ACCESS_REFUSED") => {
                    forbidden(format!(
                        "user `{user}` may not do this to `{}` in virtual host `{place}`: it lacks the permission to configure it \
                         (`rabbitmqctl list_permissions -p {}`)",
                        path.last().copied().unwrap_or_default(),
                        shell_words::quote(place)
                    ))
                }
                _ => Error::new(
                    ManagementErrorKind::Login,
                    format!(
                        "{} refuses the login of user `{user}`: the user or the password is wrong, or `guest` asks from another machine",
                        self.address
                    ),
                ),
            };
        }
        if status.is_redirection() {
            return Error::new(
                ManagementErrorKind::Unreachable,
                format!(
                    "{} sends elsewhere: say the address it means with --management URL",
                    self.address
                ),
            );
        }
        if reason.is_empty() {
            return match said["error"].as_str() {
                Some(_) => Error::new(
                    ManagementErrorKind::Broken,
                    format!("the management API failed with {status}"),
                ),
                None => self.is_something_else(),
            };
        }
        let reason: String = reason.split_whitespace().collect::<Vec<_>>().join(" ");
        let kind = if status.is_server_error() {
            ManagementErrorKind::Broken
        } else {
            ManagementErrorKind::Refused
        };
        Error::new(kind, format!("the management API refuses this: {reason}"))
    }
}

/// The innermost cause: the outer ones repeat the URL.
pub(super) fn cause(error: &reqwest::Error) -> String {
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
