//! Which failure is which: what is not there, what nobody let us see, what is damaged, and what may pass.

use bytes::Bytes;
use millrace_queue::{ObjectError, Objects};
use millrace_schemas::BlobRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::run;

/// Objects on an S3 server that gives each request this answer.
async fn answering(status: &str, word: &str) -> Objects {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
    let body = format!("<Error><Code>{word}</Code></Error>");
    let answer =
        format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    let settings = [
        ("endpoint", endpoint.as_str()),
        ("allow_http", "true"),
        ("region", "us-east-1"),
        ("access_key_id", "key"),
        ("secret_access_key", "secret"),
    ];
    Objects::open_s3("bucket", settings).expect("the settings are known")
}

fn kind(error: &ObjectError) -> &'static str {
    match error {
        ObjectError::Location { .. } => "location",
        ObjectError::NotFound { .. } => "not found",
        ObjectError::Corrupt { .. } => "corrupt",
        ObjectError::Unavailable { .. } => "unavailable",
        ObjectError::Forbidden { .. } => "forbidden",
        ObjectError::Refused { .. } => "refused",
    }
}

#[tokio::test]
async fn an_s3_server_that_forbids_has_not_said_that_nothing_is_there() {
    let blob = BlobRef::of(b"x");
    for (status, word, expected) in [
        ("403 Forbidden", "AccessDenied", "forbidden"),
        ("403 Forbidden", "SignatureDoesNotMatch", "forbidden"),
        ("401 Unauthorized", "Unauthorized", "forbidden"),
        ("400 Bad Request", "ExpiredToken", "forbidden"),
        ("404 Not Found", "NoSuchKey", "not found"),
        ("404 Not Found", "NoSuchBucket", "unavailable"),
    ] {
        let objects = answering(status, word).await;
        let read = objects.get_blob(&run(), &blob).await.expect_err("an error");
        assert_eq!(kind(&read), expected, "{status} {word}: {read}");
        let put = objects.put("a", Bytes::from_static(b"x")).await.expect_err("an error");
        assert_eq!(kind(&put), expected, "{status} {word}: {put}");
        let get = objects.get("a").await;
        match expected {
            "not found" => assert_eq!(get.expect("an answer"), None),
            _ => assert_eq!(kind(&get.expect_err("an error")), expected, "{status} {word}"),
        }
    }
}

#[tokio::test]
async fn what_is_in_a_folder_that_is_gone_is_not_said_to_be_absent() {
    let place = tempfile::tempdir().expect("a folder");
    let folder = place.path().join("objects");
    let objects = Objects::open(folder.to_str().expect("a plain path")).expect("opened");
    let blob = objects.put_blob(&run(), Bytes::from_static(b"x")).await.expect("stored");
    std::fs::rename(&folder, place.path().join("elsewhere")).expect("moved");
    let unavailable = |error: ObjectError| assert_eq!(kind(&error), "unavailable", "{error}");
    unavailable(objects.get("a").await.expect_err("an error"));
    unavailable(objects.get_blob(&run(), &blob).await.expect_err("an error"));
    unavailable(objects.has_blob(&run(), &blob).await.expect_err("an error"));
    unavailable(objects.list("").await.expect_err("an error"));
    std::fs::rename(place.path().join("elsewhere"), &folder).expect("moved back");
    assert_eq!(objects.get_blob(&run(), &blob).await.expect("read"), "x");
}
