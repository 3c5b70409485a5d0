//! What a broker says about itself when a connection starts.

use std::fmt;

use lapin::types::FieldTable;

use super::capabilities::Capabilities;

/// What the broker says about itself (AMQP `connection.start`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Server {
    /// The product, such as `RabbitMQ`.
    pub product: String,
    /// The version as text, such as `4.0.5`.
    pub version: String,
    /// The name of the cluster; empty if the broker does not send it.
    pub cluster: String,
}

/// How RabbitMQ, and services that host it, name the product.
const RABBITMQ: &str = "RabbitMQ";

impl Server {
    /// Reads the properties of `connection.start`.
    pub(super) fn read(properties: Option<&FieldTable>) -> Self {
        let text = |name: &str| {
            properties
                .and_then(|table| crate::retry::headers::string(table, name))
                .unwrap_or_default()
        };
        Self {
            product: text("product"),
            version: text("version"),
            cluster: text("cluster_name"),
        }
    }

    /// In the place of a broker, for a client that has none.
    pub(crate) fn fake() -> Self {
        Self {
            product: "fake".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            cluster: String::new(),
        }
    }

    /// Whether the version is `major.minor` or later, whatever the product. A version that cannot be parsed counts as old.
    #[must_use]
    pub fn at_least(&self, major: u32, minor: u32) -> bool {
        let mut numbers = self
            .version
            .split('.')
            .map(|part| part.parse::<u32>().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (major, minor)
    }

    #[cfg(test)]
    pub(crate) fn for_tests(product: &str, version: &str) -> Self {
        Self {
            product: product.to_owned(),
            version: version.to_owned(),
            cluster: String::new(),
        }
    }

    pub(crate) fn is_rabbitmq(&self) -> bool {
        self.product == RABBITMQ
    }

    /// What this broker can do.
    pub(crate) fn capabilities(&self) -> Capabilities {
        Capabilities::of(self)
    }
}

/// Product and version, for sentences. The broker chose both texts, so they are escaped and cut.
impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let short = |text: &str| text.chars().take(40).collect::<String>();
        let named = match self.product.trim() {
            "" => "a broker without a name".to_owned(),
            product => format!("{} {}", short(product), short(&self.version)),
        };
        f.write_str(&crate::terminal_escape::line(named.trim_end()))
    }
}

#[cfg(test)]
mod tests {
    use lapin::types::AMQPValue;

    use super::*;

    /// What brokers really send: RabbitMQ's values as `management` shows them for the tested versions, LavinMQ's from its source
    /// (`SERVER_PROPERTIES` in `src/lavinmq/amqp/connection_factory.cr`, 2.9.1).
    #[test]
    fn what_brokers_send_is_read() {
        let sent = |pairs: &[(&str, &str)]| {
            let mut table = FieldTable::default();
            for (name, value) in pairs {
                table.insert((*name).into(), AMQPValue::LongString((*value).into()));
            }
            Server::read(Some(&table))
        };
        let rabbit = sent(&[
            ("product", "RabbitMQ"),
            ("version", "3.10.8"),
            ("platform", "Erlang/OTP 24.2.1"),
            ("cluster_name", "rabbit@one"),
        ]);
        assert!(rabbit.is_rabbitmq() && rabbit.at_least(3, 10) && !rabbit.at_least(3, 11));
        assert_eq!(
            (rabbit.cluster.as_str(), rabbit.to_string().as_str()),
            ("rabbit@one", "RabbitMQ 3.10.8")
        );
        let lavin = sent(&[
            ("product", "LavinMQ"),
            ("version", "2.9.1"),
            ("platform", "Crystal 1.18.2"),
        ]);
        assert!(!lavin.is_rabbitmq());
        assert_eq!(
            (lavin.cluster.as_str(), lavin.to_string().as_str()),
            ("", "LavinMQ 2.9.1")
        );
        assert_eq!(Server::read(None).to_string(), "a broker without a name");
        assert_eq!(
            sent(&[("product", "x\u{1b}[2J"), ("version", "")]).to_string(),
            "x\\x1b[2J"
        );
    }
}
