//! The options of every subcommand.

use std::fmt;

use clap::{ArgAction, Args, ValueEnum};
use retryrmq::{Client, ClientOptions, QueueType};

use crate::error::CliError;

/// Options that stand before or after any subcommand.
#[derive(Clone, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// The broker: amqp://user:password@host:5672/vhost, or amqps:// for TLS
    ///
    /// The virtual host is percent-encoded (`%2f` is `/`), and so is a password with `/`, `?`, `#` or `@` in it. Parameters,
    /// after a `?`: heartbeat (seconds), connection_timeout (ms), name; with amqps:// cacertfile, certfile, keyfile (PEM
    /// files) and server_name_indication; userfile, passwordfile (read at each connection) and auth_mechanism=external. Several
    /// hosts of one cluster: amqp://a:5672,b:5672/vhost. Prefer the environment variable: other users of the machine
    /// can see the arguments of a program, not its environment.
    // Not parsed by clap, whose complaint would show the password; nor are values from the environment ever shown.
    #[arg(
        long,
        global = true,
        env = "RETRYRMQ_URL",
        hide_env_values = true,
        value_name = "URL",
        default_value = "amqp://localhost"
    )]
    pub(crate) url: String,

    /// Print JSON: one object a line where there are many, otherwise one document
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// Log more to standard error; repeat for debug output
    #[arg(short, long, global = true, action = ArgAction::Count, conflicts_with = "quiet")]
    pub(crate) verbose: u8,

    /// Say nothing on standard error but errors
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,

    /// When to use colours; `auto` also honours NO_COLOR
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        hide_possible_values = false
    )]
    pub(crate) color: ColorMode,
}

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorMode {
    Auto,
    Always,
    Never,
}

/// Nothing of it: an address may hold a password.
impl fmt::Debug for Global {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Global").finish_non_exhaustive()
    }
}

impl Global {
    /// Connects.
    pub(crate) async fn connect(&self) -> Result<Client, CliError> {
        Ok(Client::connect(self.broker_url()).await?)
    }

    /// Connects for a consumer, whose waiting and parking queues are of this type.
    pub(crate) async fn connect_for(&self, queue_type: QueueType) -> Result<Client, CliError> {
        self.connect_with(ClientOptions::new().queue_type(queue_type))
            .await
    }

    /// Connects with options.
    pub(crate) async fn connect_with(&self, options: ClientOptions) -> Result<Client, CliError> {
        Ok(Client::connect_with(self.broker_url(), options).await?)
    }

    /// Those of these options that a program takes in our place, the broker's URL aside.
    pub(crate) fn as_arguments(&self) -> Vec<&'static str> {
        let mut arguments = vec!["--verbose"; self.verbose.into()];
        arguments.extend(self.quiet.then_some("--quiet"));
        arguments.extend(self.json.then_some("--json"));
        arguments
    }

    /// An empty variable is one that is not set.
    pub(crate) fn broker_url(&self) -> &str {
        match self.url.trim() {
            "" => "amqp://localhost",
            url => url,
        }
    }
}
