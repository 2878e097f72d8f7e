use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::*;

const TOKEN: &str = "x-aws-ec2-metadata-token";

type Content = Arc<BTreeMap<&'static str, &'static str>>;

/// A metadata service of version 2: without a token it gives nothing.
struct Service {
    metadata: Metadata,
    serving: JoinHandle<()>,
}

impl Service {
    async fn with(content: &[(&'static str, &'static str)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let metadata = Metadata::at(&format!("http://{}", listener.local_addr().unwrap()));
        let content: Content = Arc::new(content.iter().copied().collect());
        let router = axum::Router::new().fallback(answer).with_state(content);
        let serving = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { metadata, serving }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn answer(State(content): State<Content>, headers: HeaderMap, request: Request) -> Response {
    let path = request.uri().path();
    if request.method() == Method::PUT && path == "/latest/api/token" {
        let ttl = [("x-aws-ec2-metadata-token-ttl-seconds", "21600")];
        return (ttl, "a-token").into_response();
    }
    if headers.get(TOKEN).is_none_or(|token| token != "a-token") {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let found = path.strip_prefix("/latest/meta-data/").and_then(|path| content.get(path));
    found.map_or_else(|| StatusCode::NOT_FOUND.into_response(), |text| (*text).into_response())
}

#[tokio::test]
async fn an_instance_that_stays_has_no_notices() {
    let service =
        Service::with(&[("instance-id", "i-1"), ("autoscaling/target-lifecycle-state", "InService")]).await;
    assert_eq!(service.metadata.instance().await.unwrap(), "i-1");
    assert_eq!(service.metadata.group().await.unwrap(), None);
    assert_eq!(service.metadata.notices().await.unwrap(), Notices::default());
}

#[tokio::test]
async fn all_notices_of_an_instance_are_read() {
    let service = Service::with(&[
        ("spot/termination-time", "2026-11-23T10:00:00Z"),
        ("events/recommendations/rebalance", "{\"noticeTime\": \"2026-11-23T09:00:00Z\"}"),
        ("autoscaling/target-lifecycle-state", "Terminated\n"),
        ("tags/instance/aws:autoscaling:groupName", "millrace-generate"),
    ])
    .await;
    let notices = service.metadata.notices().await.unwrap();
    let expected =
        Notices { spot_ends_unix_ms: Some(1_795_428_000_000), rebalance: true, leaves_group: true };
    assert_eq!(notices, expected);
    assert_eq!(service.metadata.group().await.unwrap().as_deref(), Some("millrace-generate"));
}

#[tokio::test]
async fn a_time_that_is_none_is_an_error_and_no_notice() {
    let service = Service::with(&[("spot/termination-time", "soon")]).await;
    let error = service.metadata.notices().await.unwrap_err().to_string();
    assert!(error.contains("spot/termination-time"), "{error}");
}

#[tokio::test]
async fn a_machine_without_the_service_says_what_it_could_not_read() {
    // Nobody listens on a port that was just given back.
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let error = Metadata::at(&format!("http://{gone}")).instance().await.unwrap_err().to_string();
    assert!(error.contains("instance-id"), "{error}");
}
