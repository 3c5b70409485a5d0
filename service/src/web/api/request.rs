//! A request to the API: who sends it, and what it says.

use std::{sync::Arc, time::SystemTime};

use axum::{
    body::Bytes,
    extract::{
        FromRequest, FromRequestParts, Path, Query, Request,
        rejection::{BytesRejection, QueryRejection},
    },
    http::{
        HeaderValue, Method, StatusCode,
        header::{CONTENT_TYPE, HeaderMap, LOCATION},
        request::Parts,
    },
    response::{IntoResponse, Response},
};
use serde::{Serialize, de::DeserializeOwned};
use tracing::warn;

use super::{
    super::{
        Page, WebConfig,
        auth::{self, SignInResult, User},
        configuration::Role,
        refusal::RefusalKind,
        request::{MAY_NOT, RequestContext, peer},
        sign_in_limiter::Fault,
    },
    problem::Problem,
};

/// The header with which a request of a browser's session says that it comes from a page of this service.
pub(super) const CSRF: &str = "x-csrf-token";
/// Bytes of a queue's name.
const LONGEST_NAME: usize = 255;

/// A request of somebody who may see what the page shows, and, if it changes something, may do something there.
pub(super) struct ApiRequest {
    pub(super) user: User,
    pub(super) web_config: Arc<WebConfig>,
    context: RequestContext,
    /// A token came with it. No browser sends one by itself, so no other site can have it sent.
    has_token: bool,
}

impl FromRequestParts<Page> for ApiRequest {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, page: &Page) -> Result<Self, Problem> {
        let context = RequestContext::of(parts, page);
        let web_config = page.web_config();
        let (configuration, peer) = (&web_config.page, peer(parts));
        let token = auth::bearer(configuration, peer, &parts.headers);
        let has_token = token.is_some();
        let user = match token {
            Some(said) => {
                let find = || {
                    let token = auth::with_token(configuration, said)?;
                    Ok(token.map(|token| User {
                        name: token.name.clone(),
                        role: token.role,
                        has_session: false,
                    }))
                };
                let found = page.sign_ins.attempt(context.client, said, find).await;
                found.map_err(|fault| {
                    if fault == Fault::Wrong {
                        warn!(client = %context.client, "somebody sent a wrong token to the API");
                    }
                    Problem::from(fault.refusal())
                })?
            }
            None => {
                let now = SystemTime::now();
                match auth::entry(configuration, peer, &parts.headers, now) {
                    SignInResult::Known(user) => user,
                    SignInResult::SignIn => {
                        return Err(Problem::new(
                            RefusalKind::Unauthorized,
                            "Send a token of [[page.tokens]] as `Authorization: Bearer TOKEN`.",
                        ));
                    }
                    SignInResult::Refused(why) => {
                        return Err(Problem::new(RefusalKind::Forbidden, why));
                    }
                }
            }
        };
        let request = Self {
            user,
            web_config: Arc::clone(&web_config),
            context,
            has_token,
        };
        request.check(&parts.method, &parts.headers)?;
        Ok(request)
    }
}

impl ApiRequest {
    /// Before the body is read, which may name many messages.
    fn check(&self, method: &Method, headers: &HeaderMap) -> Result<(), Problem> {
        let forbidden = |why| Err(Problem::new(RefusalKind::Forbidden, why));
        if !self.has_token && self.context.is_of_another_site() {
            return forbidden("Another site sent this request.");
        }
        if [Method::GET, Method::HEAD].contains(method) {
            return Ok(());
        }
        if self.user.role < Role::Operator {
            return forbidden(MAY_NOT);
        }
        let word = headers.get(CSRF).and_then(|value| value.to_str().ok());
        if !self.has_token && !self.context.is_ours(word.unwrap_or_default()) {
            return forbidden(
                "A request with a session needs the header X-CSRF-Token, as GET /api/v1/session says it, its cookie, and an Origin that is this \
                 page. Or send a token as `Authorization: Bearer TOKEN`.",
            );
        }
        Ok(())
    }

    /// The value of [`CSRF`]; nothing where none is needed.
    pub(super) fn csrf_token(&self) -> Option<String> {
        (!self.has_token).then(|| self.context.word())
    }

    /// An answer.
    pub(super) fn answer(&self, status: StatusCode, resource: &impl Serialize) -> Response {
        let text = match serde_json::to_string(resource) {
            Ok(text) => text,
            Err(error) => {
                tracing::error!(%error, "an answer of the API cannot be made");
                return Problem::new(RefusalKind::Internal, "The answer cannot be made.")
                    .into_response();
            }
        };
        let json = [(CONTENT_TYPE, HeaderValue::from_static("application/json"))];
        let mut response = (status, json, text).into_response();
        match self.has_token {
            true => RequestContext::protect(response.headers_mut()),
            false => self.context.guard(response.headers_mut()),
        }
        response
    }

    pub(super) fn ok(&self, resource: &impl Serialize) -> Response {
        self.answer(StatusCode::OK, resource)
    }

    /// An answer that says where what was made is.
    pub(super) fn accepted(&self, location: &str, resource: &impl Serialize) -> Response {
        let mut response = self.answer(StatusCode::ACCEPTED, resource);
        if let Ok(location) = HeaderValue::try_from(location) {
            response.headers_mut().insert(LOCATION, location);
        }
        response
    }
}

/// The names in an address.
pub(super) struct ApiPath<T>(pub(super) T);

impl<T: DeserializeOwned + Send> FromRequestParts<Page> for ApiPath<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, page: &Page) -> Result<Self, Problem> {
        match Path::<T>::from_request_parts(parts, page).await {
            Ok(Path(names)) => Ok(Self(names)),
            Err(rejection) => Err(Problem::invalid(format!(
                "The address cannot be read: {}",
                rejection.body_text()
            ))),
        }
    }
}

/// The name of a queue in an address.
#[derive(serde::Deserialize)]
#[serde(try_from = "String")]
pub(super) struct QueueName(pub(super) String);

impl TryFrom<String> for QueueName {
    type Error = &'static str;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        match name.len() {
            1..=LONGEST_NAME => Ok(Self(name)),
            _ => Err("the name of a queue has 1 to 255 bytes"),
        }
    }
}

/// What stands behind the `?`.
pub(super) struct ApiQuery<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequestParts<Page> for ApiQuery<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, page: &Page) -> Result<Self, Problem> {
        let read: Result<Query<T>, QueryRejection> = Query::from_request_parts(parts, page).await;
        match read {
            Ok(Query(query)) => Ok(Self(query)),
            Err(rejection) => Err(Problem::invalid(format!(
                "The query cannot be read: {}",
                rejection.body_text()
            ))),
        }
    }
}

/// A JSON object.
pub(super) struct ApiBody<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<Page> for ApiBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, page: &Page) -> Result<Self, Problem> {
        let kind = request.headers().get(CONTENT_TYPE);
        let kind = kind.and_then(|kind| kind.to_str().ok()?.split(';').next());
        if !kind.is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json")) {
            return Err(Problem::new(
                RefusalKind::UnsupportedMediaType,
                "Send a JSON object, with the header `Content-Type: application/json`.",
            ));
        }
        let body = Bytes::from_request(request, page).await;
        let body = body.map_err(|rejection: BytesRejection| {
            match rejection.status() {
                StatusCode::PAYLOAD_TOO_LARGE => Problem::new(
                    RefusalKind::TooLarge,
                    "The body is longer than one that names all messages that the history knows ([history] records): name fewer.",
                ),
                _ => Problem::invalid(format!("The body cannot be read: {}", rejection.body_text())),
            }
        })?;
        // An array would be read as the fields in their order.
        if body.trim_ascii_start().first() != Some(&b'{') {
            return Err(Problem::invalid("The body is not a JSON object."));
        }
        match serde_json::from_slice(&body) {
            Ok(read) => Ok(Self(read)),
            Err(error) => Err(Problem::invalid(format!(
                "The body cannot be read: {error}"
            ))),
        }
    }
}
