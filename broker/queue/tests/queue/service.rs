//! The API as plain NATS clients see it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use millrace_queue::JetStreamOptions;
use millrace_queue::service::{ApiHandler, RequestError, request, serve};
use millrace_queue::testing::TestServer;
use millrace_schemas::api::{ApiError, ENDPOINTS, FieldError};

struct Echo;

#[async_trait]
impl ApiHandler for Echo {
    async fn call(&self, endpoint: &str, body: Bytes) -> Result<Bytes, ApiError> {
        match endpoint {
            "cancel" => {
                let field = FieldError { field: "run".into(), value: "x".into(), remedy: "name one".into() };
                Err(ApiError { code: 404, message: "no such run\nin two lines".into(), fields: vec![field] })
            }
            "ledger" => panic!("a defect"),
            _ => Ok([endpoint.as_bytes(), b" ", &body].concat().into()),
        }
    }
}

/// Asks all services and gives their answers as JSON.
async fn discover(client: &async_nats::Client, subject: &str) -> serde_json::Value {
    let answer = client.request(subject.to_owned(), Bytes::new()).await.expect("a service answers");
    serde_json::from_slice(&answer.payload).expect("JSON")
}

#[tokio::test]
async fn requests_are_answered_and_errors_explained() {
    let server = TestServer::start().await;
    let (coordinator, caller) = (
        server.connect(JetStreamOptions::default()).await,
        server.connect(JetStreamOptions::default()).await,
    );
    let timeout = Duration::from_secs(10);
    let missing = request(&caller, "list", Bytes::new(), timeout).await;
    assert!(matches!(missing, Err(RequestError::NoCoordinator)), "{missing:?}");

    let service =
        tokio::spawn(
            async move { serve(&coordinator, "0.1.0", Arc::new(Echo)).await.map_err(|e| e.to_string()) },
        );
    let up = tokio::time::timeout(timeout, async {
        while request(&caller, "list", Bytes::new(), timeout).await.is_err() {}
    });
    up.await.expect("it is served");
    let answer = request(&caller, "submit", Bytes::from_static(b"{}"), timeout).await.expect("answered");
    assert_eq!(answer.as_ref(), b"submit {}");
    let Err(RequestError::Api(error)) = request(&caller, "cancel", Bytes::new(), timeout).await else {
        panic!("it is refused");
    };
    assert_eq!((error.code, error.fields.len()), (404, 1));
    let Err(RequestError::Api(error)) = request(&caller, "ledger", Bytes::new(), timeout).await else {
        panic!("it fails");
    };
    assert_eq!(error.code, 500);
    let large = Bytes::from(vec![b' '; 300_000]);
    let Err(RequestError::Api(error)) = request(&caller, "submit", large, timeout).await else {
        panic!("it is too long");
    };
    assert_eq!(error.code, 400);

    service.abort();
    let gone = tokio::time::timeout(timeout, async {
        // One that is on its way when the service ends is not answered.
        let short = Duration::from_millis(100);
        while !matches!(request(&caller, "list", Bytes::new(), short).await, Err(RequestError::NoCoordinator))
        {
        }
    });
    gone.await.expect("a dropped service answers no more");
}

#[tokio::test]
async fn the_service_is_found_with_plain_nats() {
    let server = TestServer::start().await;
    let coordinator = server.connect(JetStreamOptions::default()).await;
    let service = tokio::spawn(async move { serve(&coordinator, "0.1.0", Arc::new(Echo)).await.is_ok() });
    let client = async_nats::connect(server.url()).await.expect("connected");
    let up = tokio::time::timeout(Duration::from_secs(10), async {
        while client.request("mr.api.list", Bytes::new()).await.is_err() {}
    });
    up.await.expect("it is served");

    let info = discover(&client, "$SRV.INFO.millrace").await;
    let names: Vec<_> = info["endpoints"].as_array().expect("endpoints").iter().map(|e| &e["name"]).collect();
    assert_eq!(names.len(), ENDPOINTS.len());
    assert_eq!(info["version"], "0.1.0");

    let refused = client.request("mr.api.cancel", Bytes::new()).await.expect("answered");
    let headers = refused.headers.as_ref().expect("headers");
    let header = |name: &str| headers.get(name).expect("set").to_string();
    assert_eq!(header("Nats-Service-Error"), "no such run in two lines");
    assert_eq!(header("Nats-Service-Error-Code"), "404");
    let body: ApiError = serde_json::from_slice(&refused.payload).expect("an error as JSON");
    assert_eq!(body.message, "no such run\nin two lines");

    let stats = discover(&client, "$SRV.STATS.millrace").await;
    let cancel = stats["endpoints"].as_array().expect("endpoints").iter().find(|e| e["name"] == "cancel");
    let cancel = cancel.expect("its counts");
    assert_eq!((&cancel["num_requests"], &cancel["num_errors"]), (&1.into(), &1.into()));
    let mut pings = client.subscribe("answers").await.expect("subscribed");
    client.publish_with_reply("$SRV.PING", "answers", Bytes::new()).await.expect("sent");
    assert!(pings.next().await.is_some());

    service.abort();
    let gone = tokio::time::timeout(Duration::from_secs(10), async {
        let ping = || async_nats::Request::new().timeout(Some(Duration::from_millis(100)));
        let listed = async || {
            let pong = client.send_request("$SRV.PING.millrace", ping()).await;
            !pong.is_err_and(|e| e.kind() == async_nats::RequestErrorKind::NoResponders)
        };
        while listed().await {}
    });
    gone.await.expect("it is not listed any more");
}
