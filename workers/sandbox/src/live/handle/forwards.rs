//! The outer end of forwarded ports: sockets in the keeper's own tree, where nothing of them is left
//! when it ends, each joined to the owner's socket with the owner's rights.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use tokio::io::copy_bidirectional;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::{JoinHandle, JoinSet};

use crate::live::spec::{Forward, LiveError};

/// The forwarded ports of a sandbox; they go with this value.
#[derive(Debug)]
pub(crate) struct Forwards(Vec<(JoinHandle<()>, PathBuf)>);

impl Drop for Forwards {
    fn drop(&mut self) {
        for (task, path) in &self.0 {
            task.abort();
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Forwards {
    pub(crate) fn listen(keeper: u32, layer: u64, forwards: &[Forward]) -> Result<Self, LiveError> {
        let mut all = Self(Vec::new());
        for forward in forwards {
            let path = PathBuf::from(format!("/proc/{keeper}/root/s/{layer}-{}", forward.port));
            let fail =
                |error| LiveError::Refused(format!("failed to forward port={}: {error}", forward.port));
            let listener = UnixListener::bind(&path).map_err(fail)?;
            // The sandbox may be another user than its owner.
            std::fs::set_permissions(&path, Permissions::from_mode(0o666)).map_err(fail)?;
            all.0.push((tokio::spawn(serve(listener, forward.to.clone())), path));
        }
        Ok(all)
    }
}

/// Joins each connection to a new one to `to`. Ends with its task, and with it all connections. The
/// sandbox's side bounds how many there are.
async fn serve(listener: UnixListener, to: PathBuf) {
    let mut joined = JoinSet::new();
    loop {
        tokio::select! {
            Ok((mut inner, _)) = listener.accept() => {
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
