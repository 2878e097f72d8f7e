//! `millrace status`.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use millrace_schemas::api::{Ledger, RunRequest, RunState, Status, StoredStatus};
use millrace_schemas::counters::RunCounters;
use millrace_schemas::limits::WORKER_REPORT_MS;
use millrace_schemas::notice::{StageCounters, WorkerNotice};
use millrace_schemas::subjects::NOTICE_WORKERS;
use millrace_schemas::{RunId, Stage};
use tokio::time::{Instant, timeout};

use super::connect::{Api, ConnectionArgs};
use super::domains;
use super::evaluation;
use super::plan::{RunFigures, hint};
use super::term::{by_reason, duration, histogram, percent, say, thousands};
use super::up::reopen::Asks;
use super::waits::{Waits, is_quiet, read_notice};

/// Long enough for two notices of each worker.
const LISTEN: Duration = Duration::from_millis(2 * WORKER_REPORT_MS + 200);

/// Fewer steps say nothing of how busy workers are.
const MEASURABLE_STEPS: u64 = 3;

/// Arguments of `millrace status`.
#[derive(Debug, clap::Args)]
pub(super) struct StatusArgs {
    /// The run; may be left out where there is only one
    run: Option<RunId>,
    /// Print the coordinator's response as JSON
    #[arg(long)]
    json: bool,
    /// List the workers too, with what each does now
    #[arg(long, conflicts_with = "json")]
    workers: bool,
}

impl StatusArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> Result<ExitCode> {
        let api = connection.reading(Asks::Coordinator).await?;
        let status: Status = api.call("status", &RunRequest { run: self.run }).await?;
        if self.json {
            say(serde_json::to_string_pretty(&status)?);
            return Ok(ExitCode::SUCCESS);
        }
        lines(&status).iter().for_each(say);
        // Shares of the time need steps.
        let plannable = status.state == RunState::Running && status.version.0 > MEASURABLE_STEPS;
        if self.workers || is_quiet(&status) || plannable {
            let (waits, workers) = listen(&api).await?;
            if self.workers || is_quiet(&status) {
                let waits = waits.all(Instant::now(), &status);
                waits.iter().for_each(|wait| say(line("waits", &wait.to_string())));
            }
            if plannable {
                busy_lines(&status, &workers).iter().for_each(say);
            }
            let workers = workers.values().filter(|_| self.workers);
            workers.for_each(|worker| say(line("worker", &doing(worker))));
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The status of a run, and the last notice of each worker.
///
/// # Errors
/// No coordinator answers, or it knows no such run.
pub(super) async fn with_workers(
    connection: &ConnectionArgs,
    run: Option<RunId>,
) -> Result<(Status, BTreeMap<String, WorkerNotice>)> {
    let api = connection.api().await?;
    let status: Status = api.call("status", &RunRequest { run }).await?;
    let (_, workers) = listen(&api).await?;
    Ok((status, workers))
}

/// How busy workers are in this run's steps, and what to do if one side idles. Empty where it cannot
/// be known: workers are away, or do several stages in turn.
fn busy_lines(status: &Status, workers: &BTreeMap<String, WorkerNotice>) -> Vec<String> {
    let Ok(figures) = RunFigures::of_status(status, workers) else { return vec![] };
    let (generate, train) = figures.busy();
    let shares = format!("generate {}, train {} of the time", percent(generate), percent(train));
    let hint = hint(generate, train, status.run.as_str());
    [Some(line("busy", &shares)), hint.map(|hint| line("idle", &hint))].into_iter().flatten().collect()
}

/// What workers wait for, and the last notice of each, from what they publish while this listens.
async fn listen(api: &Api) -> Result<(Waits, BTreeMap<String, WorkerNotice>)> {
    let (mut workers, mut waits) = (api.listen(NOTICE_WORKERS).await?, Waits::default());
    let mut notices = BTreeMap::new();
    let listening = async {
        while let Some(message) = workers.next().await {
            if let Some(notice) = read_notice(&message.payload) {
                notices.insert(notice.worker.clone(), notice.clone());
                waits.take(Instant::now(), notice);
            }
        }
    };
    // The timeout is the usual end.
    let _ = timeout(LISTEN, listening).await;
    Ok((waits, notices))
}

/// `flexible-0 trains: generate 0 in flight, 812 done; train_shard 1 in flight, 7 done`. A device
/// that is not shared has no verb.
fn doing(worker: &WorkerNotice) -> String {
    let verb = match worker.device {
        _ if worker.stands_by => " stands by",
        _ if worker.leaving => " leaves",
        Some(device) => return format!("{} {}: {}", worker.worker, device.name(), tasks(worker)),
        None => "",
    };
    format!("{}{verb}: {}", worker.worker, tasks(worker))
}

fn tasks(worker: &WorkerNotice) -> String {
    let of = |(stage, counters): (&Stage, &StageCounters)| {
        format!("{stage} {} in flight, {} done", thousands(counters.in_hand), thousands(counters.done))
    };
    worker.stages.iter().map(of).collect::<Vec<_>>().join("; ")
}

fn line(label: &str, words: &str) -> String {
    format!("  {label:<11} {words}")
}

/// A run as lines of label and text.
fn lines(status: &Status) -> Vec<String> {
    let mut lines = vec![headline(status)];
    let mut line = |label: &str, words: String| lines.push(line(label, &words));
    if let Some(reason) = &status.reason {
        line("reason", reason.clone());
    }
    if let Some(remedy) = &status.remedy {
        line("remedy", remedy.clone());
    }
    if let Some(last) = status.curve.last() {
        line("success", format!("{} in the last step, reward {:.3}", percent(last.success), last.reward));
    }
    for evaluation in &status.evaluations {
        line("held out", format!("v{}: {}", evaluation.version, evaluation::words(evaluation)));
    }
    line(
        "window",
        format!(
            "{} groups in flight + {} ready, of {}",
            status.groups_in_flight, status.groups_ready, status.window_groups
        ),
    );
    if let Some(words) = held(status) {
        line("held", words);
    }
    line("staleness", format!("{} (bound {})", histogram(&status.staleness), status.alpha.ceil()));
    let counters = &status.counters;
    line("tokens", format!("{} in {} turns", thousands(counters.sampled_tokens), thousands(counters.turns)));
    if let Some(words) = context(counters) {
        line("context", words);
    }
    line("tasks", by_reason(&status.tasks));
    line("dropped", by_reason(&status.ledger.dropped));
    if let Some(words) = stale(status) {
        line("stale", words);
    }
    if let Some(words) = surplus(&status.ledger, counters) {
        line("surplus", words);
    }
    if let Some(stored) = &status.stored_turns {
        line("stored", starts(stored));
    }
    for domain in &status.domains {
        line("domain", domains::words(domain));
    }
    line("balanced", if domains::balanced(status) { "yes".into() } else { "NO".into() });
    lines
}

/// `1m03s in all, now for 4s: full batches wait for groups that would become too old
/// (rollout.patience_ms)`; `None` if none ever waited.
fn held(status: &Status) -> Option<String> {
    let seconds = |ms: u64| duration(ms as f64 / 1e3);
    let (before, now) = (status.counters.held_ms, status.held_for_ms);
    let now = if now > 0 { format!(", now for {}", seconds(now)) } else { String::new() };
    (before > 0 || !now.is_empty()).then(|| {
        let all = seconds(before + status.held_for_ms);
        format!(
            "{all} in all{now}: full batches wait for groups that would become too old (rollout.patience_ms)"
        )
    })
}

/// `6.0 % of the rollouts began too long ago and were dropped, the longest first; …`; `None` where
/// few were, or where batches wait already.
fn stale(status: &Status) -> Option<String> {
    const FEW: f64 = 0.01;
    let dropped = *status.ledger.dropped.get("stale")?;
    let share = dropped as f64 / status.ledger.admitted.max(1) as f64;
    let waits = status.counters.held_ms + status.held_for_ms > 0;
    (share > FEW && !waits).then(|| {
        format!(
            "{} of the rollouts began too long ago and were dropped, the longest first; with \
             rollout.patience_ms full batches wait for them",
            percent(share)
        )
    })
}

/// `12 rollouts, of 5.1 turns by then; those trained had 4.2`: the first groups to finish have
/// fewer turns, so dropping the others is biased.
pub(super) fn surplus(ledger: &Ledger, counters: &RunCounters) -> Option<String> {
    let dropped = *ledger.dropped.get("surplus")?;
    let mean = |turns: u64, rollouts: u64| turns as f64 / rollouts.max(1) as f64;
    let (theirs, trained) =
        (mean(counters.surplus_turns, dropped), mean(counters.trained_turns, ledger.trained));
    Some(format!(
        "{} rollouts, of {theirs:.1} turns by then; those trained had {trained:.1}",
        thousands(dropped)
    ))
}

/// `12 groups started from turns of earlier rollouts, 3.0 turns before the goal; 4 are kept, 1
/// learnt from the beginning`.
pub(super) fn starts(stored: &StoredStatus) -> String {
    let StoredStatus { rollouts, groups, learnt, mean_turns_left } = stored;
    format!(
        "{} groups started from turns of earlier rollouts, {mean_turns_left:.1} turns before the goal; {rollouts} are kept, \
         {learnt} learnt from the beginning",
        thousands(*groups)
    )
}

/// `1,200 tokens computed, 4,800 (80 %) kept from earlier turns and other samples`; `None` before
/// the first.
pub(super) fn context(counters: &RunCounters) -> Option<String> {
    let (computed, kept) = (counters.prefill_tokens, counters.cached_tokens);
    let share = percent(kept as f64 / (computed + kept).max(1) as f64);
    (computed + kept > 0).then(|| {
        let (computed, kept) = (thousands(computed), thousands(kept));
        format!("{computed} tokens computed, {kept} ({share}) kept from earlier turns and other samples")
    })
}

/// `name: running, v12 of 50 after 1m03s`.
pub(super) fn headline(status: &Status) -> String {
    let seconds = status.now_unix_ms.saturating_sub(status.started_unix_ms) as f64 / 1e3;
    let (state, version, steps) = (status.state.name(), status.version, status.steps);
    format!("{}: {state}, {version} of {steps} after {}", status.run, duration(seconds))
}

#[cfg(test)]
mod tests {
    use millrace_schemas::notice::DeviceUse;

    use super::*;

    #[test]
    fn a_worker_in_words() {
        let counters = StageCounters { in_hand: 3, done: 1_200, ..StageCounters::default() };
        let worker = WorkerNotice {
            worker: "flexible-0".into(),
            device: Some(DeviceUse::Shrinks),
            stages: [(Stage::Generate, counters)].into(),
            ..WorkerNotice::default()
        };
        assert_eq!(doing(&worker), "flexible-0 shrinks: generate 3 in flight, 1,200 done");
        let leaving = WorkerNotice { leaving: true, ..worker.clone() };
        assert!(doing(&leaving).starts_with("flexible-0 leaves: "));
        assert!(doing(&WorkerNotice { device: None, ..worker }).starts_with("flexible-0: "));
    }

    #[test]
    fn what_full_batches_waited_for_in_words() {
        let mut status = crate::sample::status(10);
        assert_eq!(held(&status), None);
        (status.counters.held_ms, status.held_for_ms) = (59_000, 4_000);
        assert!(
            held(&status).is_some_and(|words| words.starts_with("1m03s in all, now for 4s: full batches"))
        );
        status.held_for_ms = 0;
        assert!(held(&status).is_some_and(|words| words.starts_with("59s in all: full batches")));
    }

    #[test]
    fn many_stale_rollouts_have_a_remedy() {
        let mut status = crate::sample::status(10);
        status.ledger.admitted = 1_000;
        status.ledger.dropped.insert("stale".into(), 10);
        assert_eq!(stale(&status), None);
        status.ledger.dropped.insert("stale".into(), 60);
        assert!(stale(&status).is_some_and(|words| words.starts_with("6.0 % of the rollouts")));
        status.counters.held_ms = 1;
        assert_eq!(stale(&status), None, "they wait");
    }

    #[test]
    fn a_run_in_words() {
        let lines = lines(&crate::sample::status(10));
        assert_eq!(lines[0], "sample: running, v10 of 100 after 10s");
        assert!(lines.iter().any(|line| line.contains("0: 75.0 %, 1: 25.0 % (bound 1)")), "{lines:#?}");
        assert!(lines.iter().any(|line| line.contains("v10: 50.0 % of 256 held-out prompts solved (standard error 3.1 %")), "{lines:#?}");
    }
}
