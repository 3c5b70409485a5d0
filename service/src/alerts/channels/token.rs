//! A bearer token, for those who want one.

use std::path::Path;

use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};

use super::{secret::SecretSource, send_result::SendError};

/// Where the token is, if there is one.
#[derive(Debug)]
pub(super) struct TokenSource(Option<SecretSource>);

impl TokenSource {
    /// The one of `token_file` and `token_env` that is there.
    ///
    /// # Errors
    /// When both are, or what is there now is no token.
    pub(super) fn of(file: Option<&Path>, variable: Option<&str>) -> Result<Self, String> {
        let source = SecretSource::of("token", None, file, variable)?;
        if let Some(token) = &source {
            bearer(&token.read()?)?;
        }
        Ok(Self(source))
    }

    /// Puts it into the headers, and returns it as a secret that nobody may see.
    ///
    /// # Errors
    /// When it cannot be read at this moment.
    pub(super) fn authorize(&self, headers: &mut HeaderMap) -> Result<Option<String>, SendError> {
        let token = self.0.as_ref().map(SecretSource::read).transpose();
        let token = token.map_err(SendError::soon)?;
        if let Some(token) = &token {
            headers.insert(AUTHORIZATION, bearer(token).map_err(SendError::soon)?);
        }
        Ok(token)
    }
}

/// The value of the header `Authorization`.
fn bearer(token: &str) -> Result<HeaderValue, String> {
    if !token.chars().all(|c| c.is_ascii_graphic()) {
        return Err("the token must be one word of ASCII, without `Bearer` before it".to_owned());
    }
    let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
        .map_err(|_| "the token is none".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}
