//! Makes a server load another version, and checks its own report afterwards.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::Instant;

use super::http::Http;
use super::{Dialect, ServerError, ServerSettings};
use crate::process_group::ProcessGroup;

/// Between two health checks, and the time for one.
pub(super) const LOOK: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// Makes the server load the version in `folder`, while it has no turn in flight. Returns once it
/// answers.
pub(super) async fn reload(
    http: &Http,
    settings: &ServerSettings,
    folder: &Path,
    label: &str,
) -> Result<(), ServerError> {
    let within = settings.reload_timeout;
    let path = folder.to_string_lossy();
    match (&settings.reload, settings.dialect) {
        (Some(command), _) => run(command, folder, label, within).await?,
        (None, Dialect::Vllm) => vllm(http, &path, within).await?,
        (None, Dialect::Sglang) => sglang(http, &path, label, within).await?,
        (None, Dialect::LlamaCpp) => {
            let reason = "llama.cpp's server reads no other weights while it runs; say how to start it again with \
                          --engine-reload-command";
            return Err(ServerError::Unfit(reason.to_owned()));
        }
    }
    until_well(http, within).await
}

/// Pauses, loads, drops the prefix cache of the old weights, and resumes.
async fn vllm(http: &Http, path: &str, within: Duration) -> Result<(), ServerError> {
    // Other requests in flight there must not continue half old, half new.
    http.post("/pause?mode=abort", &Value::Null, within).await.map_err(dev_mode)?;
    let read = async {
        let call = json!({"method": "reload_weights", "kwargs": {"weights_path": path}});
        http.post("/collective_rpc", &call, within).await?;
        http.post("/reset_prefix_cache", &Value::Null, within).await
    };
    let read = read.await.map_err(dev_mode);
    let resumed = http.post("/resume", &Value::Null, within).await.map_err(dev_mode);
    read.and(resumed).map(drop)
}

fn dev_mode(error: ServerError) -> ServerError {
    match error {
        ServerError::Unfit(message) => ServerError::Unfit(format!(
            "{message}; start vLLM with VLLM_SERVER_DEV_MODE=1, or give a command that loads weights with --engine-reload-command"
        )),
        other => other,
    }
}

async fn sglang(http: &Http, path: &str, label: &str, within: Duration) -> Result<(), ServerError> {
    let call = json!({
        "model_path": path, "weight_version": label, "abort_all_requests": true, "flush_cache": true,
    });
    let reply = http.ask("/update_weights_from_disk", &call, within).await?;
    match reply["success"].as_bool() {
        Some(true) => Ok(()),
        _ => Err(ServerError::Failed(format!("it did not read {path}: {reply}"))),
    }
}

/// Runs a command of the user's. One that takes too long, or that nobody waits for any more, is ended with all
/// that it started: it must not load its version after a later one. What a command that ended has left in the
/// background goes on: it may be the server.
async fn run(command: &str, folder: &Path, label: &str, within: Duration) -> Result<(), ServerError> {
    let failed = |reason: String| ServerError::Failed(format!("--engine-reload-command {reason}"));
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).env("MILLRACE_WEIGHTS", folder).env("MILLRACE_WEIGHTS_LABEL", label);
    let group = ProcessGroup::spawn(shell.stdin(Stdio::null()));
    let mut group = group.map_err(|error| failed(format!("did not start: {error}")))?;
    match tokio::time::timeout(within, group.ended()).await {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => Err(failed(format!("ended with {status}"))),
        Ok(Err(error)) => Err(failed(format!("does not tell how it ended: {error}"))),
        Err(_) => Err(failed(format!("took longer than {within:?}"))),
    }
}

/// Waits until the server reports that it is healthy.
async fn until_well(http: &Http, within: Duration) -> Result<(), ServerError> {
    let start = Instant::now();
    loop {
        match http.is_well("/health", LOOK.1).await {
            Ok(()) => return Ok(()),
            Err(error) if start.elapsed() > within => return Err(error),
            Err(_) => tokio::time::sleep(LOOK.0).await,
        }
    }
}

/// Compares the server's report of its weights with the version. vLLM has no such report.
pub(super) async fn check_report(
    http: &Http,
    settings: &ServerSettings,
    folder: &Path,
    label: &str,
) -> Result<(), ServerError> {
    match settings.dialect {
        Dialect::Vllm => Ok(()),
        Dialect::Sglang if settings.reload.is_some() => Ok(()),
        Dialect::Sglang => {
            let reported = match http.get("/model_info", LOOK.1).await {
                // Versions before this path have the other.
                Err(ServerError::Unfit(_)) => http.get("/get_model_info", LOOK.1).await?,
                reported => reported?,
            };
            let (path, version) = (reported["model_path"].as_str(), reported["weight_version"].as_str());
            if path.map(Path::new) == Some(folder) && version == Some(label) {
                return Ok(());
            }
            Err(ServerError::OtherWeights(format!(
                "it reports model_path={path:?} weight_version={version:?}, not {folder:?} and {label:?}"
            )))
        }
        Dialect::LlamaCpp => {
            let reported = http.get("/props", LOOK.1).await?;
            let path = reported["model_path"].as_str().unwrap_or_default();
            let name = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            if path.contains(&name) {
                return Ok(());
            }
            Err(ServerError::OtherWeights(format!(
                "it reports model_path={path:?}, which does not hold {name}"
            )))
        }
    }
}

#[cfg(test)]
mod tests;
