//! Mail, by SMTP.

use std::{path::PathBuf, time::Duration};

use lettre::{
    AsyncSmtpTransport, AsyncTransport, Message, Tokio1Executor,
    message::{Mailbox, header::ContentType},
    transport::smtp::{
        authentication::Credentials,
        client::{Certificate, Tls, TlsParameters},
    },
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    SendResult,
    secret::{self, SecretSource},
    send_result::SendError,
};
use crate::{
    alerts::{ConfigDuration, Notice, Severity, sanitize},
    tls::authorities,
};

/// How the connection to the mail server is secured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SmtpSecurity {
    /// TLS from the first byte, as on port 465.
    Tls,
    /// TLS after `STARTTLS`, as on port 587; refused where the server has none.
    #[default]
    Starttls,
    /// None: for a server on the same machine.
    None,
}

/// Sends mail.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Smtp {
    /// The mail server.
    pub host: String,
    /// Its port; 465, 587 or 25, as `security` has it.
    #[serde(default)]
    pub port: Option<u16>,
    /// How the connection is secured.
    #[serde(default)]
    pub security: SmtpSecurity,
    /// A PEM file of the only authorities that count; otherwise those of the system.
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// Who logs in; nobody without it.
    #[serde(default)]
    pub user: Option<String>,
    /// A file that holds the password.
    #[serde(default)]
    pub password_file: Option<PathBuf>,
    /// An environment variable that holds the password.
    #[serde(default)]
    pub password_env: Option<String>,
    /// The sender, such as `Retries <retryrmq@example.com>`.
    pub from: String,
    /// Who gets it.
    pub to: Vec<String>,
    /// How long one try may take; 10 s.
    #[serde(default)]
    pub timeout: Option<ConfigDuration>,
}

/// A line of a header has 998 characters at most, and a subject is read on a phone.
const SUBJECT: usize = 200;

#[derive(Debug)]
pub(super) struct SmtpClient {
    host: String,
    port: u16,
    tls: Tls,
    login: Option<(String, SecretSource)>,
    from: Mailbox,
    to: Vec<Mailbox>,
    timeout: Duration,
}

impl Smtp {
    pub(super) fn open(&self) -> Result<SmtpClient, String> {
        let password = SecretSource::of(
            "password",
            None,
            self.password_file.as_deref(),
            self.password_env.as_deref(),
        )?;
        let login = match (&self.user, password) {
            (Some(user), Some(password)) => {
                if self.security == SmtpSecurity::None && !is_here(&self.host) {
                    return Err("a password is not sent without TLS to another machine; say `security = \"starttls\"`".to_owned());
                }
                password.read()?;
                Some((user.clone(), password))
            }
            (None, None) => None,
            (Some(_), None) => {
                return Err("`user` needs `password_file` or `password_env`".to_owned());
            }
            (None, Some(_)) => return Err("the password needs a `user`".to_owned()),
        };
        let mailbox = |address: &String| -> Result<Mailbox, String> {
            address.parse().map_err(|_| {
                format!(
                    "`{}` is no mail address",
                    sanitize::line(address, sanitize::FIELD)
                )
            })
        };
        if self.to.is_empty() {
            return Err("`to` names nobody".to_owned());
        }
        Ok(SmtpClient {
            host: self.host.clone(),
            port: self.port.unwrap_or(match self.security {
                SmtpSecurity::Tls => 465,
                SmtpSecurity::Starttls => 587,
                SmtpSecurity::None => 25,
            }),
            tls: self.tls()?,
            login,
            from: mailbox(&self.from)?,
            to: self.to.iter().map(mailbox).collect::<Result<_, _>>()?,
            timeout: super::timeout(self.timeout),
        })
    }

    fn tls(&self) -> Result<Tls, String> {
        if self.security == SmtpSecurity::None {
            return Ok(Tls::None);
        }
        let mut parameters = TlsParameters::builder(self.host.clone());
        if let Some(file) = &self.ca {
            parameters = parameters
                .certificate_store(lettre::transport::smtp::client::CertificateStore::None);
            for authority in authorities(file)? {
                let certificate = Certificate::from_der(authority.to_vec()).map_err(|_| {
                    format!(
                        "the file `ca` {}: it holds a bad certificate",
                        file.display()
                    )
                })?;
                parameters = parameters.add_root_certificate(certificate);
            }
        }
        let parameters = parameters
            .build_rustls()
            .map_err(|why| format!("TLS to the mail server cannot be set up: {why}"))?;
        Ok(match self.security {
            SmtpSecurity::Tls => Tls::Wrapper(parameters),
            SmtpSecurity::Starttls | SmtpSecurity::None => Tls::Required(parameters),
        })
    }
}

fn is_here(host: &str) -> bool {
    host == "localhost"
        || host
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

impl SmtpClient {
    pub(super) async fn send(&self, notice: &Notice) -> SendResult {
        let message = self.message(notice).map_err(SendError::never)?;
        let mut transport = AsyncSmtpTransport::<Tokio1Executor>::builder_dangerous(&self.host)
            .port(self.port)
            .tls(self.tls.clone())
            .timeout(Some(self.timeout));
        let mut hidden = String::new();
        if let Some((user, password)) = &self.login {
            hidden = password.read().map_err(SendError::soon)?;
            transport = transport.credentials(Credentials::new(user.clone(), hidden.clone()));
        }
        // The time of the library is that of one command.
        let sending = transport.build();
        match tokio::time::timeout(self.timeout * 2, sending.send(message)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => {
                let cause = sanitize::line(&error.to_string(), sanitize::FIELD);
                let why = format!("the mail server {} refuses or fails: {cause}", self.host);
                let why = secret::hide(&why, &[&hidden]);
                match error.is_permanent() {
                    true => Err(SendError::never(why)),
                    false => Err(SendError::soon(why)),
                }
            }
            Err(_) => Err(SendError::soon(format!(
                "the mail server {} does not answer in time",
                self.host
            ))),
        }
    }

    fn message(&self, notice: &Notice) -> Result<Message, String> {
        let subject = format!("[{}] {}", notice.service, notice.summary);
        let host = "retryrmq.invalid";
        let thread = format!("<{}@{host}>", ascii(&notice.incident));
        let mut message = Message::builder()
            .from(self.from.clone())
            .subject(sanitize::line(&subject, SUBJECT))
            .message_id(Some(format!(
                "<{}.{}@{host}>",
                ascii(&notice.incident),
                notice.number
            )))
            // All mails of an incident are one thread, whose first message is never sent.
            .references(thread.clone())
            .in_reply_to(thread);
        for to in &self.to {
            message = message.to(to.clone());
        }
        message
            .header(ContentType::TEXT_PLAIN)
            .body(body(notice))
            .map_err(|why| format!("the mail cannot be written: {why}"))
    }
}

/// What may stand in an id.
fn ascii(text: &str) -> String {
    let fits = |c: char| {
        if c.is_ascii_alphanumeric() || c == '-' {
            c
        } else {
            '_'
        }
    };
    text.chars().map(fits).take(120).collect()
}

fn body(notice: &Notice) -> String {
    let mut lines = vec![notice.summary.clone(), String::new()];
    let mut line = |name: &str, value: &str| {
        if !value.is_empty() {
            lines.push(format!("{name}: {value}"));
        }
    };
    line("queue", &notice.queue);
    line("virtual host", notice.vhost.as_deref().unwrap_or_default());
    line("reason", &notice.reason);
    line("error", &notice.error);
    line("error type", &notice.error_type);
    if notice.vhost.is_none() {
        line("messages", &notice.count.to_string());
        line("in the last minute", &notice.per_minute.to_string());
        line("fingerprint", &notice.fingerprint);
        line("routing key", &notice.routing_key);
        line(
            "message-id",
            notice.message_id.as_deref().unwrap_or_default(),
        );
        line("type", notice.type_name.as_deref().unwrap_or_default());
    }
    for (name, value) in &notice.fields {
        line(name, value);
    }
    line("first seen", &notice.first.to_string());
    line("last seen", &notice.last.to_string());
    let severity: Severity = notice.severity;
    line("severity", severity.as_str());
    line("rule", &notice.rule);
    line("incident", &notice.incident);
    lines.join("\r\n")
}

#[cfg(test)]
mod tests {
    use super::{super::tests::notice, *};

    fn smtp() -> Smtp {
        Smtp {
            host: "127.0.0.1".to_owned(),
            port: None,
            security: SmtpSecurity::None,
            ca: None,
            user: None,
            password_file: None,
            password_env: None,
            from: "Retries <retries@example.com>".to_owned(),
            to: vec!["a@example.com".to_owned()],
            timeout: None,
        }
    }

    #[test]
    fn no_stranger_writes_a_header() {
        let hostile = Notice {
            summary: "x\r\nBcc: evil@example.com\r\n\r\nbody ☃".to_owned(),
            incident: "p\r\nX: y".to_owned(),
            ..notice()
        };
        let message = smtp().open().unwrap().message(&hostile).unwrap();
        let text = String::from_utf8(message.formatted()).unwrap();
        let head = text.split("\r\n\r\n").next().unwrap();
        assert!(
            !head.contains("\r\nBcc:") && !head.contains("\r\nX:"),
            "{head}"
        );
        assert_eq!(message.envelope().to().len(), 1);
    }

    #[test]
    fn what_cannot_work_is_refused_with_a_sentence() {
        type Change = fn(&mut Smtp);
        for (change, words) in [
            ((|s| s.to.clear()) as Change, "names nobody"),
            (|s| s.from = "nobody".into(), "no mail address"),
            (|s| s.user = Some("u".into()), "needs `password_file`"),
            (|s| s.password_env = Some("X".into()), "needs a `user`"),
            (
                |s| {
                    s.security = SmtpSecurity::Tls;
                    s.ca = Some("/dev/null".into());
                },
                "holds no certificate",
            ),
            (
                |s| {
                    s.host = "mail.example.com".into();
                    s.user = Some("u".into());
                    s.password_env = Some("PATH".into());
                },
                "without TLS",
            ),
        ] {
            let mut smtp = smtp();
            change(&mut smtp);
            let why = smtp.open().unwrap_err();
            assert!(why.contains(words), "{why}");
        }
    }
}
