//! A request: who sends it, which form they may send next, and how pages are answered.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::SystemTime,
};

use askama::Template;
use axum::{
    extract::{ConnectInfo, FromRequestParts},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header, request::Parts},
    response::{Html, IntoResponse, Redirect, Response},
};

use super::{
    Page, WebConfig,
    auth::{self, SignInResult, User},
    configuration::Role,
    csrf,
    refusal::Refusal,
};

/// A request of somebody who may see the page.
#[derive(Debug)]
pub(super) struct WebRequest {
    pub(super) web_user: User,
    pub(super) web_config: Arc<WebConfig>,
    pub(super) context: RequestContext,
}

/// How a request came.
#[derive(Debug)]
pub(super) struct RequestContext {
    headers: HeaderMap,
    /// The address that somebody asks from.
    pub(super) client: IpAddr,
    /// The name by which the browser knows this page.
    host: Option<String>,
    /// The cookie of its forms, and whether it is new.
    cookie: (String, bool),
    /// The browser speaks TLS, to a proxy.
    pub(super) is_secure: bool,
    /// What is asked for, for a link to it.
    path: String,
}

/// Page layout.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) title: String,
    pub(super) web_user: Option<User>,
    /// For forms.
    pub(super) word: String,
    /// Seconds until the browser asks again.
    pub(super) refresh: Option<u32>,
}

impl Layout {
    pub(super) fn may_operate(&self) -> bool {
        self.may(Role::Operator)
    }

    pub(super) fn may_drop(&self) -> bool {
        self.may(Role::Admin)
    }

    fn may(&self, role: Role) -> bool {
        self.web_user
            .as_ref()
            .is_some_and(|web_user| web_user.role >= role)
    }
}

pub(super) const MAY_NOT: &str = "You may view this, but your role does not allow this action.";

/// A page that is only a message.
#[derive(Template)]
#[template(path = "sentence.html")]
struct MessagePage<'s> {
    layout: Layout,
    sentence: &'s str,
    /// A link to the same page.
    again: Option<&'s str>,
}

impl FromRequestParts<Page> for WebRequest {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, page: &Page) -> Result<Self, Response> {
        let context = RequestContext::of(parts, page);
        if parts.method == axum::http::Method::GET && csrf::is_followed(&parts.headers) {
            return Err(context.once_more());
        }
        let peer = peer(parts);
        let web_config = page.web_config();
        match auth::entry(&web_config.page, peer, &parts.headers, SystemTime::now()) {
            // Before its body is read, which may name many messages.
            SignInResult::Known(web_user)
                if ![Method::GET, Method::HEAD].contains(&parts.method)
                    && web_user.role < Role::Operator =>
            {
                Err(context.refuse(Some(&web_user), StatusCode::FORBIDDEN, MAY_NOT))
            }
            SignInResult::Known(web_user) => Ok(Self {
                web_user,
                web_config,
                context,
            }),
            SignInResult::SignIn if parts.method == axum::http::Method::GET => {
                Err(Redirect::to("/sign-in").into_response())
            }
            SignInResult::SignIn => Err(context.refuse(
                None,
                StatusCode::UNAUTHORIZED,
                "Your session has expired. Sign in, then try again.",
            )),
            SignInResult::Refused(why) => Err(context.refuse(None, StatusCode::FORBIDDEN, why)),
        }
    }
}

impl FromRequestParts<Page> for RequestContext {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, page: &Page) -> Result<Self, Self::Rejection> {
        Ok(Self::of(parts, page))
    }
}

pub(super) fn peer(parts: &Parts) -> IpAddr {
    let info = parts.extensions.get::<ConnectInfo<SocketAddr>>();
    // Without it nobody is near.
    info.map_or(Ipv4Addr::UNSPECIFIED.into(), |info| info.0.ip())
}

impl RequestContext {
    pub(super) fn of(parts: &Parts, page: &Page) -> Self {
        let text = |name: &str| {
            parts
                .headers
                .get(name)
                .and_then(|value| value.to_str().ok())
        };
        let web_config = page.web_config();
        let proxy = web_config.page.proxy.as_ref();
        let peer = peer(parts);
        let is_proxied = proxy.is_some_and(|proxy| proxy.is_at(peer));
        // The proxy adds the address that it was asked from at the end; what stands before it is anybody's word.
        let forwarded = parts.headers.get_all("x-forwarded-for").iter().next_back();
        let forwarded = forwarded
            .and_then(|value| value.to_str().ok()?.rsplit(',').next()?.trim().parse().ok())
            .filter(|_| is_proxied);
        let said = text("x-forwarded-host").filter(|_| is_proxied);
        let cookie = auth::cookie(&parts.headers, csrf::COOKIE);
        let cookie = match cookie.filter(|cookie| cookie.len() >= 32) {
            Some(cookie) => (cookie.to_owned(), false),
            None => (csrf::new_cookie(), true),
        };
        Self {
            client: forwarded.unwrap_or(peer),
            host: said.or_else(|| text("host")).map(str::to_owned),
            cookie,
            is_secure: text("origin").is_some_and(|origin| origin.starts_with("https://")),
            headers: parts.headers.clone(),
            path: parts
                .uri
                .path_and_query()
                .map_or("/", |path| path.as_str())
                .to_owned(),
        }
    }

    /// Whether a form with this word is one of this page.
    pub(super) fn is_ours(&self, word: &str) -> bool {
        csrf::is_ours(&self.headers, self.host.as_deref(), word)
    }

    /// Whether the page of another site has it asked for without a person's click, as an image or a frame does.
    pub(super) fn is_of_another_site(&self) -> bool {
        csrf::is_of_another_site(&self.headers)
    }

    /// The word of its forms.
    pub(super) fn word(&self) -> String {
        csrf::word(&self.cookie.0)
    }

    /// A page, with what keeps it from being used by others.
    pub(super) fn page(&self, status: StatusCode, page: &impl Template) -> Response {
        let text = match page.render() {
            Ok(text) => text,
            Err(error) => {
                tracing::error!(%error, "cannot render a page");
                return StatusCode::INTERNAL_SERVER_ERROR.into_response();
            }
        };
        let mut response = (status, Html(text)).into_response();
        self.guard(response.headers_mut());
        response
    }

    pub(super) fn guard(&self, headers: &mut HeaderMap) {
        Self::protect(headers);
        if let (cookie, true) = &self.cookie {
            set_cookie(headers, &self.keep(csrf::COOKIE, cookie, None));
        }
    }

    /// Keeps an answer from being used by others.
    pub(super) fn protect(headers: &mut HeaderMap) {
        for (name, value) in [
            (
                header::CONTENT_SECURITY_POLICY,
                "default-src 'none'; style-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
            ),
            (header::CACHE_CONTROL, "no-store"),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::X_FRAME_OPTIONS, "DENY"),
            // Without any referrer a browser sends `Origin: null` with a form.
            (header::REFERRER_POLICY, "same-origin"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
    }

    /// A cookie that no other site's request carries and no script reads; gone with the browser's session, or after so many seconds.
    pub(super) fn keep(&self, name: &str, value: &str, seconds: Option<u64>) -> String {
        let secure = if self.is_secure { "; Secure" } else { "" };
        let age = seconds.map_or_else(String::new, |age| format!("; Max-Age={age}"));
        format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict{secure}{age}")
    }

    /// A page with a sentence.
    pub(super) fn refuse(
        &self,
        web_user: Option<&User>,
        status: StatusCode,
        why: &str,
    ) -> Response {
        self.say(web_user, status, why, None)
    }

    /// Has the browser ask for the same page once more, from here: it has kept its cookies back, and must not be given others in their place.
    fn once_more(mut self) -> Response {
        self.cookie.1 = false;
        let layout = Layout {
            title: "One moment".to_owned(),
            web_user: None,
            word: String::new(),
            refresh: Some(0),
        };
        let sentence = "You followed a link from another site.";
        let again = Some(self.path.as_str());
        self.page(
            StatusCode::OK,
            &MessagePage {
                layout,
                sentence,
                again,
            },
        )
    }

    fn say(
        &self,
        web_user: Option<&User>,
        status: StatusCode,
        why: &str,
        again: Option<&str>,
    ) -> Response {
        let layout = Layout {
            title: status.canonical_reason().unwrap_or("Refused").to_owned(),
            web_user: web_user.cloned(),
            word: self.word(),
            refresh: None,
        };
        self.page(
            status,
            &MessagePage {
                layout,
                sentence: why,
                again,
            },
        )
    }
}

impl WebRequest {
    pub(super) fn layout(&self, title: impl Into<String>) -> Layout {
        Layout {
            title: title.into(),
            web_user: Some(self.web_user.clone()),
            word: self.context.word(),
            refresh: None,
        }
    }

    pub(super) fn show(&self, page: &impl Template) -> Response {
        self.context.page(StatusCode::OK, page)
    }

    pub(super) fn refuse(&self, status: StatusCode, why: &str) -> Response {
        self.context.refuse(Some(&self.web_user), status, why)
    }

    pub(super) fn refuse_with(&self, refusal: &Refusal) -> Response {
        self.refuse(refusal.kind.status(), &refusal.sentence)
    }

    /// Asks a user who came from another site to open the page again from here.
    pub(super) fn ask_again(&self) -> Response {
        self.context.say(
            Some(&self.web_user),
            StatusCode::FORBIDDEN,
            "Another site requested this page, which reads from a queue. It opens only if you ask for it yourself.",
            Some(&self.context.path),
        )
    }

    /// Whether the person may do that.
    ///
    /// # Errors
    /// The page that says no.
    pub(super) fn may(&self, role: Role, word: &str) -> Result<(), Box<Response>> {
        if !self.context.is_ours(word) {
            return Err(Box::new(self.refuse(
                StatusCode::FORBIDDEN,
                "This form is not from this page, or its cookie is gone. Reload the page and try again.",
            )));
        }
        if self.web_user.role < role {
            return Err(Box::new(self.refuse(StatusCode::FORBIDDEN, MAY_NOT)));
        }
        Ok(())
    }
}

pub(super) fn set_cookie(headers: &mut HeaderMap, cookie: &str) {
    if let Ok(value) = HeaderValue::try_from(cookie) {
        headers.append(HeaderName::from_static("set-cookie"), value);
    }
}
