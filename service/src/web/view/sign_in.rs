//! Signing in with a token, and out.

use std::time::SystemTime;

use askama::Template;
use axum::{
    Form,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Redirect, Response},
};
use tracing::warn;

use super::super::{
    Page, auth,
    request::{Layout, RequestContext, set_cookie},
    sign_in_limiter::Fault,
};

#[derive(Template)]
#[template(path = "sign-in.html")]
struct SignIn<'f> {
    layout: Layout,
    fault: &'f str,
}

pub(in super::super) async fn sign_in(context: RequestContext) -> Response {
    show(&context, StatusCode::OK, "")
}

fn show(context: &RequestContext, status: StatusCode, fault: &str) -> Response {
    let layout = Layout {
        title: "Sign in".to_owned(),
        web_user: None,
        word: context.word(),
        refresh: None,
    };
    context.page(status, &SignIn { layout, fault })
}

/// The form.
#[derive(serde::Deserialize)]
pub(in super::super) struct SignInForm {
    #[serde(default)]
    token: String,
    #[serde(default)]
    word: String,
}

pub(in super::super) async fn signed_in(
    State(page): State<Page>,
    context: RequestContext,
    Form(said): Form<SignInForm>,
) -> Response {
    if !context.is_ours(&said.word) {
        return show(
            &context,
            StatusCode::FORBIDDEN,
            "This form is not from this page. Try again.",
        );
    }
    let web_config = page.web_config();
    let (now, length) = (SystemTime::now(), web_config.page.session.0);
    let find = || {
        let Some(token) = auth::with_token(&web_config.page, &said.token)? else {
            return Ok(None);
        };
        let session = auth::session(token, length, now).ok_or(auth::Unreadable)?;
        Ok(Some((token, session)))
    };
    let found = page.sign_ins.attempt(context.client, &said.token, find);
    let (token, session) = match found.await {
        Ok(found) => found,
        Err(fault @ (Fault::Wrong | Fault::WrongAgain)) => {
            if fault == Fault::Wrong {
                warn!(client = %context.client, "sign-in with an unknown token");
            }
            return show(&context, StatusCode::FORBIDDEN, "Unknown token.");
        }
        Err(fault) => {
            let refusal = fault.refusal();
            return show(&context, refusal.kind.status(), &refusal.sentence);
        }
    };
    tracing::info!(who = token.name, "signed in");
    let mut response = Redirect::to("/").into_response();
    let cookie = context.keep(auth::SESSION, &session, Some(length.as_secs()));
    set_cookie(response.headers_mut(), &cookie);
    response
}

pub(in super::super) async fn sign_out(
    context: RequestContext,
    Form(said): Form<SignInForm>,
) -> Response {
    if !context.is_ours(&said.word) {
        return show(
            &context,
            StatusCode::FORBIDDEN,
            "This form is not from this page. Try again.",
        );
    }
    let mut response = Redirect::to("/sign-in").into_response();
    set_cookie(
        response.headers_mut(),
        &context.keep(auth::SESSION, "", Some(0)),
    );
    response
}
