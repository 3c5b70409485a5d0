//! What may be said in the policy file, in the environment and as a flag.

use std::{fmt, net::SocketAddr, num::NonZeroU16, path::PathBuf};

use bytesize::ByteSize;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::{LogFormat, redaction::HIDDEN};

/// The section `[service]`: how the program runs. A flag comes before the environment, that before this section, and this before the default. It is read at the
/// start: a change needs a restart.
#[derive(Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The broker, as `--url`. Name the file of the password in it (`?passwordfile=…`) rather than the password.
    pub url: Option<String>,
    /// Where the pages are served, as `--listen`.
    #[schemars(with = "Option<String>")]
    pub listen: Option<SocketAddr>,
    /// Dead letters on their way at a time, as `--prefetch`.
    pub prefetch: Option<NonZeroU16>,
    /// How much memory decoded bodies may take, such as `256MiB`, as `--memory`.
    #[schemars(with = "Option<String>")]
    pub memory: Option<ByteSize>,
    /// The management API, as `--management`.
    pub management: Option<String>,
    /// A file with the CA of its certificate, as `--management-ca`.
    pub management_ca: Option<PathBuf>,
    /// How the log looks, as `--log`.
    pub log: Option<LogFormat>,
}

/// Without the addresses, which may hold a password.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("url", &self.url.as_ref().map(|_| HIDDEN))
            .field("listen", &self.listen)
            .field("prefetch", &self.prefetch)
            .field("memory", &self.memory)
            .field("management", &self.management.as_ref().map(|_| HIDDEN))
            .field("management_ca", &self.management_ca)
            .field("log", &self.log)
            .finish()
    }
}

/// What was said first: of the command line and the environment, then of the file. An empty text says nothing.
#[must_use]
pub fn first(said: Option<String>, in_file: Option<String>) -> Option<String> {
    let is_given = |text: &String| !text.trim().is_empty();
    said.filter(is_given).or_else(|| in_file.filter(is_given))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_hold_a_password_is_not_told() {
        let settings = Settings {
            url: Some("amqp://u:hunter2@host".to_owned()),
            management: Some("http://u:hunter2@host".to_owned()),
            ..Settings::default()
        };
        let shown = format!("{settings:?}");
        assert!(
            shown.contains("Settings") && !shown.contains("hunter2"),
            "{shown}"
        );
    }
}
