//! The login: from the URL, from files that another program keeps fresh, or from a function.
//!
//! It is asked for at every connection, so a password may change while a program runs. A secret that expires, such as an OAuth 2 token, is
//! renewed on the open connection in time (AMQP `connection.update-secret`, RabbitMQ 3.8 and later).

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

use super::timeouts::ANSWER;

use crate::{Error, ErrorKind, Result, secret_file};

/// A user, a password or token, and how long it is valid. `Debug` does not show the secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    pub(super) user: String,
    pub(super) secret: String,
    pub(super) lifetime: Option<Duration>,
}

impl Login {
    /// A user and a password. An OAuth 2 token is given as the password; RabbitMQ reads the user from the token, so `user` may be empty. If
    /// the token is a JWT, its lifetime is read from `exp`.
    #[must_use]
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Self {
        Self {
            user: user.into(),
            secret: password.into(),
            lifetime: None,
        }
    }

    /// Sets how long from now the broker accepts this password. Before that time ends, the login is asked for again and the open connection
    /// is renewed.
    #[must_use]
    pub fn expires_in(mut self, lifetime: Duration) -> Self {
        self.lifetime = Some(lifetime);
        self
    }

    /// Checks that AMQP's PLAIN mechanism can carry it: zero bytes separate its parts.
    ///
    /// # Errors
    /// [`ErrorKind::AuthenticationFailed`]. The error message does not contain the secret.
    pub(super) fn check(&self) -> Result<()> {
        if self.user.contains('\0') || self.secret.contains('\0') {
            return Err(Error::new(
                ErrorKind::AuthenticationFailed,
                "the user or the password holds a zero byte, which no login can; is the file or function that gives it the right one?",
            ));
        }
        Ok(())
    }

    /// The error for a login that is too large, if the broker hung up during this login. Before a connection is tuned, RabbitMQ accepts at
    /// most `initial_frame_max`, 8 KiB by default, and gives no reason.
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

    /// The error if the broker refused an expired token: its source is late.
    pub(super) fn too_old_for(&self, refused: Error) -> Error {
        if refused.kind() != ErrorKind::AuthenticationFailed || self.left() != Some(Duration::ZERO)
        {
            return refused;
        }
        let message = format!(
            "{refused}; by this machine's clock the token has expired: renew it earlier, or check the clock"
        );
        refused.saying(message)
    }

    /// Whether the secret is a token that contains its own end.
    pub(super) fn is_token(&self) -> bool {
        TokenValidity::of(&self.secret).is_some()
    }

    /// Whether this is valid for longer than the one before, which is valid for `left` more. Two tokens are compared by their own times,
    /// without a clock.
    pub(super) fn outlives(&self, before: &Self, left: Duration) -> bool {
        if self.secret == before.secret {
            return false;
        }
        match (self.token_validity(), before.token_validity()) {
            (Some(this), Some(before)) => this.end > before.end,
            _ => self.lifetime().is_none_or(|lifetime| lifetime > left),
        }
    }

    /// Whether this is the same password, valid for longer according to its source; the broker need not be told. A token is never valid
    /// beyond its own end.
    pub(super) fn extends(&self, before: &Self, left: Duration) -> bool {
        let longest = TokenValidity::of(&self.secret).map(TokenValidity::left);
        self.secret == before.secret
            && longest
                .is_none_or(|longest| self.lifetime.is_some_and(|lifetime| lifetime <= longest))
            && self.lifetime.is_none_or(|lifetime| lifetime > left)
    }

    /// The times in its token, unless its source gave another lifetime.
    fn token_validity(&self) -> Option<TokenValidity> {
        match self.lifetime {
            Some(_) => None,
            None => TokenValidity::of(&self.secret),
        }
    }

    /// How long its token is valid from now, by this machine's clock.
    fn left(&self) -> Option<Duration> {
        self.token_validity().map(TokenValidity::left)
    }

    /// How long the secret is valid from now, if known. Never longer than the token's whole lifetime, however slow this machine's clock is.
    pub(super) fn lifetime(&self) -> Option<Duration> {
        self.lifetime.or_else(|| {
            let whole = self.token_validity()?.length().unwrap_or(Duration::MAX);
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

/// The validity of a JSON Web Token (RFC 7519, `iat` and `exp`), in seconds since 1970. Nothing else in the token is read or checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TokenValidity {
    begin: Option<u64>,
    end: u64,
}

impl TokenValidity {
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
            // The number may have a fraction.
            time.as_u64()
                .or_else(|| time.as_f64().map(|time| time as u64))
        };
        Some(Self {
            begin: time("iat"),
            end: time("exp")?,
        })
    }

    /// How long it is valid from now, by this machine's clock.
    fn left(self) -> Duration {
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        Duration::from_secs(self.end).saturating_sub(now)
    }

    /// Its whole lifetime, if it says so.
    fn length(self) -> Option<Duration> {
        let length = self.end.checked_sub(self.begin?)?;
        Some(Duration::from_secs(length))
    }
}

type LoginFuture = Pin<Box<dyn Future<Output = Result<Login, Cause>> + Send>>;
type Cause = Box<dyn std::error::Error + Send + Sync>;

/// A function that returns the login. It is called for every connection, and again before a secret expires.
#[derive(Clone)]
pub struct Credentials(Arc<dyn Fn() -> LoginFuture + Send + Sync>);

impl Credentials {
    /// Wraps a function. It is async, so it may use the network. Its answer is used at once and not kept. If it fails, panics or does not
    /// answer in time, the connection fails with [`ErrorKind::AuthenticationFailed`].
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
    /// [`ErrorKind::AuthenticationFailed`] if it fails, panics, or does not answer in time.
    pub(super) async fn ask(&self) -> Result<Login> {
        let failed = |why: &str| {
            Error::new(
                ErrorKind::AuthenticationFailed,
                format!("the function that gives the credentials {why}"),
            )
        };
        // The call itself too: a function may panic before it returns a future.
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

/// The content of a file, without a line break at its end.
///
/// # Errors
/// [`ErrorKind::AuthenticationFailed`]. The error message names the file and does not contain its content.
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
        TokenValidity::of(token).map(|span| span.end)
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
        // By this machine's clock both have expired.
        assert!(token(2_000).outlives(&token(1_000), left));
        assert!(!token(1_000).outlives(&token(1_000), left));
        assert!(!token(1_000).outlives(&token(2_000), Duration::ZERO));
        let said =
            |secret: &str, seconds| Login::new("", secret).expires_in(Duration::from_secs(seconds));
        assert!(said("b", 61).outlives(&said("a", 61), left));
        assert!(!said("b", 60).outlives(&said("a", 61), left));
        assert!(!said("a", 600).outlives(&said("a", 60), left));
        assert!(Login::new("", "for ever").outlives(&said("a", 60), left));
        // A password may stay the same; a token contains its own end.
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
        assert!(said(r#"{"exp": 1}"#).to_string().contains("has expired"));
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
        // Lets the reading thread end.
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
