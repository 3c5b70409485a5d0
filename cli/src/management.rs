//! The management API for subcommands: its options.

use std::{fmt, path::PathBuf};

use clap::Args;
use retryrmq::Addresses;
use retryrmq_operator::management::{self, Address, Queue};

use crate::{error::CliError, global::Global};

/// Where the management API is.
#[derive(Clone, Default, Args)]
#[command(next_help_heading = "Management API")]
pub(crate) struct Management {
    /// The management API: http://host:15672, or https://user:password@host:15671
    ///
    /// Unless given, it is asked where the broker is, as the same user: port 15672, or 15671 and TLS with amqps://.
    // Not parsed by clap, whose complaint would show the password.
    #[arg(
        long,
        env = "RETRYRMQ_MANAGEMENT_URL",
        hide_env_values = true,
        value_name = "URL"
    )]
    management: Option<String>,

    /// A file with the CA (PEM) of its certificate; unless given, `cacertfile` of the broker's URL
    #[arg(long, value_name = "FILE")]
    management_ca: Option<PathBuf>,
}

/// The management API, and the virtual host that the broker's URL names.
pub(crate) struct ManagementClient {
    pub(crate) api: management::Management,
    pub(crate) vhost: String,
}

/// Nothing of it: an address may hold a password.
impl fmt::Debug for Management {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Management").finish_non_exhaustive()
    }
}

impl Management {
    /// Whether somebody said where it is. What does without it asks it only then.
    pub(crate) fn is_given(&self) -> bool {
        self.given_address().is_some()
    }

    fn given_address(&self) -> Option<&str> {
        let said = self.management.as_deref().map(str::trim);
        said.filter(|said| !said.is_empty())
    }

    pub(crate) fn open(&self, global: &Global) -> Result<ManagementClient, CliError> {
        // Its complaint is that of every other subcommand.
        global.broker_url().parse::<Addresses>()?;
        let address = Address::new(
            global.broker_url(),
            self.given_address(),
            self.management_ca.as_deref(),
        )?;
        Ok(ManagementClient {
            api: management::Management::new(address)?,
            vhost: management::vhost_of(global.broker_url())?,
        })
    }
}

impl ManagementClient {
    pub(crate) async fn queue(&self, name: &str) -> Result<Queue, CliError> {
        let found = self.api.queue(&self.vhost, name).await?;
        found.ok_or_else(|| self.no_queue(name))
    }

    pub(crate) fn no_queue(&self, name: &str) -> CliError {
        CliError::not_found(format!(
            "there is no queue `{name}` in virtual host `{}`; see `rabbitmqctl list_queues -p {}`",
            self.vhost,
            shell_words::quote(&self.vhost)
        ))
    }
}
