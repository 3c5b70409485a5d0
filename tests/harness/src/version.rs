//! The version of a broker, ordered, because what RabbitMQ does depends on it.

use std::fmt;
use std::str::FromStr;

/// A broker's version, such as 4.3.6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    major: u32,
    minor: u32,
    patch: u32,
}

impl Version {
    /// The oldest that is tested: no delivery limit by default, argument checks of the old kind.
    pub const V3_10: Version = Version::new(3, 10, 0);
    /// The first with a default delivery limit of 20.
    pub const V4_0: Version = Version::new(4, 0, 0);
    /// The first with native delayed retry in quorum queues.
    pub const V4_3: Version = Version::new(4, 3, 0);

    /// The version `major.minor.patch`.
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Version {
            major,
            minor,
            patch,
        }
    }

    /// Whether this is a release of the same series, such as 4.3.6 and 4.3.
    pub fn is_series(self, series: Version) -> bool {
        (self.major, self.minor) == (series.major, series.minor)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// The text was not `major.minor.patch`.
#[derive(Debug)]
pub struct ParseVersionError(String);

impl fmt::Display for ParseVersionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}' is not a version such as 4.3.6", self.0)
    }
}

impl std::error::Error for ParseVersionError {}

impl FromStr for Version {
    type Err = ParseVersionError;

    /// Takes a missing patch level for 0, and ignores what may follow it (`4.3.0-rc.1`).
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ParseVersionError(text.to_owned());
        let release = text.split(['-', '+']).next().unwrap_or_default();
        let mut parts = release
            .split('.')
            .map(|part| part.parse().map_err(|_| wrong()));
        let major = parts.next().ok_or_else(wrong)??;
        let minor = parts.next().ok_or_else(wrong)??;
        let patch = parts.next().unwrap_or(Ok(0))?;
        Ok(Version::new(major, minor, patch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_by_number_and_not_by_text() {
        let parse = |text: &str| text.parse::<Version>().unwrap();
        assert!(parse("3.10.8") > parse("3.9.29"));
        assert!(parse("4.0.5") < Version::V4_3);
        assert!(parse("4.3.0-rc.1") >= Version::V4_3);
        assert!(parse("4.3.6").is_series(Version::V4_3));
        assert_eq!(parse("4.3").to_string(), "4.3.0");
        assert!("unknown".parse::<Version>().is_err());
        assert!("4".parse::<Version>().is_err());
    }
}
