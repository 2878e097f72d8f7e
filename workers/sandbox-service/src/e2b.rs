//! E2B's protocol, as its Python client 2.63 speaks it: `control.rs` makes and ends sandboxes, with
//! `requests.rs` as what is asked and `told.rs` as what is told. The rest stands for E2B's daemon
//! within a sandbox: `envd.rs` says which sandbox is meant and who may, `connect.rs` is the protocol
//! of its calls, `process.rs` and `filesystem.rs` are calls, `transfer.rs` moves whole files,
//! `paths.rs` resolves paths, `proxy.rs` leads to servers within.
//!
//! Requests name their sandbox by a header or by the host's name, so that one address serves all.

mod requests;
mod told;
mod control;
mod paths;
mod connect;
mod envd;
mod process;
mod filesystem;
mod transfer;
mod proxy;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::{any, get, post};

use crate::service::{REQUEST_BYTES, Service};
pub(crate) use proxy::by_host;

/// Bytes of a call about commands. What a command gets as input is one.
const CALL_BYTES: usize = 64 * 1024 * 1024;
/// Bytes of a file, read or written. Several files that are written at once count together.
const FILE_BYTES: usize = 256 * 1024 * 1024;

/// The protocol's paths, and an answer to any other.
pub(crate) fn routes(service: Service) -> Router {
    let control = Router::new()
        .route("/sandboxes", post(control::create).get(control::list_all))
        .route("/v2/sandboxes", post(control::create).get(control::list))
        .route("/sandboxes/{id}", get(control::info).delete(control::kill))
        .route("/sandboxes/{id}/timeout", post(control::set_timeout))
        .route("/sandboxes/{id}/connect", post(control::connect))
        .route("/sandboxes/{id}/resume", post(control::connect))
        .route("/v2/sandboxes/{id}/connect", post(control::connect))
        .route("/sandboxes/{id}/{*what}", any(control::not_served));
    let not_served = ["/snapshots", "/templates", "/v2/templates", "/v3/templates", "/volumes", "/secrets"];
    let control = not_served.iter().fold(control, |paths, path| {
        let paths = paths.route(path, any(control::not_served));
        paths.route(&format!("{path}/{{*what}}"), any(control::not_served))
    });
    let control = control.layer(DefaultBodyLimit::max(REQUEST_BYTES));
    let process = Router::new()
        .route("/List", post(process::list))
        .route("/Start", post(process::start))
        .route("/Connect", post(process::connect))
        .route("/SendInput", post(process::send_input))
        .route("/Update", post(process::update))
        .route("/StreamInput", post(process::stream_input))
        .route("/CloseStdin", post(process::close_stdin))
        .route("/SendSignal", post(process::send_signal))
        .fallback(connect::not_served)
        .layer(DefaultBodyLimit::max(CALL_BYTES));
    let filesystem = Router::new()
        .route("/Stat", post(filesystem::stat))
        .route("/ListDir", post(filesystem::list))
        .route("/MakeDir", post(filesystem::make))
        .route("/Move", post(filesystem::rename))
        .route("/Remove", post(filesystem::remove))
        .fallback(connect::not_served)
        .layer(DefaultBodyLimit::max(REQUEST_BYTES));
    let calls = Router::new()
        .merge(control)
        .nest("/process.Process", process)
        .nest("/filesystem.Filesystem", filesystem)
        .route("/health", get(envd::health));
    let files = Router::new()
        .route("/files", get(transfer::read).post(transfer::write))
        .layer(DefaultBodyLimit::max(FILE_BYTES));
    calls.merge(files).fallback(envd::unknown).with_state(service)
}
