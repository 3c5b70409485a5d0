//! A password, which is read when it is needed and printed nowhere.

use std::path::Path;

use redis::RedisConnectionInfo;

use crate::store::{Error, Result};

/// Where a login comes from.
pub(super) struct Secret<'a> {
    pub(super) username: Option<&'a str>,
    pub(super) file: Option<&'a Path>,
    pub(super) variable: Option<&'a str>,
}

impl Secret<'_> {
    /// Fills in user and password.
    ///
    /// # Errors
    /// [`Error::Configuration`] when the file or the variable cannot be read.
    pub(super) fn login(&self, mut into: RedisConnectionInfo) -> Result<RedisConnectionInfo> {
        if let Some(name) = self.username {
            into = into.set_username(name);
        }
        if let Some(password) = self.password()? {
            into = into.set_password(password);
        }
        Ok(into)
    }

    fn password(&self) -> Result<Option<String>> {
        if let Some(file) = self.file {
            let text = std::fs::read_to_string(file).map_err(|why| {
                Error::Configuration(format!(
                    "the password of Redis cannot be read from {}: {why}",
                    file.display()
                ))
            })?;
            return Ok(Some(text.lines().next().unwrap_or_default().to_owned()));
        }
        let Some(variable) = self.variable else {
            return Ok(None);
        };
        match std::env::var(variable) {
            Ok(password) => Ok(Some(password)),
            Err(_) => Err(Error::Configuration(format!(
                "the environment variable {variable}, which is to hold the password of Redis, is not set"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(file: Option<&Path>, variable: Option<&str>) -> Result<Option<String>> {
        let secret = Secret {
            username: Some("serve"),
            file,
            variable,
        };
        let login = secret.login(RedisConnectionInfo::default())?;
        assert_eq!(login.username(), Some("serve"));
        Ok(login.password().map(str::to_owned))
    }

    #[test]
    fn a_password_is_the_first_line_of_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        for (text, password) in [("hunter2\n", "hunter2"), (" a b \r\nx", " a b "), ("", "")] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(login(Some(&file), None).unwrap().as_deref(), Some(password));
        }
        let why = login(Some(&folder.path().join("none")), None).unwrap_err();
        assert!(why.to_string().contains("none"), "{why}");
    }

    #[test]
    fn a_variable_that_is_not_set_is_named() {
        let why = login(None, Some("RETRYRMQ_NO_SUCH_VARIABLE")).unwrap_err();
        assert!(
            why.to_string().contains("RETRYRMQ_NO_SUCH_VARIABLE"),
            "{why}"
        );
        assert_eq!(login(None, None).unwrap(), None);
    }
}
