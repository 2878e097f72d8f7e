//! ROCK's protocol for sandboxes, as its Python client 1.11 speaks it. `envelope.rs` is the shape of
//! every answer, `requests.rs` what is asked, `shells.rs`, `files.rs`, `commit.rs`, `proxy.rs` and
//! `portforward.rs` do it.
//!
//! What a command does wrong is a `Failed` with code 6000 and HTTP's 200, for the model to see; what
//! a client does wrong has code 4000; a key that is not known has HTTP's 401.

mod envelope;
mod requests;
mod shells;
mod files;
mod commit;
mod proxy;
mod portforward;

use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::{any, get, post};
use serde_json::{Value, json};

use crate::hosted::{Hosted, Labels};
use crate::service::{REQUEST_BYTES, Service, Wanted, invalid};
use crate::size;
use envelope::{Asked, Asker, Failure, done};
use requests::{ById, Start, StatusOf};

/// Where ROCK's clients look.
const PREFIX: &str = "/apis/envs/sandbox/v1";
/// Bytes of a request that has a file.
const FILE_BYTES: usize = 256 * 1024 * 1024;

/// The protocol's paths.
pub(crate) fn routes(service: Service) -> Router {
    let files = Router::new()
        .route("/write_file", post(files::write))
        .route("/upload", post(files::upload))
        .layer(DefaultBodyLimit::max(FILE_BYTES));
    let paths = Router::new()
        .route("/start", post(start))
        .route("/start_async", post(start))
        .route("/is_alive", get(is_alive))
        .route("/get_status", get(status))
        .route("/get_sandbox_statistics", get(statistics))
        .route("/stop", post(stop))
        .route("/delete", post(delete))
        .route("/restart", post(restart))
        .route("/sandboxes/{sandbox_id}/restart", post(restart_named))
        .route("/execute", post(shells::execute))
        .route("/create_session", post(shells::create))
        .route("/run_in_session", post(shells::run))
        .route("/close_session", post(shells::close))
        .route("/read_file", post(files::read))
        .route("/commit", post(commit::begin))
        .route("/commit/{sandbox_id}", get(commit::status))
        .route("/sandboxes/{sandbox_id}/portforward", get(portforward::open))
        .route("/sandboxes/{sandbox_id}/proxy", any(proxy::ask))
        .route("/sandboxes/{sandbox_id}/proxy/", any(proxy::ask))
        .route("/sandboxes/{sandbox_id}/proxy/{*path}", any(proxy::ask))
        .fallback(unknown)
        .layer(DefaultBodyLimit::max(REQUEST_BYTES))
        .merge(files)
        .with_state(service);
    Router::new().nest(PREFIX, paths)
}

async fn unknown() -> Response {
    Failure::unknown_path().into()
}

type Answer = Result<Response, Failure>;

async fn start(
    State(service): State<Service>,
    Asker(owner): Asker,
    headers: HeaderMap,
    Asked(start): Asked<Start>,
) -> Answer {
    let size = |field, text: Option<&str>| match text {
        None => Ok(None),
        Some(text) => {
            size::bytes(text).map(Some).ok_or_else(|| invalid(field, text, "write it as `512m` or `8g`"))
        }
    };
    let label = |name: &str| headers.get(name)?.to_str().ok().map(str::to_owned);
    let labels = Labels {
        user: label("x-user-id"),
        experiment: label("x-experiment-id"),
        namespace: label("x-namespace"),
        ..Labels::default()
    };
    for (field, asked) in [
        ("num_gpus", start.num_gpus.is_some_and(|n| n > 0.0)),
        ("use_kata_runtime", start.use_kata_runtime == Some(true)),
        ("image_os", start.image_os.as_deref().is_some_and(|os| !os.eq_ignore_ascii_case("linux"))),
    ] {
        if asked {
            return Err(invalid(field, "set", "sandboxes here are Linux, without it").into());
        }
    }
    if start.auto_archive_seconds.is_some() {
        let remedy =
            "there is no archive; use auto_delete_seconds, or commit the sandbox before it is stopped";
        return Err(invalid("auto_archive_seconds", "set", remedy).into());
    }
    let wanted = Wanted {
        id: start.sandbox_id,
        image: start.image,
        memory_bytes: size("memory", start.memory.as_deref())?,
        disk_bytes: size("disk", start.disk.as_deref())?,
        idle: start.auto_clear_time_minutes.map(|minutes| Duration::from_secs(minutes.saturating_mul(60))),
        network: service.settings().network.unasked(),
        keep: service.keep(start.auto_delete_seconds.map(Duration::from_secs)),
        labels,
        ..Wanted::default()
    };
    let hosted = service.make(owner, wanted).await?;
    let bounds = hosted.live.spec().bounds;
    Ok(done(&json!({
        "sandbox_id": hosted.id,
        "host_name": "sandbox",
        "host_ip": "127.0.0.1",
        "memory": size::text(bounds.memory_bytes),
        "disk": size::text(bounds.disk_bytes),
    })))
}

async fn is_alive(State(service): State<Service>, Asker(owner): Asker, Query(asked): Query<ById>) -> Answer {
    let alive = service.look(owner, &asked.sandbox_id);
    let message = alive.as_ref().map_or_else(ToString::to_string, |_| String::new());
    Ok(done(&json!({ "is_alive": alive.is_ok(), "message": message })))
}

async fn status(
    State(service): State<Service>,
    Asker(owner): Asker,
    Query(asked): Query<StatusOf>,
) -> Answer {
    let all = asked.include_all_states.as_deref().is_some_and(|flag| flag.eq_ignore_ascii_case("true"));
    match service.look(owner, &asked.sandbox_id) {
        Ok(hosted) => Ok(done(&status_of(&hosted))),
        Err(missing) => {
            let ended = service.ended(owner, &asked.sandbox_id).filter(|_| all).ok_or(missing)?;
            Ok(done(&json!({
                "sandbox_id": ended.id,
                "status": { "stopped": { "status": "stopped", "message": ended.why } },
                "state": "stopped",
                "image": ended.image,
                "is_alive": false,
            })))
        }
    }
}

fn status_of(hosted: &Hosted) -> Value {
    let bounds = hosted.live.spec().bounds;
    json!({
        "sandbox_id": hosted.id,
        "status": { "sandbox": { "status": "success", "message": "" } },
        "state": "running",
        "is_alive": true,
        "host_name": "sandbox",
        "host_ip": "127.0.0.1",
        "image": hosted.wanted.image,
        "user_id": hosted.wanted.labels.user,
        "experiment_id": hosted.wanted.labels.experiment,
        "namespace": hosted.wanted.labels.namespace,
        "memory": size::text(bounds.memory_bytes),
        "disk": size::text(bounds.disk_bytes),
    })
}

async fn statistics(
    State(service): State<Service>,
    Asker(owner): Asker,
    Query(asked): Query<ById>,
) -> Answer {
    let hosted = service.look(owner, &asked.sandbox_id)?;
    let bounds = hosted.live.spec().bounds;
    let memory = hosted.live.memory_bytes();
    #[expect(clippy::cast_precision_loss, reason = "a share for people")]
    let share = 100.0 * memory as f64 / bounds.memory_bytes as f64;
    Ok(done(&json!({
        "mem": share,
        "memory_bytes": memory,
        "memory_limit_bytes": bounds.memory_bytes,
        "disk_limit_bytes": bounds.disk_bytes,
        "commands": hosted.counts.commands,
        "files": hosted.counts.files,
        "idle_seconds_left": hosted.left().as_secs(),
        "age_seconds": hosted.made.elapsed().as_secs(),
    })))
}

async fn stop(
    State(service): State<Service>,
    Asker(owner): Asker,
    Asked(ById { sandbox_id }): Asked<ById>,
) -> Answer {
    service.stop(owner, &sandbox_id).await?;
    Ok(done(&format!("{sandbox_id} stopped")))
}

async fn delete(
    State(service): State<Service>,
    Asker(owner): Asker,
    Asked(ById { sandbox_id }): Asked<ById>,
) -> Answer {
    service.delete(owner, &sandbox_id).await?;
    Ok(done(&format!("{sandbox_id} deleted")))
}

async fn restart(
    State(service): State<Service>,
    Asker(owner): Asker,
    Asked(ById { sandbox_id }): Asked<ById>,
) -> Answer {
    Ok(done(&status_of(&*service.restart(owner, &sandbox_id).await?)))
}

async fn restart_named(
    State(service): State<Service>,
    Asker(owner): Asker,
    Path(sandbox_id): Path<String>,
) -> Answer {
    Ok(done(&status_of(&*service.restart(owner, &sandbox_id).await?)))
}
