//! What became of the runs, and whether all that must hold of them holds.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use millrace_coordinator::shell::audit::{Claim, audit};
use millrace_queue::{Broker, Objects};
use millrace_schemas::RunSpec;
use millrace_schemas::api::{RunState, Status};
use serde::Serialize;
use tokio::time::{Instant, sleep, timeout};

use super::cost::Trained;
use super::observe::Observer;
use super::player::Player;
use crate::checkers::{self, objects_stand, record};

/// Longer than any lease: what a killed worker held comes back and is dropped as of no use.
const SETTLE: Duration = Duration::from_secs(90);
/// Poll interval.
const LOOK: Duration = Duration::from_millis(200);

/// A run that was played to its end.
#[derive(Debug, Clone, Serialize)]
pub struct Played {
    /// Its seed.
    pub seed: u64,
    /// Seconds from the beginning of the series to its own.
    pub from_s: f64,
    /// Seconds from the beginning of the series to its end.
    pub to_s: f64,
    /// Share of held-out prompts solved by the last version; `None` where none were evaluated.
    pub success: Option<f64>,
    /// Its last status.
    pub status: Status,
}

impl Played {
    /// Seconds that it took.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.to_s - self.from_s
    }
}

/// Plays a run.
///
/// # Errors
/// It is refused, or stuck.
pub async fn play(player: &Player, spec: &RunSpec, began: Instant) -> anyhow::Result<Played> {
    let from_s = began.elapsed().as_secs_f64();
    let status = player.play(spec).await?;
    let to_s = began.elapsed().as_secs_f64();
    tracing::info!(run = %spec.name, state = status.state.name(), seconds = to_s - from_s, "a run is over");
    let success = status.evaluations.last().and_then(|evaluation| evaluation.success);
    Ok(Played { seed: spec.seed, from_s, to_s, success, status })
}

/// Waits until nothing is queued or in flight, then reads and checks all that the runs left: the log, the versions, every
/// object, each snapshot that was named meanwhile. No fault of this harness needs a repair, so no run may have halted.
/// Returns the violations and the trained rollouts.
///
/// # Errors
/// The queue or the object store cannot be read.
pub async fn check(
    player: &Player,
    objects: &Path,
    runs: &[Played],
    observer: &Observer,
) -> anyhow::Result<(Vec<String>, Trained)> {
    settle(player).await;
    let objects = Objects::open(&objects.to_string_lossy())?;
    let broker = Broker::new(player.queue().clone(), objects.clone());
    let mut history = record(&broker).await.context("failed to read what the runs left behind")?;
    (history.policies, history.snapshots) = (observer.policies().seen(), observer.snapshots().seen());
    history.objects = objects_stand::read(&broker, &history.state).await?;
    history.planted = Some(BTreeSet::new());
    let mut findings: Vec<String> = checkers::check(&history).iter().map(ToString::to_string).collect();
    for Played { status, .. } in runs {
        let run = &status.run;
        if status.state != RunState::Finished {
            findings.push(format!("{run}: it ended {} because {:?}", status.state.name(), status.reason));
        }
        if !status.ledger.balanced() {
            findings.push(format!("{run}: the books do not balance: {:?}", status.ledger));
        }
        let recount = audit(&objects, Claim::of(status), status.state.is_over()).await?;
        findings.extend(recount.findings.into_iter().map(|finding| format!("{run}: {finding}")));
    }
    let trained = history
        .runs()
        .flat_map(|(run, _)| history.trained(run).map(|(_, _, rollout)| (run.clone(), rollout.id)));
    Ok((findings, trained.collect()))
}

/// Waits until no task is left, for at most [`SETTLE`]: what is there after that is a finding.
async fn settle(player: &Player) {
    let empty = async {
        while !matches!(player.queue().tasks_left().await, Ok(0)) {
            sleep(LOOK).await;
        }
    };
    let _ = timeout(SETTLE, empty).await;
}
