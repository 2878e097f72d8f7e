//! The outer end of forwarded ports: a socket for each, which the sandbox mounts, joined to the
//! owner's socket with the owner's rights. Its name is gone as soon as it is mounted.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::copy_bidirectional;
use tokio::net::{UnixListener, UnixSocket, UnixStream};
use tokio::task::{JoinHandle, JoinSet};

use crate::live::spec::{Forward, LiveError};
use crate::live::wire::CONNECTIONS;

/// How folders of sockets are called, before the number of their process.
const FOLDER: &str = "millrace-sockets-";

/// Between two tries to accept, where there are no open files left.
const PAUSE: Duration = Duration::from_millis(50);

/// The forwarded ports of a sandbox; they go with this value.
#[derive(Debug, Default)]
pub(crate) struct Forwards {
    tasks: Vec<JoinHandle<()>>,
    /// Of `[F]` ports, as the machine sees them.
    pub(crate) paths: Vec<PathBuf>,
    /// Where they are until they are mounted.
    folder: Option<TempDir>,
}

impl Drop for Forwards {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Forwards {
    pub(crate) fn listen(forwards: &[Forward]) -> Result<Self, LiveError> {
        let mut all = Self::default();
        if forwards.is_empty() {
            return Ok(all);
        }
        let refused =
            |error| LiveError::Refused(format!("failed to make sockets for forwarded ports: {error}"));
        // The sandbox may be another user than its owner: all may pass, none may look around, and
        // the name cannot be guessed.
        let folder = tempfile::Builder::new()
            .prefix(&format!("{FOLDER}{}-", std::process::id()))
            .rand_bytes(24)
            .permissions(Permissions::from_mode(0o711))
            .tempdir()
            .map_err(refused)?;
        for forward in forwards {
            let path = folder.path().join(forward.port.to_string());
            let listener = bind(&path).map_err(refused)?;
            fs::set_permissions(&path, Permissions::from_mode(0o666)).map_err(refused)?;
            all.tasks.push(tokio::spawn(serve(listener, forward.to.clone())));
            all.paths.push(path);
        }
        all.folder = Some(folder);
        Ok(all)
    }

    /// Removes the names, which nobody needs once they are mounted.
    pub(crate) fn mounted(&mut self) {
        self.folder = None;
    }
}

/// Removes folders of sockets whose process ended before they were mounted.
pub(crate) fn sweep(of: &Path) {
    for found in fs::read_dir(of).into_iter().flatten().flatten() {
        let name = found.file_name();
        let rest = name.to_str().and_then(|name| name.strip_prefix(FOLDER));
        let pid = rest.and_then(|rest| rest.split_once('-')?.0.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = fs::remove_dir_all(found.path());
        }
    }
}

/// No more connections wait than may be joined: they cost the kernel memory.
fn bind(path: &Path) -> std::io::Result<UnixListener> {
    let socket = UnixSocket::new_stream()?;
    socket.bind(path)?;
    socket.listen(CONNECTIONS.into())
}

/// Joins each connection to a new one to `to`. Ends with its task, and with it all connections. Accepts
/// no more than [`CONNECTIONS`] at once: within, every program may connect, not the forwarder of ports alone.
async fn serve(listener: UnixListener, to: PathBuf) {
    let mut joined = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if joined.len() < CONNECTIONS.into() => {
                let Ok((mut inner, _)) = accepted else {
                    // This process has no open files left; soon it may.
                    tokio::time::sleep(PAUSE).await;
                    continue;
                };
                let to = to.clone();
                joined.spawn(async move {
                    // Nobody listens there: the program within sees its connection closed.
                    if let Ok(mut outer) = UnixStream::connect(&to).await {
                        let _ = copy_bidirectional(&mut inner, &mut outer).await;
                    }
                });
            }
            Some(_) = joined.join_next() => {}
        }
    }
}
