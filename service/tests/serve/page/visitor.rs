//! Somebody with a browser, by HTTP.

use retryrmq_harness::eventually;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::fixture::{DEADLINE, Replica};

/// Somebody with a browser, as far as a page without scripts can tell.
pub(crate) struct Visitor {
    address: String,
    pub(crate) cookies: Vec<(String, String)>,
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) location: String,
    /// The status and the headers.
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Visitor {
    pub(crate) fn new(replica: &Replica) -> Self {
        Self {
            address: replica.address().to_owned(),
            cookies: Vec::new(),
        }
    }

    /// Signs in with a token.
    pub(crate) async fn with_token(replica: &Replica, token: &str) -> Self {
        let mut visitor = Self::new(replica);
        let word = visitor.get("/sign-in").await.word();
        let answer = visitor
            .post("/sign-in", &[("word", &word), ("token", token)])
            .await;
        assert_eq!((answer.status, answer.location.as_str()), (303, "/"));
        visitor
    }

    pub(crate) async fn get(&mut self, path: &str) -> Answer {
        self.ask("GET", path, "", "").await
    }

    pub(crate) async fn post(&mut self, path: &str, form: &[(&str, &str)]) -> Answer {
        let origin = format!("origin: http://{}\r\n", self.address);
        self.send(path, form, &origin).await
    }

    pub(super) async fn send(&mut self, path: &str, form: &[(&str, &str)], more: &str) -> Answer {
        let escaped = |text: &str| -> String {
            let bytes = text.bytes();
            bytes.map(|byte| format!("%{byte:02x}")).collect()
        };
        let pairs = form.iter();
        let pairs: Vec<_> = pairs
            .map(|(name, value)| format!("{name}={}", escaped(value)))
            .collect();
        let more = format!("{more}content-type: application/x-www-form-urlencoded\r\n");
        self.ask("POST", path, &more, &pairs.join("&")).await
    }

    pub(crate) async fn ask(&mut self, method: &str, path: &str, more: &str, body: &str) -> Answer {
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        let cookies: Vec<_> = self
            .cookies
            .iter()
            .map(|(n, v)| format!("{n}={v}"))
            .collect();
        let asked = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncookie: {}\r\n{more}content-length: {}\r\n\r\n{body}",
            self.address,
            cookies.join("; "),
            body.len()
        );
        stream.write_all(asked.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
        let mut location = String::new();
        for line in head.lines() {
            let Some((name, value)) = line.split_once(": ") else {
                continue;
            };
            match name {
                "location" => value.clone_into(&mut location),
                "set-cookie" => {
                    assert!(value.contains("HttpOnly; SameSite=Strict"), "{value}");
                    let (name, rest) = value.split_once('=').unwrap();
                    let value = rest.split(';').next().unwrap_or_default();
                    self.cookies.retain(|(of, _)| of != name);
                    self.cookies.push((name.to_owned(), value.to_owned()));
                }
                _ => {}
            }
        }
        let status = head.split(' ').nth(1).and_then(|text| text.parse().ok());
        Answer {
            status: status.expect("a status"),
            location,
            head: head.to_owned(),
            body: body.to_owned(),
        }
    }

    /// Loads a page until it has these words.
    pub(crate) async fn sees(&mut self, path: &str, words: &[&str]) -> String {
        let visitor = tokio::sync::Mutex::new(self);
        eventually(DEADLINE, &format!("{path} says {words:?}"), || async {
            let answer = visitor.lock().await.get(path).await;
            match words.iter().all(|words| answer.body.contains(words)) {
                true => Ok(answer.body),
                false => Err(format!("{} {}", answer.status, answer.body)),
            }
        })
        .await
    }

    /// Confirms what a form asks for, begins it, and waits for its end. The page of the job.
    pub(crate) async fn does(&mut self, form: &[(&str, &str)]) -> (String, String) {
        let began = self.post("/jobs", form).await;
        assert_eq!(began.status, 303, "{}", began.body);
        let job = began.location;
        let page = self.sees(&job, &["id=\"state\">done"]).await;
        (job, page)
    }
}

impl Answer {
    /// The word of its forms.
    pub(crate) fn word(&self) -> String {
        value_of(&self.body, "word")
    }
}

/// The value of the first field of this name.
pub(crate) fn value_of(page: &str, name: &str) -> String {
    let from = format!("name=\"{name}\" value=\"");
    let (_, rest) = page
        .split_once(&from)
        .unwrap_or_else(|| panic!("{name}: {page}"));
    rest.split('"').next().unwrap().to_owned()
}

/// The end of the first address that begins so.
pub(super) fn link(page: &str, from: &str) -> String {
    let begin = format!("href=\"{from}");
    let (_, rest) = page
        .split_once(&begin)
        .unwrap_or_else(|| panic!("{from}: {page}"));
    rest.split('"').next().unwrap().to_owned()
}
