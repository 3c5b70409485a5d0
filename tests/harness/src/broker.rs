//! The brokers that `tests/broker/with-brokers` started for this run.

use crate::control::NodeControl;
use crate::management::segment;
use crate::{Amqp, Management, Node, Version, Vhost, eventually};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use url::Url;

/// A running broker. Clones are the same broker.
#[derive(Clone)]
pub struct Broker(Arc<Parts>);

struct Parts {
    version: Version,
    url: Url,
    management: Option<Management>,
    control: Option<NodeControl>,
    tls_url: Option<Url>,
    mqtt: Option<Url>,
    stomp: Option<Url>,
}

/// How to reach a broker's TLS listener.
#[derive(Clone)]
pub struct Tls {
    /// The `amqps://` URL.
    pub url: String,
    /// The file, in PEM, of the authority that signed the broker's certificate (for `localhost`, 127.0.0.1 and ::1).
    pub authority: PathBuf,
}

/// All brokers of this run.
///
/// # Panics
/// When there is none, so that no test passes by default.
pub fn brokers() -> Vec<Broker> {
    let lines = std::env::var("RETRYRMQ_TEST_BROKERS").unwrap_or_default();
    let all: Vec<Broker> = lines
        .lines()
        .filter(|line| !line.is_empty())
        .map(Broker::parse)
        .collect();
    assert!(
        !all.is_empty(),
        "there is no broker: run this through `make test` or `tests/broker/with-brokers -- cargo test …`"
    );
    all
}

impl Broker {
    /// One line of `RETRYRMQ_TEST_BROKERS`: `VERSION|AMQP URL|MANAGEMENT URL|CONTROL|AMQPS URL`.
    fn parse(line: &str) -> Self {
        let mut fields = line.split('|').map(str::trim);
        let mut next = || fields.next().unwrap_or_default();
        let (version, url, management, control, tls_url) = (next(), next(), next(), next(), next());
        let management = (!management.is_empty()).then(|| Management::new(&parse_url(management)));
        let version = version.parse().unwrap_or_else(|_| {
            // An amqps:// address that was given does not tell its version to a shell script.
            let management = management
                .as_ref()
                .expect("RETRYRMQ_MANAGEMENT_URL is needed to learn the version");
            management
                .version_blocking()
                .expect("the management interface tells the version")
        });
        Broker(Arc::new(Parts {
            version,
            url: parse_url(url),
            management,
            control: (!control.is_empty()).then(|| NodeControl::new(control, version)),
            tls_url: (!tls_url.is_empty()).then(|| parse_url(tls_url)),
            mqtt: None,
            stomp: None,
        }))
    }

    /// The broker at these addresses, controlled by that command; the addresses are as `broker url` prints them.
    pub(crate) fn at(version: Version, urls: &str, control: NodeControl) -> Self {
        let mut urls = urls.lines().map(parse_url).collect::<Vec<_>>();
        let mut take = |scheme: &str| {
            let at = urls.iter().position(|url| url.scheme() == scheme);
            at.map(|at| urls.remove(at))
        };
        Broker(Arc::new(Parts {
            version,
            url: take("amqp").expect("`broker url` prints the AMQP address"),
            management: take("http").map(|url| Management::new(&url)),
            control: Some(control),
            tls_url: take("amqps"),
            mqtt: take("mqtt"),
            stomp: take("stomp"),
        }))
    }

    /// The exact version.
    pub fn version(&self) -> Version {
        self.0.version
    }

    /// The `amqp://` URL of the vhost `/`, with the password. Tests do better in a [`Vhost`] of their own.
    pub fn url(&self) -> &str {
        self.0.url.as_str()
    }

    /// The URL with another vhost as its path: for the other nodes of a cluster, which have that vhost as well.
    pub fn url_of_vhost(&self, vhost: &str) -> String {
        let mut url = self.0.url.clone();
        url.set_path(&format!("/{}", segment(vhost)));
        url.into()
    }

    pub(crate) fn url_of_vhost_as(&self, vhost: &str, user: &str, password: &str) -> String {
        let mut url = parse_url(&self.url_of_vhost(vhost));
        url.set_username(&segment(user))
            .expect("an amqp URL has a user");
        url.set_password(Some(&segment(password)))
            .expect("an amqp URL has a password");
        url.into()
    }

    /// The user that the tests are.
    pub fn user(&self) -> String {
        let name = percent_encoding::percent_decode_str(self.0.url.username()).decode_utf8_lossy();
        if name.is_empty() {
            "guest".into()
        } else {
            name.into_owned()
        }
    }

    /// The TLS listener, where the broker has one.
    pub fn tls(&self) -> Option<Tls> {
        let url = self.0.tls_url.as_ref()?.to_string();
        let authority = std::env::var_os("RETRYRMQ_TEST_CA")?.into();
        Some(Tls { url, authority })
    }

    /// Where it speaks MQTT.
    ///
    /// # Panics
    /// When this is no [node of its own](Self::own_node) with the plugin `rabbitmq_mqtt`.
    pub(crate) fn mqtt(&self) -> String {
        host_and_port(self.0.mqtt.as_ref().expect("the node has rabbitmq_mqtt"))
    }

    /// Where it speaks STOMP.
    ///
    /// # Panics
    /// When this is no [node of its own](Self::own_node) with the plugin `rabbitmq_stomp`.
    pub(crate) fn stomp(&self) -> String {
        host_and_port(self.0.stomp.as_ref().expect("the node has rabbitmq_stomp"))
    }

    /// The management interface.
    ///
    /// # Panics
    /// When this broker has none that is known.
    pub fn management(&self) -> &Management {
        self.0
            .management
            .as_ref()
            .expect("this test needs the management plugin: set RETRYRMQ_MANAGEMENT_URL")
    }

    /// Opens a connection and a channel in the vhost `/`.
    pub async fn connect(&self) -> Amqp {
        Amqp::connect(self.url()).await
    }

    /// A new, empty vhost, deleted when it is dropped.
    pub async fn vhost(&self) -> Vhost {
        Vhost::create(self.clone(), None).await
    }

    /// Whether nodes can be started, stopped and killed here. A broker that was given by `RETRYRMQ_URL` cannot.
    pub fn is_controllable(&self) -> bool {
        self.0.control.is_some()
    }

    /// Whether a node of this broker's can have the delayed-message plugin, which is no part of RabbitMQ, nor of this project:
    /// whoever has it says where (`RETRYRMQ_BROKER_PLUGINS`). Says so where nobody does.
    pub fn may_have_delayed_messages(&self) -> bool {
        let folder = std::env::var_os("RETRYRMQ_BROKER_PLUGINS");
        if folder.is_none() {
            eprintln!(
                "skipped: RETRYRMQ_BROKER_PLUGINS names no folder with the delayed-message plugin"
            );
        }
        folder.is_some() && self.is_controllable() && self.version() < Version::V4_3
    }

    /// A node of the same version for this test alone: the way to kill a broker, or to fill its memory, without harm to
    /// the tests beside. Each setting is a line for its rabbitmq.conf, such as `vm_memory_high_watermark.absolute = 100MB`.
    ///
    /// # Panics
    /// When it does not start, or when the broker is not controllable.
    pub async fn own_node(&self, settings: &[&str]) -> Node {
        Node::start(self.version(), self.control(), settings).await
    }

    /// Kills the node (SIGKILL); its data stays.
    ///
    /// # Panics
    /// When the broker is not controllable, as for the others below.
    pub async fn kill(&self) {
        self.control().run("kill", &[]).await;
    }

    /// Stops the node cleanly.
    pub async fn stop(&self) {
        self.control().run("stop", &[]).await;
    }

    /// Starts the node again, on the same port, and returns when it serves.
    pub async fn start(&self) {
        self.control().run("start", &[]).await;
    }

    /// Runs `rabbitmqctl` on the node and returns what it printed.
    pub async fn ctl(&self, arguments: &[&str]) -> String {
        let mut all = vec!["--"];
        all.extend(arguments);
        self.control().run("ctl", &all).await
    }

    /// Evaluates Erlang on the node, in which `Name` is the name of a quorum queue's process, and returns what it came to.
    pub async fn eval_on_quorum_queue(&self, vhost: &str, queue: &str, expression: &str) -> String {
        let expression = format!(
            "{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<\"{vhost}\">>, queue, <<\"{queue}\">>)), \
             {{Name, _}} = amqqueue:get_pid(Q), {expression}"
        );
        self.ctl(&["eval", &expression]).await
    }

    /// Has another node lead a quorum queue, as an operator can.
    pub async fn move_leader(&self, vhost: &str, queue: &str) {
        let expression = "{ok, Members, Leader} = ra:members({Name, node()}), \
             [Other | _] = Members -- [Leader], \
             ra:transfer_leadership(Leader, Other).";
        self.eval_on_quorum_queue(vhost, queue, expression).await;
    }

    /// Sets how much of the machine's memory the node may use; a tiny share raises the alarm that blocks publishers.
    pub async fn set_memory_watermark(&self, share: f64) {
        self.ctl(&["set_vm_memory_high_watermark", &share.to_string()])
            .await;
    }

    /// Has the node run short of memory, so that it reads nothing from who publishes, and returns when it does. A
    /// [watermark](Self::set_memory_watermark) of `0.4` ends that.
    pub async fn raise_memory_alarm(&self) {
        const DEADLINE: Duration = Duration::from_secs(120);
        self.set_memory_watermark(0.000_01).await;
        eventually(DEADLINE, "the alarm is on", || async {
            let nodes = self.management().get("nodes".into()).await;
            nodes.expect("the node tells of itself")[0]["mem_alarm"] == true
        })
        .await;
    }

    pub(crate) fn control(&self) -> &NodeControl {
        let control = self.0.control.as_ref();
        control.expect("this broker was given by RETRYRMQ_URL and cannot be started or stopped: ask is_controllable() first")
    }
}

/// The name without the password.
impl fmt::Display for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RabbitMQ {}", self.0.version)
    }
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let port = self.0.url.port().unwrap_or_default();
        write!(
            f,
            "{self} ({}:{port})",
            self.0.url.host_str().unwrap_or_default()
        )
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("authority", &self.authority)
            .finish_non_exhaustive()
    }
}

fn host_and_port(url: &Url) -> String {
    let (host, port) = (url.host_str(), url.port());
    format!("{}:{}", host.unwrap_or_default(), port.unwrap_or_default())
}

fn parse_url(url: &str) -> Url {
    // The URL itself is not shown, because it may hold a password.
    url.parse()
        .unwrap_or_else(|error| panic!("a URL in RETRYRMQ_TEST_BROKERS is wrong: {error}"))
}
