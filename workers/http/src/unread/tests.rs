//! Clients that send more than a server wants to read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::http::StatusCode;
use axum::middleware::from_fn;
use axum::response::IntoResponse as _;
use axum::routing::post;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;

async fn ask(stream: &mut TcpStream, path: &str, body: &[u8]) -> String {
    let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).await.expect("the server takes the head");
    stream.write_all(body).await.expect("the server takes the body");
    let mut answer = String::new();
    while !answer.contains("\r\n\r\n") {
        let mut part = [0; 1024];
        let read = stream.read(&mut part).await.expect("the server answers");
        assert!(read > 0, "the server closed: {answer:?}");
        answer += std::str::from_utf8(&part[..read]).expect("text");
    }
    answer
}

#[tokio::test]
async fn a_client_that_is_refused_reads_why_and_keeps_its_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let server = Router::new()
        .route("/refused", post(|| async { StatusCode::UNAUTHORIZED }))
        .route("/read", post(|body: Bytes| async move { body.len().to_string() }))
        .layer(from_fn(read_rest));
    tokio::spawn(axum::serve(listener, server).into_future());
    let mut stream = TcpStream::connect(address).await.expect("connected");
    // More than the buffers between the two hold.
    let body = vec![7; 16 << 20];
    for _ in 0..3 {
        assert!(ask(&mut stream, "/refused", &body).await.starts_with("HTTP/1.1 401"));
        assert!(ask(&mut stream, "/read", &body[..1 << 20]).await.ends_with("1048576"));
    }
}

/// The answer to a request whose body nobody reads.
async fn refused(request: Request) -> StatusCode {
    answered(request, async |_| StatusCode::UNAUTHORIZED.into_response()).await.status()
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_no_more_is_answered_after_its_time() {
    let parts = futures::stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(b"x"))]);
    let began = tokio::time::Instant::now();
    let body = Body::from_stream(parts.chain(futures::stream::pending()));
    assert_eq!(refused(Request::new(body)).await, StatusCode::UNAUTHORIZED);
    assert_eq!(began.elapsed(), PATIENCE);
}

#[tokio::test(start_paused = true)]
async fn a_body_without_end_is_read_no_further_than_its_bound() {
    let part = Bytes::from(vec![0; 1 << 20]);
    let body = Body::from_stream(futures::stream::repeat_with(move || Ok::<_, std::io::Error>(part.clone())));
    assert_eq!(refused(Request::new(body)).await, StatusCode::UNAUTHORIZED);
}

#[tokio::test(start_paused = true)]
async fn who_asks_before_sending_is_not_told_to_send() {
    let is_asked = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&is_asked);
    let body = futures::stream::poll_fn(move |_| {
        asked.store(true, Ordering::Relaxed);
        Poll::<Option<Result<Bytes, std::io::Error>>>::Pending
    });
    let mut request = Request::new(Body::from_stream(body));
    request.headers_mut().insert(EXPECT, "100-continue".parse().expect("a value"));
    assert_eq!(refused(request).await, StatusCode::UNAUTHORIZED);
    assert!(!is_asked.load(Ordering::Relaxed), "nobody wants the body");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_written_while_the_body_is_read_begins_at_once() {
    let (first, later) = futures::channel::mpsc::unbounded();
    first.unbounded_send(Ok::<_, std::io::Error>(Bytes::from_static(b"one"))).expect("sent");
    let request = Request::new(Body::from_stream(later));
    let answer = answered(request, async |request| request.into_body().into_response()).await;
    let mut answer = answer.into_body().into_data_stream();
    assert_eq!(answer.next().await.expect("a part").expect("whole"), "one");
    first.unbounded_send(Ok(Bytes::from_static(b"two"))).expect("sent");
    assert_eq!(answer.next().await.expect("a part").expect("whole"), "two");
    drop(first);
    assert!(answer.next().await.is_none());
}
