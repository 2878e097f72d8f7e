//! What a drain costs: workers of a run that learns, on real processes and with our own engine, are
//! told to leave again and again in the middle of their tasks. Counted from the log, and from what
//! the engines say of tokens that nobody took.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use millrace_queue::port::Notices;
use millrace_queue::{Broker, Objects};
use millrace_schemas::api::{RunRequest, Status};
use millrace_schemas::notice::WorkerNotice;
use millrace_schemas::subjects::NOTICE_WORKERS;
use millrace_schemas::{Event, PolicyVersion, RunSpec};
use serde::Serialize;
use tokio::time::{Instant, sleep, timeout};

use super::{mean_and_deviation, publish};
use crate::chaos::observe::Observer;
use crate::chaos::player::{self, Player};
use crate::chaos::result;
use crate::chaos::role::Role;
use crate::chaos::stack::{Member, Stack, StackOptions};
use crate::checkers::{self, History};
use account::{Account, Done};

pub mod account;

/// A worker that has no task for so long is drained idle.
const IDLE: Duration = Duration::from_secs(5);
/// Between the start of a drained worker and its next drain, at least.
const BETWEEN: Duration = Duration::from_millis(500);
/// Workers that generate: one samples while the other is away.
const GENERATE: usize = 2;

/// How to measure.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Drains of a role, while its run lasts
    #[arg(long, default_value_t = 20)]
    drains: u64,
    /// Train steps of a run
    #[arg(long, default_value_t = 30)]
    steps: u64,
    /// Only these cases, by name. Default: all
    #[arg(long, value_delimiter = ',')]
    cases: Vec<String>,
    /// The seed of the runs
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder for everything
    #[arg(long, default_value = "target/drain")]
    dir: PathBuf,
    /// Where the figures go
    #[arg(long, default_value = "target/bench/drain.json")]
    out: PathBuf,
}

/// A role that is drained, and its grace period.
struct Case {
    name: &'static str,
    role: Option<Role>,
    grace_s: &'static str,
}

const CASES: [Case; 6] = [
    Case { name: "nobody", role: None, grace_s: "20" },
    Case { name: "generate", role: Some(Role::Generate), grace_s: "20" },
    Case { name: "generate-at-once", role: Some(Role::Generate), grace_s: "0" },
    Case { name: "env", role: Some(Role::Env), grace_s: "20" },
    Case { name: "train", role: Some(Role::Train), grace_s: "20" },
    Case { name: "publish", role: Some(Role::Publish), grace_s: "20" },
];

/// What one run gave.
#[derive(Debug, Clone, Serialize)]
struct Figures {
    case: &'static str,
    grace_s: &'static str,
    /// Drains, and those of a worker that had a task in flight.
    drains: u64,
    busy: u64,
    /// Seconds from SIGTERM to the process's end, as a mean.
    leaves_s: f64,
    /// Seconds of the run.
    wall_s: f64,
    #[serde(flatten)]
    account: Account,
    /// Tokens that an engine sampled and nobody took.
    dropped_tokens: u64,
    /// What the checkers found.
    findings: Vec<String>,
}

/// Runs the benchmark.
///
/// # Errors
/// A run cannot be played, a case is unknown, or a drain lost something.
pub async fn run(args: &Args) -> anyhow::Result<()> {
    for name in &args.cases {
        let known = CASES.map(|case| case.name);
        ensure!(known.contains(&name.as_str()), "--cases {name}: name some of {}", known.join(", "));
    }
    let mut all = Vec::new();
    for case in CASES.iter().filter(|case| args.cases.is_empty() || args.cases.iter().any(|c| c == case.name))
    {
        let figures = args.play(case).await.with_context(|| format!("case {}", case.name))?;
        println!("{figures:?}");
        all.push(figures);
    }
    publish(&args.out, &all, &table(&all))?;
    let lossy: Vec<_> = all.iter().filter(|figures| figures.lost()).map(|figures| figures.case).collect();
    ensure!(lossy.is_empty(), "drains lost something in the cases {}", lossy.join(", "));
    Ok(())
}

impl Args {
    async fn play(&self, case: &Case) -> anyhow::Result<Figures> {
        let folder = self.dir.join(case.name);
        let grace = vec!["--grace".to_owned(), case.grace_s.to_owned()];
        let options = StackOptions {
            processes: BTreeMap::from([(Role::Coordinator, 1), (Role::Generate, GENERATE)]),
            arguments: case.role.map(|role| (role, grace)).into_iter().collect(),
            ..StackOptions::in_folder(folder.clone())
        };
        let stack = Stack::start(&options).await?;
        let player = Player::connect(stack.url(), "drain").await?;
        let began = Instant::now();
        let observer = Observer::start(stack.url(), &stack.objects, began).await?;
        let spec = spec("drained", self.steps, self.seed, 0)?;
        let playing = result::play(&player, &spec, began);
        let mut playing = std::pin::pin!(playing);
        let mut drained = Drained::default();
        let played = tokio::select! {
            played = &mut playing => played?,
            failed = drained.drain(&stack, &player, case.role, self.drains) => {
                failed?;
                playing.await?
            }
        };
        drained.all_are_up(&stack);
        let runs = [played];
        let (findings, _) = result::check(&player, &stack.objects, &runs, &observer).await?;
        let broker = Broker::new(player.queue().clone(), Objects::open(&stack.objects.to_string_lossy())?);
        let history = checkers::record(&broker).await?;
        let counters = &runs[0].status.counters;
        let wasted = counters.turns.saturating_sub(counters.trained_turns);
        Ok(Figures {
            case: case.name,
            grace_s: case.grace_s,
            drains: drained.took_s.len() as u64,
            busy: drained.busy,
            leaves_s: mean_and_deviation(&drained.took_s).0,
            wall_s: runs[0].seconds(),
            account: Account::of(outcomes(&history), wasted),
            dropped_tokens: dropped_tokens(&folder.join("logs"))?,
            findings,
        })
    }
}

/// Frozen lake, with turns of 48 tokens, so that a drain comes in the middle of many. The last one
/// of a turn is the action. `patience_ms`: for how long a batch waits for rollouts that would
/// become stale.
pub(super) fn spec(name: &str, steps: u64, seed: u64, patience_ms: u64) -> anyhow::Result<RunSpec> {
    let text = format!(
        r#"
        name = "{name}"
        steps = {steps}
        model = {{ kind = "decoder", vocabulary = 68, feed_forward = 172, context = 480 }}
        environment = {{ name = "frozen_lake", size = 4, max_turns = 8, surroundings = true }}
        rewards = [{{ rule = "env_return" }}]
        evaluate = {{ prompts = 0 }}
        [rollout]
        groups_per_step = 4
        group_size = 8
        alpha = 1.0
        max_new_tokens = 48
        actions_only = true
        patience_ms = {patience_ms}
        "#
    );
    player::spec(&millrace_schemas::submit::from_toml(&text)?, seed)
}

/// The outcomes of a log, in its order.
pub(super) fn outcomes(history: &History) -> impl Iterator<Item = Done> {
    history.log.iter().filter_map(|entry| match &entry.event {
        Some(Event::Outcome(outcome)) => Some(Done::of(outcome)),
        _ => None,
    })
}

/// The drains of a run.
#[derive(Debug, Default)]
struct Drained {
    took_s: Vec<f64>,
    busy: u64,
    /// The version before the last drain of a trainer.
    made: Option<PolicyVersion>,
}

impl Drained {
    /// Drains the workers of a role in turn. Never ends without a role.
    async fn drain(
        &mut self,
        stack: &Stack,
        player: &Player,
        role: Option<Role>,
        times: u64,
    ) -> anyhow::Result<()> {
        let Some(role) = role else { return std::future::pending().await };
        // Before the first turn there is nothing to lose.
        until(player, |status| status.counters.turns > 0).await;
        let members: Vec<&Member> = stack.of(role).collect();
        for (_, member) in (0..times).zip(members.iter().cycle()) {
            member.process.up().await;
            if role == Role::Train {
                // A step is made between two drains: the only trainer must not be drained out of
                // each.
                let made = self.made;
                self.made = until(player, |status| Some(status.version) > made).await;
            }
            self.busy += u64::from(has_a_task(player, member).await?);
            let asked = Instant::now();
            member.process.drain().await;
            self.took_s.push(asked.elapsed().as_secs_f64());
            member.process.start();
            sleep(BETWEEN).await;
        }
        Ok(())
    }

    /// A run that ended during a drain left its worker down.
    fn all_are_up(&self, stack: &Stack) {
        stack.members.iter().for_each(|member| member.process.start());
    }
}

/// Waits until the run is so far. Returns its version then.
pub(super) async fn until(player: &Player, is_so_far: impl Fn(&Status) -> bool) -> Option<PolicyVersion> {
    loop {
        if let Ok(Some(status)) = player.call::<Status>("status", &RunRequest::default()).await
            && is_so_far(&status)
        {
            return Some(status.version);
        }
        sleep(BETWEEN).await;
    }
}

/// Waits until the worker reports a task in flight, for at most [`IDLE`].
pub(super) async fn has_a_task(player: &Player, member: &Member) -> anyhow::Result<bool> {
    let mut notices = player.queue().listen(NOTICE_WORKERS).await?;
    let busy = async {
        while let Some(notice) = notices.next().await {
            let notice = serde_json::from_slice::<WorkerNotice>(&notice.payload);
            let is_busy = notice.is_ok_and(|notice| {
                notice.worker == member.process.name()
                    && notice.stages.values().any(|stage| stage.in_hand > 0)
            });
            if is_busy {
                return true;
            }
        }
        false
    };
    Ok(timeout(IDLE, busy).await.unwrap_or(false))
}

/// The sum over the logs of the workers of what their engines say.
fn dropped_tokens(logs: &Path) -> anyhow::Result<u64> {
    let fail = || format!("failed to read logs={}", logs.display());
    let mut sum = 0;
    for file in std::fs::read_dir(logs).with_context(fail)? {
        sum += account::dropped_tokens(&String::from_utf8_lossy(
            &std::fs::read(file?.path()).with_context(fail)?,
        ));
    }
    Ok(sum)
}

impl Figures {
    fn lost(&self) -> bool {
        self.account.lost() || self.dropped_tokens > 0 || !self.findings.is_empty()
    }
}

fn table(all: &[Figures]) -> String {
    let mut rows = String::from(
        "| drained | grace | drains | with a task | seconds to leave | finished turns lost | turns handed back | their tokens | \
         sampled tokens lost | done twice | seconds a run |\n|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for figures in all {
        let Figures { case, grace_s, drains, busy, leaves_s, wall_s, account, dropped_tokens, .. } = figures;
        let Account { finished_turns_lost, handed_back, handed_back_tokens, lost_tokens, done_twice, .. } =
            account;
        let leaves = if *drains > 0 { format!("{leaves_s:.1}") } else { "–".to_owned() };
        rows += &format!(
            "| {case} | {grace_s} s | {drains} | {busy} | {leaves} | {finished_turns_lost} | {handed_back} | \
             {handed_back_tokens} | {} | {done_twice} | {wall_s:.0} |\n",
            lost_tokens + dropped_tokens
        );
    }
    rows
}
