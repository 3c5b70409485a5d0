//! `retryrmq setup`: the queues of services whose user may not make them, out of one file.

mod desired;
mod file;
mod permissions;
mod user_permissions;

use std::path::PathBuf;

use clap::Args;
use retryrmq::{Addresses, Finding, Item, Status, terminal_escape};
use serde_json::{Value, json};

pub(crate) use self::file::Setup;
use self::{desired::DesiredQueue, user_permissions::UserPermissions};
use crate::{
    error::CliError,
    exit::Exit,
    global::Global,
    management::Management,
    output::{Column, Output, TextStyle},
    prompt, topology,
};

/// Create the queues that services need from one file, and list the permissions they need
///
/// Idempotent: what is there stays as it is, and where something differs nothing is created. The services then consume with `--no-declare`,
/// or `declare` off, and need no right to configure. With --permissions they are given the rights that they need, too.
#[derive(Clone, Debug, Args)]
#[command(override_usage = "retryrmq setup [OPTIONS] <FILE>", after_help = EXAMPLES)]
pub(crate) struct Options {
    /// The file, TOML
    file: PathBuf,

    /// Only read the file; no broker is asked
    #[arg(long, conflicts_with = "dry_run")]
    check: bool,

    /// Show what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,

    /// Give the users of the file exactly the permissions that they need, in place of those that they have in this virtual host;
    /// shows the difference and asks. Uses the management API, as a user with the tag `administrator`
    #[arg(long, conflicts_with = "check")]
    permissions: bool,

    /// Do not ask for confirmation
    #[arg(long, requires = "permissions", conflicts_with = "dry_run")]
    yes: bool,

    #[command(flatten)]
    management: Management,
}

const EXAMPLES: &str = "\
A file:
  [policies]
  slow = \"list(1m, 10m, 1h)\"

  [[queues]]
  name = \"orders\"
  retry = \"slow\"                       # or a policy: \"fixed(5s, retries=3)\"
  rules = [\"error=*Timeout => fixed(5s)\"]
  # also: strategy, queue_type, and work_queue (\"existing\", or arguments)

  [[permissions]]
  user = \"shop\"
  consumes = [\"orders\"]                # also: publishes, exchanges, operates,
                                       # and declares = true

Examples:
  retryrmq setup retries.toml --check
  retryrmq setup retries.toml --dry-run
  retryrmq setup retries.toml
  retryrmq setup retries.toml --permissions --dry-run

Exit code 2: the file is wrong, and where. 3: of --dry-run: something is missing. 5: something
differs, and nothing was made.

JSON, one document: complete, queues (queue, strategy, items as of `topology`) and permissions
(user, configure, write, read, command; with --permissions also status: present, differs or
given, and had).";

/// A queue's plan, and how it stands on the broker.
struct ComparedQueue<'a> {
    wanted: &'a DesiredQueue,
    findings: Vec<Finding>,
}

pub(crate) async fn run(
    options: Options,
    global: &Global,
    output: &Output,
) -> Result<Exit, CliError> {
    let setup = Setup::read(&options.file)?;
    let vhost = vhost(global)?;
    if options.check {
        return checked(&setup, &vhost, output);
    }
    let management_client = match options.permissions {
        true => Some(options.management.open(global)?),
        false => None,
    };
    if management_client.is_some() && !(options.yes || options.dry_run || prompt::can_ask()) {
        return Err(CliError::usage(
            "--permissions changes what users may do: pass --yes, or look first with --dry-run; nothing was done",
        ));
    }
    let mut user_permissions = match &management_client {
        Some(management_client) => {
            Some(UserPermissions::read(management_client, &setup.grants).await?)
        }
        None => None,
    };
    let mut compared = Vec::with_capacity(setup.queues.len());
    for wanted in &setup.queues {
        let findings = examine(wanted, global, false).await?;
        compared.push(ComparedQueue { wanted, findings });
    }
    let mut exit = verdict(&compared);
    if !options.dry_run && exit == Exit::NotFound {
        for queue in &mut compared {
            queue.findings = examine(queue.wanted, global, true).await?;
        }
        exit = verdict(&compared);
    }
    if !output.is_json() {
        print(&setup, &compared, &vhost, output)?;
    }
    if let Some(user_permissions) = &mut user_permissions {
        // Rights on queues that could not be made would be given for nothing.
        if !output.is_json() {
            user_permissions.show(output)?;
        }
        let may = exit == Exit::Ok && !options.dry_run && !user_permissions.are_complete();
        if may && (options.yes || prompt::agrees(&user_permissions.question()).await?) {
            user_permissions.give().await?;
            output.note("the permissions are given");
        } else if may {
            output.note("no permission was changed");
        } else if exit == Exit::Ok && user_permissions.are_complete() {
            output.note("every user has exactly the permissions it needs");
        }
    }
    if output.is_json() {
        let permissions = match &user_permissions {
            Some(user_permissions) => user_permissions.as_json(),
            None => grants(&setup, &vhost),
        };
        output.json_document(&document(&compared, exit, permissions))?;
    }
    if let (Some(user_permissions), Exit::Ok) = (&user_permissions, exit) {
        exit = user_permissions.exit(options.dry_run);
    }
    let mut all = compared.iter().flat_map(|queue| &queue.findings);
    match exit {
        Exit::NotFound if all.any(topology::is_for_others) => output.note(
            "something is missing; without --dry-run it is made, but for what others make: a queue whose `work_queue` is \"existing\", or that of the service",
        ),
        Exit::NotFound => output.note("something is missing; without --dry-run it is made"),
        Exit::Refused => output.note(
            "something differs, and nothing was made: delete it when it is empty, or write in the file what it has",
        ),
        _ => {}
    }
    Ok(exit)
}

/// The virtual host's name, for the commands.
fn vhost(global: &Global) -> Result<String, CliError> {
    let addresses: Addresses = global.broker_url().parse()?;
    Ok(addresses.vhost().to_owned())
}

async fn examine(
    wanted: &DesiredQueue,
    global: &Global,
    apply: bool,
) -> Result<Vec<Finding>, CliError> {
    let client = global.connect_for(wanted.queue_type).await?;
    let findings = async {
        wanted.strategy.check(
            client.server(),
            &wanted.name,
            &wanted.rules,
            wanted.queue_type,
        )?;
        if apply {
            client.apply_plan(&wanted.plan).await
        } else {
            client.compare_plan(&wanted.plan).await
        }
    }
    .await;
    client.close().await;
    let place = |cli_error: CliError| {
        cli_error.after(&format!(
            "it is about the queue `{}`",
            terminal_escape::line(&wanted.name)
        ))
    };
    findings.map_err(|why| place(why.into()))
}

/// The worst of all.
fn verdict(compared: &[ComparedQueue<'_>]) -> Exit {
    let each = || {
        compared
            .iter()
            .map(|queue| topology::verdict(&queue.findings))
    };
    [Exit::Refused, Exit::NotFound]
        .into_iter()
        .find(|worst| each().any(|exit| exit == *worst))
        .unwrap_or(Exit::Ok)
}

fn checked(setup: &Setup, vhost: &str, output: &Output) -> Result<Exit, CliError> {
    if output.is_json() {
        let queues = setup.queues.iter();
        let queues: Vec<Value> = queues
            .map(|queue| as_json(queue, queue.plan.items.iter().map(|item| (item, None))))
            .collect();
        output.json_document(
            &json!({"complete": null, "queues": queues, "permissions": grants(setup, vhost)}),
        )?;
        return Ok(Exit::Ok);
    }
    let columns = [
        Column::left("queue", 30),
        Column::left("strategy", 16),
        Column::left("retry", 0),
    ];
    let rows = setup.queues.iter().map(|queue| {
        vec![
            TextStyle::Bold.of(terminal_escape::line(&queue.name)),
            TextStyle::Plain.of(queue.strategy),
            TextStyle::Plain.of(&queue.rules.otherwise),
        ]
    });
    output.table(&columns, rows.collect())?;
    commands(setup, vhost, output)?;
    Ok(Exit::Ok)
}

fn document(compared: &[ComparedQueue<'_>], exit: Exit, permissions: Vec<Value>) -> Value {
    let queues = compared.iter().map(|queue| {
        let findings = queue.findings.iter();
        as_json(
            queue.wanted,
            findings.map(|finding| (&finding.item, Some(&finding.status))),
        )
    });
    let queues: Vec<Value> = queues.collect();
    json!({"complete": exit == Exit::Ok, "queues": queues, "permissions": permissions})
}

fn print(
    setup: &Setup,
    compared: &[ComparedQueue<'_>],
    vhost: &str,
    output: &Output,
) -> Result<(), CliError> {
    let columns = [
        Column::left("status", 9),
        Column::left("name", 44),
        Column::left("purpose", 0),
    ];
    let findings = || compared.iter().flat_map(|queue| &queue.findings);
    let rows = findings().map(|finding| {
        let (_, shown, color) = topology::word(&finding.status);
        vec![
            TextStyle::In(color).of(shown),
            TextStyle::Bold.of(terminal_escape::line(finding.item.name())),
            TextStyle::Plain.of(topology::purpose(&finding.item)),
        ]
    });
    output.table(&columns, rows.collect())?;
    for finding in findings() {
        if let Status::Differs(why) = &finding.status {
            output.line(&format!(
                "\n{}  {}",
                output.bold(terminal_escape::line(finding.item.name())),
                terminal_escape::line(why)
            ))?;
        }
    }
    commands(setup, vhost, output)
}

/// What an administrator types.
fn commands(setup: &Setup, vhost: &str, output: &Output) -> Result<(), CliError> {
    if setup.grants.is_empty() {
        return Ok(());
    }
    output.line("")?;
    output.line(
        &output.dim("What services need in this virtual host, in place of what they have:"),
    )?;
    for grant in &setup.grants {
        output.line(&terminal_escape::line(&grant.command(vhost)))?;
    }
    Ok(())
}

fn grants(setup: &Setup, vhost: &str) -> Vec<Value> {
    setup
        .grants
        .iter()
        .map(|grant| grant.as_json(vhost))
        .collect()
}

fn as_json<'a>(
    queue: &DesiredQueue,
    items: impl Iterator<Item = (&'a Item, Option<&'a Status>)>,
) -> Value {
    let items: Vec<Value> = items
        .map(|(item, status)| topology::as_json(item, status))
        .collect();
    json!({"queue": queue.name, "strategy": queue.strategy.as_str(), "items": items})
}
