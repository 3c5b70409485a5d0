//! A password, which is read when it is needed and printed nowhere.

use std::{path::Path, time::Duration};

use redis::RedisConnectionInfo;
use retryrmq::secret_file;

use super::failure;
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
    /// [`Error::Configuration`] when the file or the variable cannot be read, [`Error::Away`] when the file does not answer in time.
    pub(super) async fn login(
        &self,
        mut into: RedisConnectionInfo,
        time_limit: Duration,
    ) -> Result<RedisConnectionInfo> {
        if let Some(name) = self.username {
            into = into.set_username(name);
        }
        if let Some(password) = self.password(time_limit).await? {
            into = into.set_password(password);
        }
        Ok(into)
    }

    async fn password(&self, time_limit: Duration) -> Result<Option<String>> {
        if let Some(file) = self.file {
            return first_line(file, time_limit).await.map(Some);
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

async fn first_line(file: &Path, time_limit: Duration) -> Result<String> {
    let text = secret_file::read(file, time_limit)
        .await
        .map_err(|why| failure::unread("the password of Redis", file, &why))?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn login(file: Option<&Path>, variable: Option<&str>) -> Result<Option<String>> {
        let secret = Secret {
            username: Some("serve"),
            file,
            variable,
        };
        let login = secret
            .login(RedisConnectionInfo::default(), Duration::from_secs(60))
            .await?;
        assert_eq!(login.username(), Some("serve"));
        Ok(login.password().map(str::to_owned))
    }

    #[tokio::test]
    async fn a_password_is_the_first_line_of_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        for (text, password) in [("hunter2\n", "hunter2"), (" a b \r\nx", " a b "), ("", "")] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(
                login(Some(&file), None).await.unwrap().as_deref(),
                Some(password)
            );
        }
        let why = login(Some(&folder.path().join("none")), None)
            .await
            .unwrap_err();
        assert!(why.to_string().contains("none"), "{why}");
    }

    #[tokio::test]
    async fn a_variable_that_is_not_set_is_named() {
        let why = login(None, Some("RETRYRMQ_NO_SUCH_VARIABLE"))
            .await
            .unwrap_err();
        assert!(
            why.to_string().contains("RETRYRMQ_NO_SUCH_VARIABLE"),
            "{why}"
        );
        assert_eq!(login(None, None).await.unwrap(), None);
    }
    #[tokio::test]
    async fn a_pipe_that_nobody_writes_to_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("password");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        let why = login(Some(&pipe), None).await.unwrap_err();
        assert!(matches!(why, Error::Away(_)), "{why}");
    }
}
