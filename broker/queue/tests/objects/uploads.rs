//! Uploads in parts that are neither completed nor aborted, as the S3 server lists them.

use std::time::Duration;

use millrace_queue::testing::{S3Server, s3_settings};
use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use object_store::signer::{SignedUrlOptions, Signer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How many there are in the server's bucket.
pub(super) async fn uploads(server: &S3Server) -> usize {
    let mut builder = AmazonS3Builder::new().with_bucket_name("millrace");
    for (name, value) in s3_settings(server.endpoint()) {
        builder = builder.with_config(name.parse().expect("a setting"), value);
    }
    let query = SignedUrlOptions::default().with_query([("uploads", "")]);
    let store = builder.build().expect("the settings are known");
    let get = "GET".parse().expect("a method");
    let url =
        store.signed_url_opts(get, &Path::from(""), Duration::from_secs(60), &query).await.expect("signed");
    let target = url.as_str().strip_prefix(server.endpoint()).expect("the server's").to_owned();
    let host = server.endpoint().trim_start_matches("http://");
    let mut stream = TcpStream::connect(host).await.expect("connected");
    let request = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("asked");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("answered");
    assert!(answer.contains("ListMultipartUploadsResult"), "{answer}");
    answer.matches("<UploadId>").count()
}
