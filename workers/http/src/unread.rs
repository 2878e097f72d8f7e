//! A client that is refused can read why.
//!
//! A server that answers before it has read the request closes the connection. The client still
//! sends: it sees a broken pipe instead of the answer, or a later request finds its connection gone.
//! So the rest of a request is read before its answer goes out, within bounds.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, BodyDataStream, HttpBody};
use axum::extract::Request;
use axum::http::header::EXPECT;
use axum::middleware::Next;
use axum::response::Response;
use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// How long a client may take to send what nobody wants.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of it that are read at most: as many as the largest request that is served.
const MOST_BYTES: usize = 256 * 1024 * 1024;

/// Reads what the handler left of a request, and throws it away. For `axum::middleware::from_fn`.
///
/// Only this client waits, for at most 5 s. One that asked first (`Expect: 100-continue`) and was not
/// told to send is answered at once, as is one whose handler still reads.
pub async fn read_rest(request: Request, next: Next) -> Response {
    answered(request, async |request| next.run(request).await).await
}

async fn answered(request: Request, handler: impl AsyncFnOnce(Request) -> Response) -> Response {
    if request.body().is_end_stream() {
        return handler(request).await;
    }
    let asks = request.headers().contains_key(EXPECT);
    let (left, mut unread) = oneshot::channel();
    let watch = |body: Body| Watched { body: Some(body.into_data_stream()), left: Some(left), begun: false };
    let response = handler(request.map(|body| Body::from_stream(watch(body)))).await;
    if let Ok(Unread { body, begun }) = unread.try_recv()
        && (begun || !asks)
    {
        // An answer that comes too late is worse than a connection that closes.
        let _ = timeout(PATIENCE, discard(body)).await;
    }
    response
}

async fn discard(mut body: BodyDataStream) {
    let mut bytes = 0;
    while let Some(Ok(part)) = body.next().await {
        bytes += part.len();
        if bytes > MOST_BYTES {
            return;
        }
    }
}

/// A body that its reader dropped before the end.
struct Unread {
    body: BodyDataStream,
    begun: bool,
}

/// A body that comes back when its reader drops it before the end.
struct Watched {
    body: Option<BodyDataStream>,
    left: Option<oneshot::Sender<Unread>>,
    begun: bool,
}

impl Stream for Watched {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.begun = true;
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let part = ready!(body.poll_next_unpin(context));
        if !matches!(part, Some(Ok(_))) {
            self.body = None;
        }
        Poll::Ready(part)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let (Some(body), Some(left)) = (self.body.take(), self.left.take()) {
            let _ = left.send(Unread { body, begun: self.begun });
        }
    }
}

#[cfg(test)]
mod tests;
