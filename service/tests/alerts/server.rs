//! A real HTTP server on loopback that remembers what it was sent, and answers as it is told.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, Method, StatusCode, Uri},
    response::{IntoResponse, Response},
};
use retryrmq_harness::eventually;
use serde_json::Value;

use crate::DEADLINE;

/// How a request is answered.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Status(u16),
    RetryAfter(u16, u64),
    Redirect(u16, String),
    /// Never.
    Silence,
}

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) at: std::time::Instant,
}

impl Request {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }
}

#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) url: String,
    inner: Arc<Inner>,
}

struct Inner {
    answers: Mutex<VecDeque<Answer>>,
    chokes_on: Option<&'static str>,
    requests: Mutex<Vec<Request>>,
}

impl Server {
    /// Answers these, in order, and then 202.
    pub(crate) async fn start(answers: impl IntoIterator<Item = Answer>) -> Self {
        Self::serve(answers.into_iter().collect(), None).await
    }

    /// Answers 500 to whatever contains this text, and 202 to everything else.
    pub(crate) async fn chokes_on(text: &'static str) -> Self {
        Self::serve(VecDeque::new(), Some(text)).await
    }

    async fn serve(answers: VecDeque<Answer>, chokes_on: Option<&'static str>) -> Self {
        let inner = Arc::new(Inner {
            answers: Mutex::new(answers),
            chokes_on,
            requests: Mutex::default(),
        });
        let app = Router::new()
            .fallback(answer)
            .with_state(Arc::clone(&inner));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { url, inner }
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.inner.requests.lock().unwrap().clone()
    }

    /// Waits until there were so many requests.
    pub(crate) async fn after(&self, count: usize) -> Vec<Request> {
        eventually(DEADLINE, "the server was asked often enough", || async {
            let requests = self.requests();
            match requests.len() >= count {
                true => Ok(requests),
                false => Err(format!("{} of {count} requests", requests.len())),
            }
        })
        .await
    }

    /// The kinds of the notices that a webhook was sent.
    pub(crate) fn kinds(&self) -> Vec<String> {
        let requests = self.requests();
        let kinds = requests
            .iter()
            .map(|request| request.json()["kind"].as_str().unwrap().to_owned());
        kinds.collect()
    }

    /// Waits until a webhook was sent so many notices, each counted once: a leader that takes over tells again what it does not know
    /// to have arrived.
    pub(crate) async fn notices(&self, count: usize) -> Vec<Value> {
        eventually(DEADLINE, "the notices are here", || async {
            let mut told: Vec<Value> = Vec::new();
            for notice in self.requests().iter().map(Request::json) {
                if !told.contains(&notice) {
                    told.push(notice);
                }
            }
            match told.len() >= count {
                true => Ok(told),
                false => Err(format!("{} of {count} notices", told.len())),
            }
        })
        .await
    }
}

async fn answer(
    State(inner): State<Arc<Inner>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    assert_eq!(method, Method::POST);
    let chokes = inner
        .chokes_on
        .is_some_and(|text| String::from_utf8_lossy(&body).contains(text));
    inner.requests.lock().unwrap().push(Request {
        path: uri.to_string(),
        headers,
        body,
        at: std::time::Instant::now(),
    });
    let answer = match chokes {
        true => Some(Answer::Status(500)),
        false => inner.answers.lock().unwrap().pop_front(),
    };
    match answer {
        None => StatusCode::ACCEPTED.into_response(),
        Some(Answer::Status(status)) => (
            StatusCode::from_u16(status).unwrap(),
            format!("said of {uri}\u{1b}[2J"),
        )
            .into_response(),
        Some(Answer::RetryAfter(status, seconds)) => (
            StatusCode::from_u16(status).unwrap(),
            [("retry-after", seconds.to_string())],
        )
            .into_response(),
        Some(Answer::Redirect(status, to)) => {
            (StatusCode::from_u16(status).unwrap(), [("location", to)]).into_response()
        }
        Some(Answer::Silence) => {
            tokio::time::sleep(Duration::from_secs(3_600)).await;
            StatusCode::OK.into_response()
        }
    }
}
