//! TCP to a port of a sandbox over a WebSocket: `…/sandboxes/ID/portforward?port=3000`. Each
//! message's bytes go to the server, and what it says comes in binary messages. Either end closes
//! both.

use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use futures::{SinkExt, StreamExt};
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::envelope::{Asker, Failure};
use crate::hosted::Using;
use crate::ports::{self, PortError};
use crate::service::{Service, ServiceError};

/// Bytes of a message from the client at most.
const MESSAGE_BYTES: usize = 1024 * 1024;
/// Bytes of a message to the client at most.
const PART_BYTES: usize = 64 * 1024;

#[derive(Debug, Deserialize)]
pub(super) struct Asked {
    #[serde(default)]
    port: String,
}

pub(super) async fn open(
    State(service): State<Service>,
    Asker(owner): Asker,
    Path(id): Path<String>,
    Query(asked): Query<Asked>,
    upgrade: WebSocketUpgrade,
) -> Result<Response, Failure> {
    let connect = async {
        let port = ports::port(&asked.port)?;
        let sandbox = service.use_it(owner, &id)?;
        let server = sandbox.live.connect(port).await.map_err(ServiceError::from)?;
        Ok::<_, PortError>((sandbox, server))
    };
    // A refusal has the status of a proxy: a client of WebSockets shows it.
    Ok(match connect.await {
        Ok((sandbox, server)) => {
            let upgrade = upgrade.max_message_size(MESSAGE_BYTES).max_frame_size(MESSAGE_BYTES);
            upgrade.on_upgrade(move |client| carry(sandbox, client, server)).into_response()
        }
        Err(error) => (error.status(), error.to_string()).into_response(),
    })
}

/// Carries bytes both ways until either side ends, or nothing moves any more.
async fn carry(sandbox: Using, client: WebSocket, server: impl AsyncRead + AsyncWrite) {
    let (mut to_client, mut from_client) = client.split();
    let (mut from_server, mut to_server) = tokio::io::split(server);
    let (moved, moves) = tokio::sync::watch::channel(());
    let inwards = async {
        while let Some(Ok(message)) = from_client.next().await {
            let bytes: Bytes = match message {
                Message::Binary(bytes) => bytes,
                Message::Text(text) => text.into(),
                Message::Close(_) => break,
                // The library answers a ping.
                Message::Ping(_) | Message::Pong(_) => continue,
            };
            if to_server.write_all(&bytes).await.is_err() {
                break;
            }
            moved.send_replace(());
        }
    };
    let outwards = async {
        let mut part = BytesMut::with_capacity(PART_BYTES);
        while let Ok(1..) = from_server.read_buf(&mut part).await {
            if to_client.send(Message::Binary(part.split().freeze())).await.is_err() {
                break;
            }
            part.reserve(PART_BYTES);
            moved.send_replace(());
        }
        // The client may be gone.
        let _ = to_client.send(Message::Close(None)).await;
    };
    tokio::select! {
        () = inwards => {}
        () = outwards => {}
        () = ports::still(moves, ports::IDLE) => {}
    }
    drop(sandbox);
}
