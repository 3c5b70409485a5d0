//! `--audit FILE`: who did what with which message, a JSON object a line, on the disk before the message leaves its queue.

use std::{
    fs::{File, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    time::SystemTime,
};

use retryrmq::Record;
use serde_json::{Value, json};

use crate::{fault::Fault, json, moment};
use retryrmq::visible;

/// A file that is appended to.
#[derive(Debug)]
pub(super) struct Audit {
    file: File,
    path: PathBuf,
    command: &'static str,
    queue: String,
    who: String,
}

impl Audit {
    /// Opens the file and writes that something begins: a file that takes nothing stops it before anything happens.
    pub(super) fn open(
        path: Option<&Path>,
        command: &'static str,
        queue: &str,
    ) -> Result<Option<Self>, Fault> {
        let Some(path) = path else {
            return Ok(None);
        };
        let mut options = OpenOptions::new();
        let file = options.append(true).create(true).open(path);
        let file = file.map_err(|why| unwritable(path, &why, "nothing was done"))?;
        let mut audit = Self {
            file,
            path: path.to_owned(),
            command,
            queue: queue.to_owned(),
            who: who(),
        };
        let begun = audit.line("begun");
        audit
            .write(&[begun])
            .map_err(|why| unwritable(path, &why, "nothing was done"))?;
        Ok(Some(audit))
    }

    /// A line about no message in particular.
    pub(super) fn line(&self, event: &str) -> Value {
        json!({
            "at": moment::rfc3339(SystemTime::now()),
            "who": self.who,
            "command": self.command,
            "queue": self.queue,
            "event": event,
        })
    }

    /// A line about a message: what happens to it, and where it goes.
    pub(super) fn of(&self, event: &str, record: &Record, to: Option<&str>) -> Value {
        let mut line = self.line(event);
        line["message_id"] = json!(record.message().message_id());
        line["mark"] = json!(record.mark);
        line["fingerprint"] = json!(record.fingerprint);
        if let Some(to) = to {
            line["to"] = json!(to);
        }
        line
    }

    /// Appends lines, and returns when they are on the disk.
    pub(super) fn append(&mut self, lines: &[Value], done: &str) -> Result<(), Fault> {
        if lines.is_empty() {
            return Ok(());
        }
        self.write(lines)
            .map_err(|why| unwritable(&self.path, &why, done))
    }

    /// In one call, so that the lines of two commands do not mix.
    fn write(&mut self, lines: &[Value]) -> std::io::Result<()> {
        let mut text = String::new();
        for line in lines {
            text.push_str(&json::harmless(line.to_string()));
            text.push('\n');
        }
        self.file.write_all(text.as_bytes())?;
        match self.file.sync_data() {
            // A pipe or a terminal has no disk to wait for.
            Err(why) if why.kind() == std::io::ErrorKind::InvalidInput => Ok(()),
            synced => synced,
        }
    }
}

fn unwritable(path: &Path, why: &std::io::Error, done: &str) -> Fault {
    let path = path.to_string_lossy();
    Fault::failed(format!(
        "cannot write the --audit file {}: {why}; {done}",
        visible::line(&path)
    ))
}

/// The user of the operating system, and the machine: `ana@shop-1`, `root@shop-1 (ana)` by way of sudo.
pub(super) fn who() -> String {
    let host = gethostname::gethostname();
    let (user, host) = (user(), host.to_string_lossy());
    match std::env::var("SUDO_USER") {
        Ok(caller) if !caller.is_empty() && caller != user => format!("{user}@{host} ({caller})"),
        _ => format!("{user}@{host}"),
    }
}

/// Not from the environment, where anybody says who they are, unless nobody else knows.
fn user() -> String {
    let uid = rustix::process::getuid().as_raw().to_string();
    let named = std::fs::read_to_string("/etc/passwd").ok();
    let named = named.as_deref().and_then(|all| name_of(all, &uid));
    named
        .or_else(|| {
            std::env::var("LOGNAME")
                .ok()
                .filter(|name| !name.is_empty())
        })
        .unwrap_or_else(|| format!("uid {uid}"))
}

fn name_of(passwd: &str, uid: &str) -> Option<String> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == uid).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_the_name_that_the_system_gives() {
        let passwd =
            "root:x:0:0:root:/root:/bin/bash\n# comment\nana:x:1000:1000::/home/ana:/bin/sh\n";
        assert_eq!(name_of(passwd, "1000").as_deref(), Some("ana"));
        assert_eq!(name_of(passwd, "0").as_deref(), Some("root"));
        assert_eq!(name_of(passwd, "100"), None);
    }

    #[test]
    fn lines_are_appended_and_a_file_that_takes_none_stops_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        for event in ["replayed", "dropped"] {
            let mut audit = Audit::open(Some(&path), "replay", "orders")
                .unwrap()
                .unwrap();
            let line = audit.line(event);
            audit.append(&[line], "").unwrap();
        }
        let lines: Vec<Value> = std::fs::read_to_string(&path)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let events: Vec<_> = lines.iter().map(|line| line["event"].clone()).collect();
        assert_eq!(events, ["begun", "replayed", "begun", "dropped"]);
        assert!(lines[0]["who"].as_str().unwrap().contains('@'));
        let refused = Audit::open(Some(folder.path()), "replay", "orders").unwrap_err();
        assert!(
            refused.sentence().ends_with("nothing was done"),
            "{refused:?}"
        );
        if Path::new("/dev/full").exists() {
            Audit::open(Some(Path::new("/dev/full")), "drop", "orders").unwrap_err();
        }
    }
}
