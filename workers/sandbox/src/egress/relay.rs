//! Bytes between a program and a host, until either is done or nothing has moved for a while.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::sleep;

/// Bytes in flight in one direction.
const PIECE: usize = 16 * 1024;

/// What goes where.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Flow {
    /// What the program gets before anything of the host's.
    pub(super) to_client: &'static [u8],
    /// What the host gets before anything more of the program's.
    pub(super) to_server: Vec<u8>,
    /// Bytes of the program's that follow. `None`: all, to the end.
    pub(super) rest: Option<u64>,
}

/// Carries bytes until both sides have ended, the host has where it answers one request, either side
/// breaks, or nothing moves for `idle`.
pub(super) async fn relay<C, S>(client: &mut C, server: &mut S, flow: Flow, idle: Duration)
where
    C: AsyncRead + AsyncWrite + Unpin,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let moves = AtomicU64::new(0);
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_server, mut to_server) = tokio::io::split(server);
    let there = async {
        put(&mut to_server, &flow.to_server, &moves).await?;
        match flow.rest {
            None => {
                pump(&mut from_client, &mut to_server, &moves).await?;
                to_server.shutdown().await
            }
            // One answer is awaited; what the program says beyond its request belongs to no host.
            Some(rest) => {
                pump(&mut (&mut from_client).take(rest), &mut to_server, &moves).await?;
                std::future::pending().await
            }
        }
    };
    let back = async {
        put(&mut to_client, flow.to_client, &moves).await?;
        pump(&mut from_server, &mut to_client, &moves).await?;
        to_client.shutdown().await?;
        match flow.rest {
            None => Ok(()),
            // To leave the other direction.
            Some(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    };
    let both = async { tokio::try_join!(there, back) };
    tokio::select! {
        // A side that breaks has nobody to tell.
        _ = both => {}
        () = unmoved(&moves, idle) => {}
    }
}

async fn put(to: &mut (impl AsyncWrite + Unpin), mut bytes: &[u8], moves: &AtomicU64) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = to.write(bytes).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        bytes = &bytes[written..];
        moves.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

async fn pump(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    moves: &AtomicU64,
) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    loop {
        let read = from.read(&mut piece).await?;
        if read == 0 {
            return Ok(());
        }
        put(to, &piece[..read], moves).await?;
    }
}

/// Returns when nothing has moved for `idle`.
async fn unmoved(moves: &AtomicU64, idle: Duration) {
    loop {
        let before = moves.load(Ordering::Relaxed);
        sleep(idle).await;
        if moves.load(Ordering::Relaxed) == before {
            return;
        }
    }
}
