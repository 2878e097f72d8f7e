//! Uploads in parts that are neither completed nor aborted, as the S3 server lists them.

use millrace_queue::testing::{S3Server, s3_settings, signed};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How many there are in the server's bucket.
pub(super) async fn uploads(server: &S3Server) -> usize {
    let url = signed::unfinished_uploads("millrace", s3_settings(server.endpoint())).await;
    let target = url.strip_prefix(server.endpoint()).expect("the server's").to_owned();
    let host = server.endpoint().trim_start_matches("http://");
    let mut stream = TcpStream::connect(host).await.expect("connected");
    let request = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("asked");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("answered");
    assert!(answer.contains("ListMultipartUploadsResult"), "{answer}");
    answer.matches("<UploadId>").count()
}
