//! Who logs in: what the URL says, files that somebody else keeps fresh, or a function.
//!
//! It is asked at every connection, so that a password may change while a program runs. A secret with an end, such as an
//! OAuth 2 token, is renewed on the open connection before that (AMQP `connection.update-secret`, RabbitMQ 3.8 and later).

use std::{
    fmt,
    future::Future,
    panic::AssertUnwindSafe,
    path::Path,
    pin::Pin,
    sync::Arc,
    time::{Duration, SystemTime},
};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use futures_util::FutureExt;
use tokio::time::timeout;

use super::patience::ANSWER;

use crate::{Error, ErrorKind, Result, secret_file};

/// A user, a password or token, and how long that is good for. `Debug` does not show the secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    pub(super) user: String,
    pub(super) secret: String,
    pub(super) lifetime: Option<Duration>,
}

impl Login {
    /// A user and a password. An OAuth 2 token is a password: RabbitMQ reads who it is for from the token, and the user may be
    /// empty. The lifetime of a token that is a JWT is read from its `exp`.
    #[must_use]
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Self {
        Self {
            user: user.into(),
            secret: password.into(),
            lifetime: None,
        }
    }

    /// How long from now the broker takes this password; before that it is asked for anew, and the open connection renewed.
    #[must_use]
    pub fn expires_in(mut self, lifetime: Duration) -> Self {
        self.lifetime = Some(lifetime);
        self
    }

    /// Refuses what AMQP's PLAIN mechanism cannot carry: zero bytes stand between its parts.
    ///
    /// # Errors
    /// [`ErrorKind::AuthenticationFailed`], which says nothing of the secret.
    pub(super) fn check(&self) -> Result<()> {
        if self.user.contains('\0') || self.secret.contains('\0') {
            return Err(Error::new(
                ErrorKind::AuthenticationFailed,
                "the user or the password holds a zero byte, which no login can; is the file or function that gives it the right one?",
            ));
        }
        Ok(())
    }

    /// What a connection that was hung up in the middle of its login means for one as large as this: RabbitMQ takes no more than
    /// `initial_frame_max` before a connection is tuned, 8 KiB by default, and says nothing of it.
    pub(super) fn too_large_for(&self, hung_up: &Error) -> Option<Error> {
        const MOST: usize = 8_000;
        let bytes = self.user.len() + self.secret.len();
        (bytes > MOST && hung_up.is_transient()).then(|| {
            Error::new(
                ErrorKind::AuthenticationFailed,
                format!(
                    "the broker hung up on a login of {bytes} bytes, which is more than RabbitMQ takes by default: use a smaller \
                     token, or raise its `initial_frame_max`"
                ),
            )
        })
    }

    /// What a refusal means for a token that is over: whoever keeps it fresh is late.
    pub(super) fn too_old_for(&self, refused: Error) -> Error {
        if refused.kind() != ErrorKind::AuthenticationFailed || self.left() != Some(Duration::ZERO)
        {
            return refused;
        }
        let message = format!(
            "{refused}; by the clock of this machine that token is over: does whoever gives it renew it in time?"
        );
        refused.saying(message)
    }

    /// Whether the secret is a token that names its own end.
    pub(super) fn is_token(&self) -> bool {
        Span::of(&self.secret).is_some()
    }

    /// Whether this is good for longer than the one before, which is for `left` still. Of two tokens their own words count, and no clock.
    pub(super) fn outlives(&self, before: &Self, left: Duration) -> bool {
        if self.secret == before.secret {
            return false;
        }
        match (self.said(), before.said()) {
            (Some(this), Some(before)) => this.end > before.end,
            _ => self.lifetime().is_none_or(|lifetime| lifetime > left),
        }
    }

    /// Whether this is the password of before, and good for longer by the word of whoever gave it: the broker need not be told. A token is
    /// good until its own end at the longest.
    pub(super) fn extends(&self, before: &Self, left: Duration) -> bool {
        let longest = Span::of(&self.secret).map(Span::left);
        self.secret == before.secret
            && longest
                .is_none_or(|longest| self.lifetime.is_some_and(|lifetime| lifetime <= longest))
            && self.lifetime.is_none_or(|lifetime| lifetime > left)
    }

    /// What its token says of itself, unless whoever gave it said more.
    fn said(&self) -> Option<Span> {
        match self.lifetime {
            Some(_) => None,
            None => Span::of(&self.secret),
        }
    }

    /// How long from now its token is good for, by this machine's clock.
    fn left(&self) -> Option<Duration> {
        self.said().map(Span::left)
    }

    /// How long from now the secret is good for, where that is known: no longer than a token lives in all, however slow the clock of this
    /// machine is.
    pub(super) fn lifetime(&self) -> Option<Duration> {
        self.lifetime.or_else(|| {
            let whole = self.said()?.length().unwrap_or(Duration::MAX);
            Some(self.left()?.min(whole))
        })
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login")
            .field("user", &self.user)
            .field("lifetime", &self.lifetime)
            .finish_non_exhaustive()
    }
}

/// From when until when a JSON Web Token is good (RFC 7519, `iat` and `exp`), in seconds since 1970. Nothing else of it is believed or checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    begin: Option<u64>,
    end: u64,
}

impl Span {
    fn of(token: &str) -> Option<Self> {
        let mut parts = token.split('.');
        let (Some(_), Some(claims), Some(_), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return None;
        };
        let claims = BASE64_URL_SAFE_NO_PAD.decode(claims).ok()?;
        let claims: serde_json::Value = serde_json::from_slice(&claims).ok()?;
        let time = |name: &str| {
            let time = claims.get(name)?;
            // A number with a fraction is allowed.
            time.as_u64()
                .or_else(|| time.as_f64().map(|time| time as u64))
        };
        Some(Self {
            begin: time("iat"),
            end: time("exp")?,
        })
    }

    /// How long from now it is good for, by this machine's clock.
    fn left(self) -> Duration {
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        Duration::from_secs(self.end).saturating_sub(now)
    }

    /// How long it is good for in all, where it says so.
    fn length(self) -> Option<Duration> {
        let length = self.end.checked_sub(self.begin?)?;
        Some(Duration::from_secs(length))
    }
}

type Asked = Pin<Box<dyn Future<Output = Result<Login, Cause>> + Send>>;
type Cause = Box<dyn std::error::Error + Send + Sync>;

/// A function that is asked for the login at every connection, and again before a secret ends.
#[derive(Clone)]
pub struct Credentials(Arc<dyn Fn() -> Asked + Send + Sync>);

impl Credentials {
    /// From a function; it may ask others over the network. What it answers with is used at once and not kept.
    pub fn new<F, A, E>(ask: F) -> Self
    where
        F: Fn() -> A + Send + Sync + 'static,
        A: Future<Output = Result<Login, E>> + Send + 'static,
        E: Into<Cause>,
    {
        Self(Arc::new(move || {
            let asked = ask();
            Box::pin(async move { asked.await.map_err(Into::into) })
        }))
    }

    /// # Errors
    /// [`ErrorKind::AuthenticationFailed`] when it fails, panics, or does not answer in time.
    pub(super) async fn ask(&self) -> Result<Login> {
        let failed = |why: &str| {
            Error::new(
                ErrorKind::AuthenticationFailed,
                format!("the function that gives the credentials {why}"),
            )
        };
        // The call as well: a function may panic before it has a future.
        let asked = AssertUnwindSafe(async { (self.0)().await }).catch_unwind();
        match timeout(ANSWER, asked).await {
            Ok(Ok(Ok(login))) => Ok(login),
            Ok(Ok(Err(why))) => Err(failed(&format!("failed: {why}")).with_source(why)),
            Ok(Err(_)) => Err(failed("panicked")),
            Err(_) => Err(failed(&format!(
                "did not answer within {} s",
                ANSWER.as_secs()
            ))),
        }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(function)")
    }
}

impl PartialEq for Credentials {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// What a file holds, without the end of its last line.
///
/// # Errors
/// [`ErrorKind::AuthenticationFailed`], which names the file and not what it holds.
pub(super) async fn read(file: &Path) -> Result<String> {
    let text = secret_file::read(file, ANSWER).await.map_err(|why| {
        Error::new(
            ErrorKind::AuthenticationFailed,
            format!(
                "the file {} that the URL names cannot be read: {why}",
                file.display()
            ),
        )
        .with_source(why)
    })?;
    let text = text.trim_end_matches(['\n', '\r']);
    if text.is_empty() {
        return Err(Error::new(
            ErrorKind::AuthenticationFailed,
            format!("the file {} that the URL names is empty", file.display()),
        ));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(claims: &str) -> String {
        format!("e30.{}.c2ln", BASE64_URL_SAFE_NO_PAD.encode(claims))
    }

    #[test]
    fn a_zero_byte_is_in_no_login() {
        assert!(Login::new("maria", "pass word").check().is_ok());
        for login in [
            Login::new("ma\0ria", "s3cret"),
            Login::new("maria", "s3cret\0"),
        ] {
            let error = login.check().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AuthenticationFailed);
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
    }

    fn expiry(token: &str) -> Option<u64> {
        Span::of(token).map(|span| span.end)
    }

    #[test]
    fn the_end_of_a_token_is_read_from_it() {
        assert_eq!(
            expiry(&token(r#"{"exp": 1700000000}"#)),
            Some(1_700_000_000)
        );
        assert_eq!(
            expiry(&token(r#"{"exp": 1700000000.5}"#)),
            Some(1_700_000_000)
        );
        for text in [
            "",
            "s3cret",
            "a.b.c",
            "a.b.c.d",
            &token("{}"),
            &token(r#"{"exp": "soon"}"#),
            &token(r#"{"exp": -1}"#).replace('.', ".."),
        ] {
            assert_eq!(expiry(text), None, "{text}");
        }
    }

    #[test]
    fn a_token_lives_no_longer_than_it_says_however_slow_the_clock_is() {
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
        let token = |begin: u64, end: u64| {
            Login::new("", token(&format!(r#"{{"iat": {begin}, "exp": {end}}}"#)))
        };
        let slow = token(now + 3_600, now + 4_200);
        assert_eq!(slow.lifetime(), Some(Duration::from_secs(600)));
        let right = token(now - 60, now + 600).lifetime().unwrap();
        assert!(right <= Duration::from_secs(600), "{right:?}");
        assert_eq!(token(now, 5).lifetime(), Some(Duration::ZERO));
    }

    #[test]
    fn of_two_tokens_their_own_words_count_and_no_clock() {
        let left = Duration::from_secs(60);
        let token = |end: u64| Login::new("", token(&format!(r#"{{"exp": {end}}}"#)));
        // Both are over by this machine's clock.
        assert!(token(2_000).outlives(&token(1_000), left));
        assert!(!token(1_000).outlives(&token(1_000), left));
        assert!(!token(1_000).outlives(&token(2_000), Duration::ZERO));
        let said =
            |secret: &str, seconds| Login::new("", secret).expires_in(Duration::from_secs(seconds));
        assert!(said("b", 61).outlives(&said("a", 61), left));
        assert!(!said("b", 60).outlives(&said("a", 61), left));
        assert!(!said("a", 600).outlives(&said("a", 60), left));
        assert!(Login::new("", "for ever").outlives(&said("a", 60), left));
        // A password may stay what it is; a token has its end in it.
        assert!(said("a", 61).extends(&said("a", 60), left));
        assert!(Login::new("", "a").extends(&said("a", 60), left));
        assert!(!said("a", 60).extends(&said("a", 60), left));
        assert!(!said("b", 600).extends(&said("a", 60), left));
        assert!(!token(1_000).extends(&token(1_000), Duration::ZERO));
        let asked_again = |end| token(end).expires_in(Duration::from_secs(300));
        assert!(asked_again(99_999_999_999).extends(&asked_again(99_999_999_999), left));
        assert!(!asked_again(1_000).extends(&asked_again(1_000), left));
    }

    #[test]
    fn a_token_that_is_over_is_told_when_it_is_refused() {
        let refused = || Error::new(ErrorKind::AuthenticationFailed, "refused");
        let said = |claims: &str| Login::new("", token(claims)).too_old_for(refused());
        assert!(said(r#"{"exp": 1}"#).to_string().contains("is over"));
        assert_eq!(said(r#"{"exp": 99999999999}"#).to_string(), "refused");
        let password = Login::new("maria", "s3cret").too_old_for(refused());
        assert_eq!(password.to_string(), "refused");
    }

    #[test]
    fn what_is_said_counts_more_than_what_is_read() {
        let login = Login::new("", token(r#"{"exp": 1}"#));
        assert_eq!(login.lifetime(), Some(Duration::ZERO));
        let minute = Duration::from_secs(60);
        assert_eq!(login.expires_in(minute).lifetime(), Some(minute));
    }

    #[cfg(unix)]
    #[tokio::test(start_paused = true)]
    async fn a_pipe_that_nobody_writes_to_holds_nobody_up() {
        let pipe = crate::secret_file::tests::pipe("password");
        let error = read(&pipe).await.unwrap_err();
        // Lets its thread go.
        drop(std::fs::OpenOptions::new().write(true).open(&pipe).unwrap());
        std::fs::remove_file(&pipe).unwrap();
        assert_eq!(error.kind(), ErrorKind::AuthenticationFailed);
        assert!(error.to_string().contains("within 20 s"), "{error}");
    }

    #[test]
    fn no_secret_is_shown() {
        let shown = format!("{:?}", Login::new("maria", "s3cret"));
        assert!(
            shown.contains("maria") && !shown.contains("s3cret"),
            "{shown}"
        );
    }
}
