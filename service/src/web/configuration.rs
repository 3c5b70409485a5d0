//! The table `[page]` of the policy file: who may see the page, and do what there.

use std::{
    collections::BTreeMap,
    io::{self, ErrorKind},
    net::IpAddr,
    path::PathBuf,
    sync::Once,
    time::Duration,
};

use axum::http::HeaderName;
use ipnet::IpNet;
use retryrmq::{Policy, secret_file, terminal_escape};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::{ConfigDuration, redaction};

/// Who may see the page, and do what there. Without tokens and proxy nobody may, and the page is turned off.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Configuration {
    /// People who sign in with a token.
    pub tokens: Vec<Token>,
    /// A proxy that signs people in (OpenID Connect), and says who they are.
    pub proxy: Option<Proxy>,
    /// Signed in with a token for so long.
    pub session: ConfigDuration,
    /// Dropped messages are kept for so long in `<queue>.parked.dropped`, by the queue's `x-message-ttl`. An existing queue is used as it is.
    pub keep_dropped: ConfigDuration,
    /// Headers and fields of bodies whose name fits are shown as `***`; `*` is any text, case is ignored.
    pub redact: Vec<String>,
    /// What else is hidden, by queue. All that fit hold.
    pub masks: Vec<Mask>,
}

/// What the page is given of the policy file.
#[derive(Debug)]
pub(crate) struct WebConfig {
    pub(crate) page: Configuration,
    /// The policies by which messages wait: they name the queues in which waiting messages are found.
    pub(crate) retry_policies: Vec<Policy>,
    /// Whether messages may be published with a delay.
    pub(crate) has_delayed_exchanges: bool,
}

/// Somebody who signs in with a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Token {
    /// Who it is: the history names people so.
    pub name: String,
    /// What they may do.
    pub role: Role,
    /// The file with the token, 16 characters at least. It is read at each use: a new one ends the sessions of the old one.
    pub file: PathBuf,
}

/// What somebody may do. Each may do what the one before may.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// See everything but what is masked.
    Reader,
    /// Replay, cancel, silence, scan a parking queue.
    Operator,
    /// Drop.
    Admin,
}

/// A proxy that signs people in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Proxy {
    /// The addresses, or networks such as `10.1.0.0/16`, that it comes from. Headers of anybody else are not believed.
    pub addresses: Vec<String>,
    /// The header with the person's name.
    #[serde(default = "user_header")]
    pub user: String,
    /// The header with the person's groups, between commas.
    #[serde(default = "groups_header")]
    pub groups: String,
    /// What the people of a group may do; `*` is everybody whom the proxy lets in. The highest role counts.
    pub roles: BTreeMap<String, Role>,
}

/// What is hidden of a queue's messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mask {
    /// The queue; `*` is any text.
    #[serde(default = "any")]
    pub queue: String,
    /// Fields of bodies: names between dots, as `customer.card` or `items.*.price`; `*` is any name, or any place in a list.
    #[serde(default)]
    pub fields: Vec<String>,
    /// Headers; `*` is any text, case is ignored.
    #[serde(default)]
    pub headers: Vec<String>,
    /// Hide bodies altogether.
    #[serde(default)]
    pub body: bool,
}

fn user_header() -> String {
    "x-forwarded-user".to_owned()
}

fn groups_header() -> String {
    "x-forwarded-groups".to_owned()
}

fn any() -> String {
    "*".to_owned()
}

impl Default for Configuration {
    fn default() -> Self {
        Self {
            tokens: Vec::new(),
            proxy: None,
            session: ConfigDuration::minutes(12 * 60),
            keep_dropped: ConfigDuration::minutes(24 * 60),
            redact: redaction::usual(),
            masks: Vec::new(),
        }
    }
}

impl Configuration {
    /// # Errors
    /// What to change, in a sentence, without a token.
    pub fn check(&self) -> Result<(), String> {
        let mut names = Vec::new();
        for token in &self.tokens {
            let place =
                |why: &str| format!("[[page.tokens]] `{}`: {why}", token.name.escape_debug());
            let is_plain = |name: &str| {
                !name.is_empty()
                    && name.len() <= 100
                    && name
                        .chars()
                        .all(|c| c.is_alphanumeric() || "-_@".contains(c))
            };
            if !is_plain(&token.name) {
                return Err(place("`name` must be letters, digits, `-`, `_` and `@`"));
            }
            if names.contains(&&token.name) {
                return Err(place("another token has this name"));
            }
            names.push(&token.name);
            token.read().map_err(|why| place(&why))?;
        }
        if let Some(proxy) = &self.proxy {
            if proxy.addresses.is_empty() {
                return Err(
                    "[page.proxy]: `addresses` names nobody, so that no header is believed; add the proxy's address"
                        .to_owned(),
                );
            }
            proxy.networks()?;
            for (key, name) in [("user", &proxy.user), ("groups", &proxy.groups)] {
                if name.parse::<HeaderName>().is_err() {
                    return Err(format!(
                        "[page.proxy]: `{key} = \"{}\"` is no name of a header, so that nobody would ever be let in by it",
                        name.escape_debug()
                    ));
                }
            }
            let is_said = |group: &&String| {
                group.trim() == group.as_str() && !group.contains(',') && !group.is_empty()
            };
            if let Some(group) = proxy.roles.keys().find(|group| !is_said(group)) {
                return Err(format!(
                    "[page.proxy]: no group is ever called \"{}\" in `roles`: the header has groups between commas, without spaces around them",
                    group.escape_debug()
                ));
            }
            if proxy.roles.is_empty() {
                return Err(
                    "[page.proxy]: `roles` is empty, so that nobody may do anything; add a group, or \"*\" = \"reader\""
                        .to_owned(),
                );
            }
        }
        if self.session < ConfigDuration::minutes(1) {
            return Err("[page]: `session` must be a minute at least, such as \"12h\"".to_owned());
        }
        if !(ConfigDuration::seconds(1)..=ConfigDuration::minutes(365 * 24 * 60))
            .contains(&self.keep_dropped)
        {
            return Err("[page]: `keep_dropped` must be 1s to 365d, such as \"1d\"".to_owned());
        }
        Ok(())
    }
}

/// A file answers at once, or nobody knows when.
const TIME_LIMIT: Duration = Duration::from_secs(2);
/// Shorter tokens are guessed.
const LEAST: usize = 16;

impl Token {
    /// The token now; nothing where the file is gone or has none.
    ///
    /// # Errors
    /// The file cannot be read now: nobody knows what the token is.
    pub(super) fn current(&self) -> io::Result<Option<String>> {
        match secret_file::read_blocking(&self.file, TIME_LIMIT) {
            Ok(text) => Ok(Some(text.trim())
                .filter(|token| token.len() >= LEAST)
                .map(str::to_owned)),
            Err(why) if matches!(why.kind(), ErrorKind::NotFound | ErrorKind::InvalidData) => {
                Ok(None)
            }
            Err(why) => Err(why),
        }
    }

    /// What is in the file now.
    ///
    /// # Errors
    /// Why it is no token, in a sentence that does not hold it.
    pub(super) fn read(&self) -> Result<String, String> {
        let file = self.file.display();
        let text = secret_file::read_blocking(&self.file, TIME_LIMIT)
            .map_err(|why| format!("cannot read the file {file}: {why}"))?;
        match text.trim() {
            token if token.len() >= LEAST => Ok(token.to_owned()),
            _ => Err(format!(
                "the token in {file} has fewer than {LEAST} characters: make one with `openssl rand -hex 32`"
            )),
        }
    }
}

/// Once: the header comes with each request of such a person.
fn warn_unreadable(header: &str, group: &[u8]) {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| {
        let group = String::from_utf8_lossy(group);
        let group: String = terminal_escape::line(&group).chars().take(100).collect();
        warn!(
            header,
            group,
            "a group in the proxy's header is not UTF-8, and gives nobody a role; the other groups count. Such a group is told once: let the proxy write UTF-8"
        );
    });
}

impl Proxy {
    fn networks(&self) -> Result<Vec<IpNet>, String> {
        let read = |text: &String| {
            let net = text.parse::<IpNet>();
            let net = net.or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
            net.map_err(|_| {
                format!(
                    "[page.proxy]: `{}` is no address and no network such as 10.1.0.0/16",
                    text.escape_debug()
                )
            })
        };
        self.addresses.iter().map(read).collect()
    }

    /// Whether headers from there are believed.
    pub(super) fn is_at(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        let networks = self.networks().unwrap_or_default(); // checked when it was read
        networks.iter().any(|network| network.contains(&peer))
    }

    /// The highest role of these groups, as the header has them. One that cannot be read gives no role, and takes none away.
    pub(super) fn role(&self, groups: &[u8]) -> Option<Role> {
        let of = |group: &str| self.roles.get(group).copied();
        let groups = groups.split(|byte| *byte == b',');
        let read = groups.filter_map(|group| match std::str::from_utf8(group) {
            Ok(group) => Some(group.trim()),
            Err(_) => {
                warn_unreadable(&self.groups, group);
                None
            }
        });
        read.filter_map(of).chain(of("*")).max()
    }
}
