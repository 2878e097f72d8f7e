//! The configuration of a nats-server of our own.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::{ClusterMember, LOG, ServerError, ServerOptions};

/// Largest message, in bytes. Ours are smaller; a user's own may not be.
const MAX_PAYLOAD: usize = 8 * 1024 * 1024;
/// Bytes after which the server begins a new log.
const LOG_BYTES: usize = 64 * 1024 * 1024;
/// The name of a cluster.
const CLUSTER: &str = "millrace";

/// Writes a server's configuration into its folder, which is created if need be, and returns its
/// path. For callers that start the server without [`Server::start`](super::Server::start), as
/// `nats-server -c PATH`.
///
/// # Errors
/// The folder or the file cannot be written.
pub fn write_config(options: &ServerOptions) -> Result<PathBuf, ServerError> {
    let folder = &options.folder;
    let fail = |path: &Path| {
        let path = path.to_owned();
        move |source| ServerError::Folder { path, source }
    };
    std::fs::create_dir_all(folder).map_err(fail(folder))?;
    let folder = folder.canonicalize().map_err(fail(folder))?;
    // Ports files of earlier servers that were killed.
    for entry in std::fs::read_dir(&folder).map_err(fail(&folder))?.flatten() {
        if entry.path().extension().is_some_and(|extension| extension == "ports") {
            let _ = std::fs::remove_file(entry.path());
        }
    }
    if let Some(given) = &options.config {
        return Ok(given.clone());
    }
    let path = folder.join("nats-server.conf");
    std::fs::write(&path, config(options, &folder)).map_err(fail(&path))?;
    Ok(path)
}

/// Options that override a server's own configuration.
pub(super) fn overrides(options: &ServerOptions) -> Vec<String> {
    let shown = |path: PathBuf| path.to_string_lossy().into_owned();
    let folder = options.folder.canonicalize().unwrap_or_else(|_| options.folder.clone());
    let port = options.port.map_or_else(|| "-1".to_owned(), |port| port.to_string());
    vec![
        "--addr=127.0.0.1".to_owned(),
        format!("--port={port}"),
        format!("--log={}", shown(folder.join(LOG))),
        format!("--ports_file_dir={}", shown(folder)),
    ]
}

fn config(options: &ServerOptions, folder: &Path) -> String {
    let quoted = |path: PathBuf| format!("{:?}", path.to_string_lossy());
    let port = options.port.map_or_else(|| "-1".to_owned(), |port| port.to_string());
    let sync = if options.sync_always { "  sync_interval: always\n" } else { "" };
    let mut text = String::from("# Rewritten at each start.\n");
    let _ = write!(
        text,
        "listen: \"127.0.0.1:{port}\"\nmax_payload: {MAX_PAYLOAD}\nlogfile: {log}\nlogfile_size_limit: {LOG_BYTES}\nports_file_dir: {folder}\n\
         jetstream {{\n  store_dir: {streams}\n{sync}}}\n{seat}",
        log = quoted(folder.join(LOG)),
        streams = quoted(folder.join("streams")),
        folder = quoted(folder.to_owned()),
        seat = options.seat.as_ref().map(cluster).unwrap_or_default(),
    );
    text
}

/// The cluster does not advertise its other servers to clients: a client connects to the address in
/// its own configuration.
fn cluster(seat: &ClusterMember) -> String {
    let routes: Vec<String> = seat.peers.iter().map(|port| format!("\"nats://127.0.0.1:{port}\"")).collect();
    format!(
        "server_name: {name:?}\ncluster {{\n  name: {CLUSTER}\n  listen: \"127.0.0.1:{port}\"\n  routes: [{routes}]\n  \
         no_advertise: true\n}}\n",
        name = seat.name,
        port = seat.port,
        routes = routes.join(", "),
    )
}
