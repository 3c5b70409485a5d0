//! Who asks for a page: by the headers of a proxy, or by a token.

use std::{
    net::IpAddr,
    time::{Duration, SystemTime},
};

use axum::http::{HeaderMap, HeaderValue, header};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use retryrmq::terminal_escape;
use ring::hmac;
use tracing::warn;

use super::configuration::{Configuration, Role, Token};

/// The cookie of somebody who signed in with a token.
pub(super) const SESSION: &str = "retryrmq_session";

/// A user who may see the page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) role: Role,
    /// Signed in with a token, and may sign out.
    pub(super) has_session: bool,
}

/// The result of checking who sent a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SignInResult {
    /// A known user.
    Known(User),
    /// The user has to sign in first.
    SignIn,
    /// Access is denied, for this reason.
    Refused(&'static str),
}

/// Decides who asks. Files with tokens are read.
pub(super) fn entry(
    page: &Configuration,
    peer: IpAddr,
    headers: &HeaderMap,
    now: SystemTime,
) -> SignInResult {
    // Names of people and groups are UTF-8.
    let text = |name: &str| std::str::from_utf8(headers.get(name)?.as_bytes()).ok();
    if let Some(proxy) = &page.proxy
        && proxy.is_at(peer)
        && [&proxy.user, &proxy.groups]
            .iter()
            .any(|name| headers.get_all(name.as_str()).iter().count() > 1)
    {
        // One of them may be the browser's own.
        return SignInResult::Refused(
            "The proxy sent the user or the groups twice. Configure it to replace these headers of the browser, not to add its own.",
        );
    }
    if let Some(proxy) = &page.proxy
        && proxy.is_at(peer)
        && let Some(user) = text(&proxy.user).filter(|user| !user.trim().is_empty())
    {
        let groups = headers.get(proxy.groups.as_str());
        return match proxy.role(groups.map_or(b"", HeaderValue::as_bytes)) {
            Some(role) => SignInResult::Known(User {
                name: terminal_escape::line(user.trim())
                    .chars()
                    .take(100)
                    .collect(),
                role,
                has_session: false,
            }),
            None => SignInResult::Refused(
                "You are signed in, but none of your groups has a role in [page.proxy] of the policy file.",
            ),
        };
    }
    if !page.tokens.is_empty() {
        let web_user = cookie(headers, SESSION).and_then(|said| of_session(page, said, now));
        return web_user.map_or(SignInResult::SignIn, SignInResult::Known);
    }
    if page.proxy.is_some() {
        return SignInResult::Refused(
            "Sign in through the proxy. This request did not come through it, or names no user.",
        );
    }
    // An address of this machine proves nothing: a proxy here speaks for people who may be anywhere.
    SignInResult::Refused(
        "This page is turned off because no users are configured. Add [[page.tokens]] or [page.proxy] to the policy file.",
    )
}

/// The token that a program sends with its request (RFC 6750); `None` where something else says who asks: a proxy that has signed somebody in, or
/// a cookie. A proxy may send tokens of its own, which are none of this page.
pub(super) fn bearer<'h>(
    page: &Configuration,
    peer: IpAddr,
    headers: &'h HeaderMap,
) -> Option<&'h str> {
    let is_of_proxy = page.proxy.as_ref().is_some_and(|proxy| {
        let mut users = headers.get_all(proxy.user.as_str()).into_iter();
        proxy.is_at(peer) && users.any(|user| !user.as_bytes().trim_ascii().is_empty())
    });
    if is_of_proxy || page.tokens.is_empty() {
        return None;
    }
    let mut all = headers.get_all(header::AUTHORIZATION).into_iter();
    let said = all.next()?.to_str().ok()?;
    let (scheme, token) = said.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    // Two tokens are ambiguous: an empty one matches none.
    Some(all.next().map_or(token.trim(), |_| ""))
}

/// The configured token that equals this one.
///
/// # Errors
/// No token that can be read equals it, and others cannot be read.
pub(super) fn with_token<'c>(
    page: &'c Configuration,
    said: &str,
) -> Result<Option<&'c Token>, Unreadable> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, b"retryrmq token");
    let mut unreadable = false;
    for token in &page.tokens {
        match token.current() {
            Ok(Some(secret)) => {
                // Equal tags, compared in constant time, are equal tokens.
                let tag = hmac::sign(&key, secret.as_bytes());
                if hmac::verify(&key, said.trim().as_bytes(), tag.as_ref()).is_ok() {
                    return Ok(Some(token));
                }
            }
            Ok(None) => {}
            Err(error) => {
                warn!(name = token.name, %error, "cannot read the file of a page token");
                unreadable = true;
            }
        }
    }
    match unreadable {
        true => Err(Unreadable),
        false => Ok(None),
    }
}

/// The file of a token cannot be read now, so a token cannot be called wrong.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unreadable;

/// What the cookie of a session says: who, until when, and that whoever wrote it knew the token.
pub(super) fn session(token: &Token, length: Duration, now: SystemTime) -> Option<String> {
    let end = seconds(now) + length.as_secs();
    let name = BASE64_URL_SAFE_NO_PAD.encode(&token.name);
    let said = format!("{name}.{end}");
    let tag = hmac::sign(&key(token)?, said.as_bytes());
    Some(format!("{said}.{}", BASE64_URL_SAFE_NO_PAD.encode(tag)))
}

fn of_session(page: &Configuration, said: &str, now: SystemTime) -> Option<User> {
    let (said, tag) = said.rsplit_once('.')?;
    let (name, end) = said.split_once('.')?;
    let name = String::from_utf8(BASE64_URL_SAFE_NO_PAD.decode(name).ok()?).ok()?;
    let token = page.tokens.iter().find(|token| token.name == name)?;
    let tag = BASE64_URL_SAFE_NO_PAD.decode(tag).ok()?;
    hmac::verify(&key(token)?, said.as_bytes(), &tag).ok()?;
    (seconds(now) < end.parse().ok()?).then_some(User {
        name,
        role: token.role,
        has_session: true,
    })
}

fn key(token: &Token) -> Option<hmac::Key> {
    let secret = token.read().ok()?;
    Some(hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()))
}

fn seconds(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// The value of a cookie.
pub(super) fn cookie<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let all = headers.get_all(header::COOKIE).into_iter();
    let said = all.filter_map(|value| value.to_str().ok());
    said.flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .find(|(of, _)| *of == name)
        .map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pairs = pairs.iter();
        pairs
            .map(|(name, value)| ((*name).parse().unwrap(), value.parse().unwrap()))
            .collect::<Vec<(header::HeaderName, _)>>()
            .into_iter()
            .collect()
    }

    fn role(entry: SignInResult) -> Option<Role> {
        match entry {
            SignInResult::Known(web_user) => Some(web_user.role),
            _ => None,
        }
    }

    #[test]
    fn without_a_word_about_it_nobody_comes_in() {
        let page = Configuration::default();
        let there: IpAddr = "192.0.2.7".parse().unwrap();
        for peer in [HERE, "::1".parse().unwrap(), there] {
            for host in ["localhost:9419", "127.0.0.1", "shop.example"] {
                let entry = entry(&page, peer, &headers(&[("host", host)]), SystemTime::now());
                assert!(
                    matches!(entry, SignInResult::Refused(why) if why.contains("[[page.tokens]]")),
                    "{peer} {host}: {entry:?}"
                );
            }
        }
    }

    #[test]
    fn a_programs_token_is_read_where_nothing_else_says_who_asks() {
        let token = Token {
            name: "ann".to_owned(),
            role: Role::Operator,
            file: "/nowhere".into(),
        };
        let mut page = Configuration {
            tokens: vec![token],
            ..Configuration::default()
        };
        let said = |page: &Configuration, pairs: &[(&'static str, &str)]| {
            bearer(page, HERE, &headers(pairs)).map(str::to_owned)
        };
        for (value, expected) in [
            ("Bearer t-1", Some("t-1")),
            ("bearer  t-1 ", Some("t-1")),
            ("Basic dDox", None),
            ("Bearer", None),
        ] {
            let read = said(&page, &[("authorization", value)]);
            assert_eq!(read.as_deref(), expected, "{value}");
        }
        let mut twice = headers(&[("authorization", "Bearer t-1")]);
        twice.append(header::AUTHORIZATION, "Bearer t-2".parse().unwrap());
        assert_eq!(bearer(&page, HERE, &twice), Some(""));
        let proxied = [("authorization", "Bearer t-1"), ("x-forwarded-user", "bob")];
        assert_eq!(said(&page, &proxied).as_deref(), Some("t-1"));
        page.proxy = toml::from_str("addresses = [\"127.0.0.1\"]\nroles = {}").ok();
        assert_eq!(said(&page, &proxied), None, "the proxy says who asks");
        assert_eq!(said(&page, &proxied[..1]).as_deref(), Some("t-1"));
        page.tokens.clear();
        assert_eq!(said(&page, &proxied[..1]), None);
    }

    #[test]
    fn a_session_ends_with_its_time_and_with_its_token() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ann");
        std::fs::write(&file, "0123456789abcdef\n").unwrap();
        let token = Token {
            name: "ann".to_owned(),
            role: Role::Operator,
            file: file.clone(),
        };
        let page = Configuration {
            tokens: vec![token.clone()],
            ..Configuration::default()
        };
        page.check().unwrap();
        assert!(matches!(with_token(&page, "0123456789abcdeg"), Ok(None)));
        let ann = with_token(&page, " 0123456789abcdef").unwrap().unwrap();
        assert_eq!(ann.name, "ann");
        let now = SystemTime::now();
        let hour = Duration::from_secs(3_600);
        let said = session(&token, hour, now).unwrap();
        let asks = |said: &str, now| {
            let cookies = format!("a=b; {SESSION}={said}");
            role(entry(&page, HERE, &headers(&[("cookie", &cookies)]), now))
        };
        assert_eq!(asks(&said, now), Some(Role::Operator));
        assert_eq!(asks(&said, now + hour), None);
        let longer = said.replacen('.', ".9", 1);
        assert_eq!(asks(&longer, now), None, "signed");
        std::fs::write(&file, "another token of ann").unwrap();
        assert_eq!(asks(&said, now), None);
        std::fs::write(&file, "short").unwrap();
        assert!(page.check().unwrap_err().contains("fewer than 16"));
        let unknown = |page: &Configuration| with_token(page, "0123456789abcdef").map(|_| ());
        assert_eq!(unknown(&page), Ok(()));
        std::fs::remove_file(&file).unwrap();
        assert_eq!(unknown(&page), Ok(()), "there is no such token any more");
        std::fs::create_dir(&file).unwrap();
        assert_eq!(unknown(&page), Err(Unreadable));
        let other = folder.path().join("bob");
        std::fs::write(&other, "0123456789abcdef").unwrap();
        let mut page = page;
        page.tokens.push(Token {
            name: "bob".to_owned(),
            role: Role::Reader,
            file: other,
        });
        let bob = with_token(&page, "0123456789abcdef").unwrap().unwrap();
        assert_eq!(bob.name, "bob", "whose file can be read comes in");
    }

    #[test]
    fn a_proxys_headers_are_believed_from_its_own_address_only() {
        let page: Configuration = toml::from_str(
            "[proxy]\naddresses = [\"10.1.0.0/16\", \"127.0.0.1\"]\nroles = { sre = \"admin\", shop = \"operator\" }",
        )
        .unwrap();
        page.check().unwrap();
        let now = SystemTime::now();
        let asks = |peer: &str, groups| {
            let said = headers(&[("x-forwarded-user", "ann"), ("x-forwarded-groups", groups)]);
            role(entry(&page, peer.parse().unwrap(), &said, now))
        };
        assert_eq!(asks("10.1.2.3", "shop, sre"), Some(Role::Admin));
        assert_eq!(asks("::ffff:10.1.2.3", "shop"), Some(Role::Operator));
        assert_eq!(asks("10.1.2.3", "others"), None);
        assert_eq!(asks("10.2.0.1", "sre"), None);
        for twice in ["x-forwarded-user", "x-forwarded-groups"] {
            let mut said = headers(&[("x-forwarded-user", "ann"), ("x-forwarded-groups", "sre")]);
            said.append(twice, "shop".parse().unwrap());
            let entry = entry(&page, "10.1.2.3".parse().unwrap(), &said, now);
            assert!(
                matches!(entry, SignInResult::Refused(_)),
                "{twice}: {entry:?}"
            );
        }
        let mut said = headers(&[]);
        for (name, text) in [
            ("x-forwarded-user", "Jörg"),
            ("x-forwarded-groups", "Köln, shop"),
        ] {
            let value = header::HeaderValue::from_bytes(text.as_bytes()).unwrap();
            said.insert(name, value);
        }
        let SignInResult::Known(web_user) = entry(&page, "10.1.2.3".parse().unwrap(), &said, now)
        else {
            panic!("who has an umlaut comes in as well");
        };
        assert_eq!(
            (web_user.name.as_str(), web_user.role),
            ("Jörg", Role::Operator)
        );
        let latin_1 = |bytes: &[u8]| {
            let mut said = headers(&[("x-forwarded-user", "ann")]);
            let value = header::HeaderValue::from_bytes(bytes).unwrap();
            said.insert("x-forwarded-groups", value);
            role(entry(&page, "10.1.2.3".parse().unwrap(), &said, now))
        };
        assert_eq!(latin_1(b"K\xf6ln, shop"), Some(Role::Operator));
        assert_eq!(latin_1(b"shop,K\xf6ln ,sre"), Some(Role::Admin));
        assert_eq!(latin_1(b"sr\xe9"), None, "it is no other group");
        let nobody = entry(&page, HERE, &headers(&[("host", "localhost")]), now);
        assert!(matches!(nobody, SignInResult::Refused(_)), "{nobody:?}");
        for (text, says) in [
            ("[proxy]\naddresses = []\nroles = {}", "names nobody"),
            ("[proxy]\naddresses = [\"x\"]\nroles = {}", "no address"),
            (
                "[proxy]\naddresses = [\"::1\"]\nroles = {}",
                "`roles` is empty",
            ),
            (
                "[proxy]\naddresses = [\"::1\"]\nuser = \"x user\"\nroles = {a = \"admin\"}",
                "no name of a header",
            ),
            (
                "[proxy]\naddresses = [\"::1\"]\nroles = {\"CN=sre,OU=shop\" = \"admin\"}",
                "between commas",
            ),
        ] {
            let page: Configuration = toml::from_str(text).unwrap();
            assert!(page.check().unwrap_err().contains(says), "{text}");
        }
    }
}
