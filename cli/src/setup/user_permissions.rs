//! `setup --permissions`: what users may do, compared with what they need, and given by the management API.

use retryrmq::terminal_escape;
use retryrmq_operator::management::Permissions;
use serde_json::{Value, json};

use super::permissions::Grant;
use crate::{error::CliError, exit::Exit, management::ManagementClient, output::Output};

/// A user's permissions in one virtual host, and those that he needs.
pub(super) struct UserPermission<'a> {
    grant: &'a Grant,
    needed: Permissions,
    /// None: he may do nothing there.
    had: Option<Permissions>,
    is_given: bool,
}

/// All of them.
pub(super) struct UserPermissions<'a> {
    management_client: &'a ManagementClient,
    all: Vec<UserPermission<'a>>,
}

impl<'a> UserPermissions<'a> {
    /// Reads what is in force. Nothing is changed.
    ///
    /// # Errors
    /// For a user that is not there, and for the one that asks: he would take his own rights.
    pub(super) async fn read(
        management_client: &'a ManagementClient,
        grants: &'a [Grant],
    ) -> Result<Self, CliError> {
        if grants.is_empty() {
            return Err(CliError::usage(
                "--permissions: there are no [[permissions]] in the file; nothing was done",
            ));
        }
        let own = management_client.api.whoami().await?;
        let mut all = Vec::with_capacity(grants.len());
        for grant in grants {
            let user = terminal_escape::line(&grant.user);
            if grant.user == own {
                return Err(CliError::usage(format!(
                    "`{user}` is the user that asks for this, and may do less afterwards: let another administrator do it; nothing was done"
                )));
            }
            if !management_client.api.has_user(&grant.user).await? {
                return Err(CliError::not_found(format!(
                    "there is no user `{user}`; nothing was done: make it first (`rabbitmqctl add_user {}`)",
                    shell_words::quote(&user)
                )));
            }
            let [configure, write, read] = grant.patterns();
            let needed = Permissions {
                configure,
                write,
                read,
            };
            let had = management_client
                .api
                .permissions(&management_client.vhost, &grant.user)
                .await?;
            all.push(UserPermission {
                grant,
                needed,
                had,
                is_given: false,
            });
        }
        Ok(Self {
            management_client,
            all,
        })
    }

    fn differing(&self) -> impl Iterator<Item = &UserPermission<'a>> {
        self.all.iter().filter(|right| right.differs())
    }

    /// Whether every user has what he needs, and nothing else.
    pub(super) fn are_complete(&self) -> bool {
        self.differing().next().is_none()
    }

    /// The difference, for people.
    pub(super) fn show(&self, output: &Output) -> Result<(), CliError> {
        for right in self.differing() {
            let user = terminal_escape::line(&right.grant.user);
            let vhost = terminal_escape::line(&self.management_client.vhost);
            output.line("")?;
            output.line(&output.bold(format!("permissions of {user} in {vhost}")))?;
            let none = Permissions::default();
            let had = right.had.as_ref().unwrap_or(&none);
            for (name, had, needed) in [
                ("configure", &had.configure, &right.needed.configure),
                ("write", &had.write, &right.needed.write),
                ("read", &had.read, &right.needed.read),
            ] {
                if had == needed && right.had.is_some() {
                    continue;
                }
                output.line(&format!("  {name}"))?;
                if right.had.is_some() {
                    output.line(&output.dim(format!("  - {}", shown(had))))?;
                }
                output.line(&format!("  + {}", shown(needed)))?;
            }
        }
        Ok(())
    }

    /// The question before it is done.
    pub(super) fn question(&self) -> String {
        let users: Vec<_> = self
            .differing()
            .map(|right| terminal_escape::line(&right.grant.user))
            .collect();
        format!("Give these permissions to {}?", users.join(", "))
    }

    /// Gives what is needed in place of what is there.
    ///
    /// # Errors
    /// [`Exit::Refused`] without the tag `administrator`. It says who has his by then.
    pub(super) async fn give(&mut self) -> Result<(), CliError> {
        let mut done: Vec<String> = Vec::new();
        for right in &mut self.all {
            if !right.differs() {
                continue;
            }
            let user = &right.grant.user;
            let put = self.management_client.api.put_permissions(
                &self.management_client.vhost,
                user,
                &right.needed,
            );
            put.await.map_err(|why| {
                let cli_error = CliError::from(why);
                match &done[..] {
                    [] => cli_error.after("no permission was changed"),
                    some => cli_error.after(&format!("{} have theirs", some.join(", "))),
                }
            })?;
            right.is_given = true;
            done.push(terminal_escape::line(user).into_owned());
        }
        Ok(())
    }

    pub(super) fn exit(&self, dry_run: bool) -> Exit {
        if dry_run && !self.are_complete() {
            Exit::NotFound
        } else {
            Exit::Ok
        }
    }

    pub(super) fn as_json(&self) -> Vec<Value> {
        let each = self.all.iter().map(|right| {
            let mut line = right.grant.as_json(&self.management_client.vhost);
            line["status"] = json!(if right.is_given {
                "given"
            } else if right.differs() {
                "differs"
            } else {
                "present"
            });
            line["had"] = match &right.had {
                Some(had) => {
                    json!({"configure": had.configure, "write": had.write, "read": had.read})
                }
                None => Value::Null,
            };
            line
        });
        each.collect()
    }
}

impl UserPermission<'_> {
    fn differs(&self) -> bool {
        !self.is_given && self.had.as_ref() != Some(&self.needed)
    }
}

/// A pattern; the one of nobody is empty.
fn shown(pattern: &str) -> String {
    match pattern {
        "" => "(nothing)".to_owned(),
        pattern => terminal_escape::line(pattern).into_owned(),
    }
}
