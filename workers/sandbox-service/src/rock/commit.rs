//! A sandbox's files as an image of the store. Whose password would write there is not asked for:
//! the service has its own.

use axum::extract::{Path, State};
use serde_json::{Value, json};

use super::Answer;
use super::envelope::{Asked, Asker, done};
use super::requests::CommitOf;
use crate::commits::{Commit, Phase};
use crate::moments::moment;
use crate::service::{Service, invalid};

pub(super) async fn begin(
    State(service): State<Service>,
    Asker(owner): Asker,
    Asked(asked): Asked<CommitOf>,
) -> Answer {
    let commit = service.commit(owner, &asked.sandbox_id, &asked.image_tag)?;
    Ok(done(&told(&asked.sandbox_id, &commit)))
}

pub(super) async fn status(
    State(service): State<Service>,
    Asker(owner): Asker,
    Path(sandbox_id): Path<String>,
) -> Answer {
    let Some(commit) = service.last_commit(owner, &sandbox_id)? else {
        return Err(invalid("sandbox_id", sandbox_id, "it was never committed; ask for that first").into());
    };
    Ok(done(&told(&sandbox_id, &commit)))
}

fn told(sandbox_id: &str, commit: &Commit) -> Value {
    let (phase, code, words) = match &commit.phase {
        Phase::Running => ("RUNNING", None, None),
        Phase::Succeeded => ("SUCCEEDED", Some(0), None),
        Phase::Failed(words) => ("FAILED", Some(1), Some(words)),
    };
    json!({
        "sandbox_id": sandbox_id,
        "image_tag": commit.image,
        "phase": phase,
        "started_at": moment(commit.began),
        "completed_at": commit.ended.map(moment),
        "exit_code": code,
        "failed_stage": words.map(|_| "commit"),
        "error_code": words.map(|_| "COMMIT_FAILED"),
        "error_message": words,
    })
}
