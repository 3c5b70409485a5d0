//! A program that uses the API, and believes no answer that the description does not promise.

use std::collections::BTreeSet;

use retryrmq_harness::eventually;
use serde_json::{Value, json};

use super::schema::faults;
use crate::{
    fixture::{DEADLINE, Replica},
    page::Visitor,
};

pub(super) const ROOT: &str = "/api/v1";

/// A program with a token.
pub(super) struct Program {
    visitor: Visitor,
    authorization: String,
    document: Value,
    /// Operations that were answered, with the status.
    seen: BTreeSet<(String, u16)>,
}

/// An answer.
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) location: String,
    pub(super) head: String,
    pub(super) json: Value,
}

impl Reply {
    /// What a problem says.
    pub(super) fn detail(&self) -> &str {
        self.json["detail"].as_str().unwrap_or_default()
    }

    pub(super) fn code(&self) -> &str {
        self.json["code"].as_str().unwrap_or_default()
    }
}

impl Program {
    pub(super) async fn with_token(replica: &Replica, token: &str) -> Self {
        let mut program = Self {
            visitor: Visitor::new(replica),
            authorization: format!("authorization: Bearer {token}\r\n"),
            document: json!({"paths": {}}),
            seen: BTreeSet::new(),
        };
        let described = program.ask("GET", "/openapi.json", None).await;
        assert_eq!(described.status, 200, "{}", described.json);
        program.document = described.json;
        program
    }

    /// The description of the API.
    pub(super) fn document(&self) -> &Value {
        &self.document
    }

    /// The operations that were answered with a status below 400, by their ids.
    pub(super) fn succeeded(&self) -> BTreeSet<String> {
        let good = self.seen.iter().filter(|(_, status)| *status < 400);
        good.map(|(id, _)| id.clone()).collect()
    }

    pub(super) async fn get(&mut self, path: &str) -> Reply {
        self.ask("GET", path, None).await
    }

    /// What is there.
    pub(super) async fn reads(&mut self, path: &str) -> Value {
        let reply = self.get(path).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.json);
        reply.json
    }

    pub(super) async fn post(&mut self, job: &Value) -> Reply {
        self.ask("POST", "/jobs", Some(&job.to_string())).await
    }

    /// Reads until it is so.
    pub(super) async fn sees(&mut self, path: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let program = tokio::sync::Mutex::new(self);
        eventually(DEADLINE, path, || async {
            let read = program.lock().await.get(path).await.json;
            match is_so(&read) {
                true => Ok(read),
                false => Err(read.to_string()),
            }
        })
        .await
    }

    /// Has a job done, and waits for its end: the job and its results.
    pub(super) async fn does(&mut self, job: &Value) -> (Value, Value) {
        let began = self.post(job).await;
        assert_eq!(began.status, 202, "{job}: {}", began.json);
        let path = began.location.strip_prefix(ROOT).unwrap().to_owned();
        assert_eq!(
            path,
            format!("/jobs/{}", began.json["id"].as_str().unwrap())
        );
        let ended = self.sees(&path, |job| job["state"] != "running").await;
        let results = self.reads(&format!("{path}/results")).await;
        (ended, results)
    }

    /// Asks, and compares the answer with the description.
    pub(super) async fn ask(&mut self, method: &str, path: &str, body: Option<&str>) -> Reply {
        let more = match body {
            Some(_) => "content-type: application/json\r\n",
            None => "",
        };
        self.send(method, path, more, body.unwrap_or_default())
            .await
    }

    pub(super) async fn send(&mut self, method: &str, path: &str, more: &str, body: &str) -> Reply {
        let more = format!("{}{more}", self.authorization);
        let address = format!("{ROOT}{path}");
        let answer = self.visitor.ask(method, &address, &more, body).await;
        let json = match answer.body.as_str() {
            "" => Value::Null,
            text => serde_json::from_str(text).unwrap_or_else(|_| panic!("{path}: {text}")),
        };
        let reply = Reply {
            status: answer.status,
            location: answer.location,
            head: answer.head,
            json,
        };
        self.compare(method, path, &reply);
        reply
    }

    fn compare(&mut self, method: &str, path: &str, reply: &Reply) {
        let is_problem = reply.status >= 400;
        let kind = match is_problem {
            true => "application/problem+json",
            false => "application/json",
        };
        let is_kind = reply
            .head
            .lines()
            .any(|line| line == format!("content-type: {kind}"));
        assert!(is_kind, "{path}: {}", reply.head);
        assert!(
            reply.head.contains("cache-control: no-store"),
            "{path}: {}",
            reply.head
        );
        if is_problem {
            assert_eq!(reply.json["status"], reply.status, "{path}: {}", reply.json);
            assert!(!reply.detail().is_empty(), "{path}: {}", reply.json);
        }
        let Some(operation) = self.operation(method, path) else {
            let is_unknown = [404, 405].contains(&reply.status);
            assert!(
                is_unknown || path == "/openapi.json",
                "{method} {path} is not described"
            );
            return;
        };
        let described = &operation["responses"][reply.status.to_string()];
        let described = match described["$ref"].as_str() {
            Some(reference) => self
                .document
                .pointer(&reference[1..])
                .expect("it is described"),
            None => described,
        };
        let schema = &described["content"][kind]["schema"];
        assert!(
            !schema.is_null(),
            "{method} {path} {}: not described",
            reply.status
        );
        let faults = faults(&self.document, schema, &reply.json);
        assert!(faults.is_empty(), "{method} {path}: {faults:#?}");
        let id = operation["operationId"].as_str().unwrap().to_owned();
        self.seen.insert((id, reply.status));
    }

    /// What the description says of an address.
    fn operation(&self, method: &str, path: &str) -> Option<&Value> {
        let path = path.split('?').next().unwrap();
        let address = format!("{ROOT}{path}");
        let parts: Vec<_> = address.split('/').collect();
        let fits = |described: &&String| {
            let described: Vec<_> = described.split('/').collect();
            described.len() == parts.len()
                && described
                    .iter()
                    .zip(&parts)
                    .all(|(one, part)| one.starts_with('{') || one == part)
        };
        let paths = self.document["paths"].as_object()?;
        let described = paths.keys().find(fits)?;
        paths[described].get(method.to_lowercase())
    }
}
