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
    request::{RequestContext, Layout, set_cookie},
};

#[derive(Template)]
#[template(path = "sign-in.html")]
struct SignIn {
    frame: Layout,
    fault: &'static str,
}

pub(in super::super) async fn sign_in(door: RequestContext) -> Response {
    show(&door, StatusCode::OK, "")
}

fn show(door: &RequestContext, status: StatusCode, fault: &'static str) -> Response {
    let frame = Layout {
        title: "Sign in".to_owned(),
        person: None,
        word: door.word(),
        refresh: None,
    };
    door.page(status, &SignIn { frame, fault })
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
    door: RequestContext,
    Form(said): Form<SignInForm>,
) -> Response {
    if !door.is_ours(&said.word) {
        return show(
            &door,
            StatusCode::FORBIDDEN,
            "This form did not come from this page. Try again.",
        );
    }
    let book = page.book();
    let (now, length) = (SystemTime::now(), book.page().session.0);
    if !page.sign_ins.charge(door.client) {
        let why = "Too many wrong tokens came from your address. Try again in a few seconds.";
        return show(&door, StatusCode::TOO_MANY_REQUESTS, why);
    }
    let token = auth::with_token(book.page(), &said.token);
    let Some((token, session)) =
        token.and_then(|token| Some((token, auth::session(token, length, now)?)))
    else {
        warn!(client = %door.client, "somebody tried to sign in with a wrong token");
        return show(&door, StatusCode::FORBIDDEN, "This token is nobody's.");
    };
    page.sign_ins.refund(door.client);
    tracing::info!(who = token.name, "signed in");
    let mut response = Redirect::to("/").into_response();
    let cookie = door.keep(auth::SESSION, &session, Some(length.as_secs()));
    set_cookie(response.headers_mut(), &cookie);
    response
}

pub(in super::super) async fn sign_out(door: RequestContext, Form(said): Form<SignInForm>) -> Response {
    if !door.is_ours(&said.word) {
        return show(
            &door,
            StatusCode::FORBIDDEN,
            "This form did not come from this page. Try again.",
        );
    }
    let mut response = Redirect::to("/sign-in").into_response();
    set_cookie(
        response.headers_mut(),
        &door.keep(auth::SESSION, "", Some(0)),
    );
    response
}
