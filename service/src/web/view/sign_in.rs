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
    sign_in_limiter::TooManyTries,
};

#[derive(Template)]
#[template(path = "sign-in.html")]
struct SignIn {
    layout: Layout,
    fault: &'static str,
}

pub(in super::super) async fn sign_in(context: RequestContext) -> Response {
    show(&context, StatusCode::OK, "")
}

fn show(context: &RequestContext, status: StatusCode, fault: &'static str) -> Response {
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
            "This form did not come from this page. Try again.",
        );
    }
    let service_config = page.service_config();
    let (now, length) = (SystemTime::now(), service_config.page().session.0);
    let find = || {
        let token = auth::with_token(service_config.page(), &said.token)?;
        Some((token, auth::session(token, length, now)?))
    };
    let (token, session) = match page.sign_ins.attempt(context.client, find).await {
        Ok(Some(found)) => found,
        Ok(None) => {
            warn!(client = %context.client, "somebody tried to sign in with a wrong token");
            return show(&context, StatusCode::FORBIDDEN, "This token is nobody's.");
        }
        Err(TooManyTries) => {
            let why = "Too many wrong tokens came from your address. Try again in a few seconds.";
            return show(&context, StatusCode::TOO_MANY_REQUESTS, why);
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
            "This form did not come from this page. Try again.",
        );
    }
    let mut response = Redirect::to("/sign-in").into_response();
    set_cookie(
        response.headers_mut(),
        &context.keep(auth::SESSION, "", Some(0)),
    );
    response
}
