use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

const WITHIN: Duration = Duration::from_secs(60);

/// A server that answers every request with `head`, and then `piece` for as long as it is read.
/// Returns its address.
async fn server(head: String, piece: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let (head, piece) = (head.clone(), piece.clone());
            tokio::spawn(async move {
                let mut asked = [0; 4096];
                let _ = socket.read(&mut asked).await;
                let mut sent = socket.write_all(head.as_bytes()).await;
                while sent.is_ok() && !piece.is_empty() {
                    sent = socket.write_all(&piece).await;
                }
            });
        }
    });
    format!("http://{address}")
}

fn client(base: &str) -> Http {
    Http::new(base, Some("secret".to_owned()), WITHIN)
}

#[tokio::test]
async fn an_endless_reply_is_read_no_further_than_its_bound() {
    let endless = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n";
    let base = server(endless.to_owned(), vec![b' '; 1 << 16]).await;
    let error = client(&base).ask("/ask", &json!({}), WITHIN).await.unwrap_err();
    assert!(error.to_string().contains("more than"), "{error}");
    // One event without an end.
    let mut events = client(&base).stream("/ask", &json!({})).await.unwrap();
    let error = events.next().await.unwrap_err();
    assert!(error.to_string().contains("more than"), "{error}");
    // A refusal that goes on for ever is a refusal.
    let refusal = "HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n";
    let base = server(refusal.to_owned(), vec![b'x'; 1 << 16]).await;
    let error = client(&base).ask("/ask", &json!({}), WITHIN).await.unwrap_err();
    assert!(matches!(&error, ServerError::Refused(message) if message.len() < 1_000), "{error}");
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let place = format!("http://{}/collect", other.local_addr().unwrap());
    for status in ["301 Moved", "302 Found", "307 Temporary Redirect", "308 Permanent Redirect"] {
        let head = format!("HTTP/1.1 {status}\r\nlocation: {place}\r\ncontent-length: 0\r\n\r\n");
        let base = server(head, Vec::new()).await;
        let error = client(&base).ask("/ask", &json!({ "words": 1 }), WITHIN).await.unwrap_err();
        assert!(matches!(&error, ServerError::Unfit(message) if message.contains(&place)), "{error}");
        assert!(client(&base).stream("/ask", &json!({})).await.is_err());
    }
    let nobody = tokio::time::timeout(Duration::from_millis(50), other.accept()).await;
    assert!(nobody.is_err(), "the conversation went elsewhere");
}
