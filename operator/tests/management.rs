//! The management client against servers that are not what it expects. What RabbitMQ itself does, the tests of the command show.
#![allow(missing_docs)]

use std::sync::{Arc, Mutex};

use axum::{
    Json, Router,
    http::{HeaderMap, Uri, header},
    response::{Html, IntoResponse, Redirect},
};
use retryrmq_operator::management::{Address, Management, ManagementErrorKind};
use serde_json::json;
use tokio::net::TcpListener;

/// Serves on a port of its own; the address.
async fn serve(router: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

fn client(amqp: &str, address: &str) -> Management {
    Management::new(Address::new(amqp, Some(address), None).unwrap()).unwrap()
}

#[tokio::test]
async fn the_login_goes_nowhere_else() {
    let asked = Arc::new(Mutex::new(0));
    let seen = Arc::clone(&asked);
    let other = Router::new().fallback(move || async move {
        *seen.lock().unwrap() += 1;
        Json(json!({"rabbitmq_version": "4.3.0"}))
    });
    let other = serve(other).await;
    let to = format!("{other}/api/overview");
    let first = Router::new().fallback(move || async move { Redirect::temporary(&to) });
    let error = client("amqp://u:s3cret@h", &serve(first).await)
        .overview()
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ManagementErrorKind::Unreachable);
    assert!(error.to_string().contains("sends elsewhere"), "{error}");
    assert_eq!(*asked.lock().unwrap(), 0);
}

#[tokio::test]
async fn a_page_for_people_is_not_the_api() {
    let pages = Router::new().fallback(|| async { Html("<h1>Welcome</h1>") });
    let error = client("amqp://h", &serve(pages).await)
        .overview()
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("not RabbitMQ's management API"),
        "{error}"
    );
}

#[tokio::test]
async fn an_answer_without_end_is_not_read_to_the_end() {
    let endless = Router::new().fallback(|| async { vec![b' '; 65 * 1024 * 1024].into_response() });
    let error = client("amqp://h", &serve(endless).await)
        .overview()
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ManagementErrorKind::Broken);
    assert!(error.to_string().contains("64 MiB"), "{error}");
}

#[tokio::test]
async fn a_token_is_sent_as_one_and_lists_are_read_page_by_page() {
    let logins = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&logins);
    let pages = Router::new().fallback(move |uri: Uri, headers: HeaderMap| async move {
        let login = headers[header::AUTHORIZATION].to_str().unwrap().to_owned();
        seen.lock().unwrap().push(login);
        let query = uri.query().unwrap_or_default().to_owned();
        let names = if query.contains("page=1&") {
            ["a", "b"]
        } else {
            ["b", "c"]
        };
        let items: Vec<_> = names
            .iter()
            .map(|name| json!({"name": name, "type": null}))
            .collect();
        Json(json!({"items": items, "page_count": 2}))
    });
    let address = serve(pages).await;
    // The header is {"alg":"none"}.
    let token = "eyJhbGciOiJub25lIn0.e30.x";
    let queues = client(&format!("amqp://:{token}@h"), &address)
        .queues("/")
        .await
        .unwrap();
    assert_eq!(queues.keys().collect::<Vec<_>>(), ["a", "b", "c"]);
    let expected = format!("Bearer {token}");
    assert_eq!(*logins.lock().unwrap(), [expected.clone(), expected]);
    logins.lock().unwrap().clear();
    client("amqp://u:p@h", &address).queues("/").await.unwrap();
    assert_eq!(logins.lock().unwrap()[0], "Basic dTpw");
}
