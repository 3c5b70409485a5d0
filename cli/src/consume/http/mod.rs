//! `consume --http URL`: a POST per message or batch, and the answer decides.
//!
//! ```text
//! message ─► request ─(sign, bearer)─► endpoint ─► answer ─► wish ─► Outcome
//!              pure                   the only I/O   pure
//! ```

mod batch_answer;
mod client;
mod cloud_event;
mod failure;
mod options;
mod redirect;
mod request;
mod response;
mod retry_after;
mod secret;
mod signature;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use reqwest::{
    Client, Response, StatusCode, Url,
    header::{AUTHORIZATION, CONTENT_LENGTH, HeaderMap, HeaderValue},
};
use retryrmq::{Failure, Outcome, format_duration};
use retryrmq_operator::webhook_signature;
use tokio::{
    sync::watch,
    time::{Instant, timeout, timeout_at},
};

pub(super) use options::HttpOptions;

use self::{
    cloud_event::CloudEvents,
    response::HttpResponse,
    secret::{RedactedTexts, SecretFile},
    signature::SigningKeys,
};
use super::{
    batch::BatchInput,
    run::{RunEnd, RunVerdict, Urgency},
};

/// How long an answer's body may take. The status decides; the body only explains, or frees the connection.
const BODY: Duration = Duration::from_secs(2);
/// How much of it is read: so much explains a failure,
const EXPLAINS: usize = 16 * 1024;
/// and so much is read for nothing but to use the connection again.
const SPENT: usize = 64 * 1024;
/// How many redirects one message may take.
const REDIRECTS: usize = 5;

/// Where messages go, and with what.
pub(super) struct Endpoint {
    client: Client,
    url: Url,
    /// Scheme, host and port: all of the URL that is ever shown.
    origin: String,
    /// The same with every request.
    headers: HeaderMap,
    /// How messages become CloudEvents, if they are to.
    cloud_events: Option<CloudEvents>,
    bearer: Option<SecretFile<Arc<HeaderValue>>>,
    sign: Option<SecretFile<Arc<SigningKeys>>>,
    /// What no error may hold, beside what the files hold.
    hidden: RedactedTexts,
    /// Statuses that park.
    park: Vec<StatusCode>,
    timeout: Duration,
    /// The longest delay that an answer may choose.
    longest: Duration,
}

impl Endpoint {
    pub(super) fn origin(&self) -> &str {
        &self.origin
    }

    /// One request. It is aborted when the time to drain is over.
    pub(super) async fn run(
        &self,
        given: &BatchInput,
        mut urgency: watch::Receiver<Urgency>,
    ) -> RunEnd {
        if *urgency.borrow() >= Urgency::Drain {
            return RunEnd::Unstarted(None);
        }
        tokio::select! {
            verdicts = self.attempts(given) => RunEnd::Ended(verdicts),
            // The sender lives as long as the consumer.
            _ = urgency.wait_for(|urgency| *urgency >= Urgency::Soon) => RunEnd::Stopped,
        }
    }

    /// What follows for each message.
    async fn attempts(&self, given: &BatchInput) -> Vec<RunVerdict> {
        self.attempts_until(given, Instant::now() + self.timeout)
            .await
    }

    async fn attempts_until(&self, given: &BatchInput, deadline: Instant) -> Vec<RunVerdict> {
        let count = given.messages().len();
        let all = |outcome: &Outcome, mut remark: Option<String>| {
            let verdict = || RunVerdict::new(outcome.clone(), remark.take());
            std::iter::repeat_with(verdict).take(count).collect()
        };
        let mut response = match timeout_at(deadline, self.ask(given)).await {
            Ok(Ok(response)) => response,
            Ok(Err(failure)) => return all(&Outcome::retry(failure), None),
            Err(_) => return all(&Outcome::retry(self.too_late()), None),
        };
        let status = response.status();
        let headers = std::mem::take(response.headers_mut());
        // One that is invalid, or all of them together, may be the reason: each is sent by itself.
        let concerns_one = self.park.contains(&status) || status == StatusCode::PAYLOAD_TOO_LARGE;
        if let BatchInput::Batch(messages) = given
            && count > 1
            && concerns_one
            && !headers.contains_key(response::OUTCOME)
        {
            drop(response); // its connection is needed
            let mut each = Vec::with_capacity(count);
            for message in messages {
                // All of them within the time of one run; the others come again.
                let alone = BatchInput::Batch(vec![message.clone()]);
                each.extend(Box::pin(self.attempts_until(&alone, deadline)).await);
            }
            return each;
        }
        if matches!(given, BatchInput::Batch(_)) && batch_answer::is_for_each(status, &headers) {
            let enough = batch_answer::longest(count);
            let body = timeout_at(deadline, whole(response, enough)).await;
            let Ok(body) = body else {
                return all(&Outcome::retry(self.too_late()), None);
            };
            return batch_answer::verdicts(&body, count, self.longest, |text| self.hide(text));
        }
        let enough = if status.is_success() { SPENT } else { EXPLAINS };
        let body = beginning(response, enough).await;
        let answer = HttpResponse {
            status,
            headers: &headers,
            body: &body,
        };
        let limits = response::ResponseLimits {
            park: &self.park,
            longest: self.longest,
            now: SystemTime::now(),
        };
        let RunVerdict {
            outcome, remark, ..
        } = response::verdict(&answer, &limits, |text| self.hide(text));
        all(&outcome, remark)
    }

    fn too_late(&self) -> Failure {
        let limit = format_duration(self.timeout);
        let error = format!(
            "the request took longer than {limit}: {} has not answered",
            self.origin
        );
        Failure::new(error).of_type("HandlerTimeout")
    }

    /// Sends the messages, and follows redirects that lead to the same origin.
    async fn ask(&self, given: &BatchInput) -> Result<Response, Failure> {
        let mut url = self.url.clone();
        let (headers, body) = self.content(given);
        for _ in 0..=REDIRECTS {
            let request = self
                .client
                .post(url.clone())
                .headers(self.headers_for(given, headers.clone(), &body))
                .body(body.clone());
            let response = request
                .send()
                .await
                .map_err(|why| failure::of(&why, &self.origin))?;
            if !redirect::keeps_the_body(response.status()) {
                return Ok(response);
            }
            url = redirect::target(&url, &response)?;
        }
        Err(redirect::too_many(REDIRECTS))
    }

    /// The messages as headers and a body.
    fn content(&self, given: &BatchInput) -> (HeaderMap, Vec<u8>) {
        match (given, &self.cloud_events) {
            (BatchInput::Message(message), Some(events)) => events.request(message),
            (BatchInput::Batch(messages), Some(events)) => events.batch_request(messages),
            (BatchInput::Message(message), None) => {
                (request::headers(message), message.body().to_vec())
            }
            (BatchInput::Batch(messages), None) => (
                request::headers_of_batch(messages),
                request::body_of_batch(messages),
            ),
        }
    }

    /// The headers of a request, which are those of its content and ours.
    fn headers_for(&self, given: &BatchInput, mut headers: HeaderMap, body: &[u8]) -> HeaderMap {
        let id = match given {
            BatchInput::Message(message) => message.message_id(),
            BatchInput::Batch(_) => None,
        };
        if let Some(bearer) = &self.bearer {
            headers.insert(AUTHORIZATION, (*bearer.now()).clone());
        }
        if let Some(sign) = &self.sign {
            let id = signature::id(id);
            let keys = sign.now();
            webhook_signature::sign(&mut headers, keys.keys(), &id, SystemTime::now(), body);
        }
        if body.is_empty() {
            // The client leaves it out, and some servers insist on it (RFC 9110, 8.6).
            headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        }
        // The operator's own come last: they decide.
        for (name, value) in &self.headers {
            headers.insert(name, value.clone());
        }
        headers
    }

    /// `text` without our secrets, which an endpoint may repeat.
    fn hide(&self, text: &str) -> String {
        let mut hidden = self.hidden.clone();
        if let Some(bearer) = &self.bearer {
            hidden.add_bearer(&bearer.now());
        }
        if let Some(sign) = &self.sign {
            hidden.add_all(sign.now().texts());
        }
        hidden.hide(text)
    }
}

/// The beginning of an answer's body, as far as it comes in time.
async fn beginning(mut response: Response, enough: usize) -> Vec<u8> {
    let mut body = Vec::new();
    let reading = async {
        // One that breaks off has said what it has said.
        while let Ok(Some(chunk)) = response.chunk().await {
            let room = enough - body.len();
            body.extend_from_slice(&chunk[..chunk.len().min(room)]);
            if body.len() >= enough {
                break;
            }
        }
    };
    let _ = timeout(BODY, reading).await;
    body
}

/// All of an answer's body, if it is not too long and does not break off.
async fn whole(mut response: Response, enough: usize) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.ok()? {
        if body.len() + chunk.len() > enough {
            return None;
        }
        body.extend_from_slice(&chunk);
    }
    Some(body)
}
