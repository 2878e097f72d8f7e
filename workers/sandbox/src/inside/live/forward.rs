//! A port on the sandbox's loopback that leads to a Unix socket of the owner.

use millrace_sandbox::live::wire::CONNECTIONS;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::Semaphore;

/// Listens on the port, and forwards whatever connects. Waits for nobody but the sandbox's own
/// programs; a connection ends with either side, and all with the sandbox.
///
/// # Errors
/// The port cannot be listened on.
pub(crate) async fn listen(port: u16) -> std::io::Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    tokio::task::spawn_local(async move {
        let room = std::sync::Arc::new(Semaphore::new(CONNECTIONS.into()));
        while let Ok(room) = std::sync::Arc::clone(&room).acquire_owned().await {
            let Ok((stream, _)) = listener.accept().await else { continue };
            tokio::task::spawn_local(async move {
                join(stream, port).await;
                drop(room);
            });
        }
    });
    Ok(())
}

async fn join(mut stream: TcpStream, port: u16) {
    let Ok(mut socket) = UnixStream::connect(format!("/dev/forward/{port}")).await else { return };
    let _ = stream.set_nodelay(true);
    let _ = copy_bidirectional(&mut stream, &mut socket).await;
}
