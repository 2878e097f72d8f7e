//! What a `kill -9` in the middle of a run loses, counted from the log once more: of a run that
//! learns, on real processes and with our own engine. Beside it, what a buffer in memory would have
//! held at that moment.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, ensure};
use millrace_queue::{Broker, Objects};
use millrace_schemas::{PolicyVersion, RolloutId, Stage, TaskKey};
use serde::Serialize;
use tokio::time::Instant;

use crate::bench::drain::{self, account};
use crate::chaos::observe::{ObservedTurn, Observer};
use crate::chaos::player::Player;
use crate::chaos::result;
use crate::chaos::role::Role;
use crate::chaos::stack::{Stack, StackOptions};
use crate::checkers;

/// A batch waits so long for rollouts that would become stale; longer than any lease.
const PATIENCE_MS: u64 = 120_000;

/// A process that is killed in a run of its own.
#[derive(Debug, Clone, Copy)]
pub(super) struct Case {
    name: &'static str,
    /// `None`: nobody is killed, which shows what a run loses by itself.
    role: Option<Role>,
    /// Whether batches wait for long rollouts; otherwise they go on without them, which is the
    /// default.
    waits: bool,
}

const CASES: [Case; 7] = [
    Case { name: "nobody-goes-on", role: None, waits: false },
    Case { name: "generate", role: Some(Role::Generate), waits: true },
    Case { name: "generate-goes-on", role: Some(Role::Generate), waits: false },
    Case { name: "env", role: Some(Role::Env), waits: true },
    Case { name: "train", role: Some(Role::Train), waits: true },
    Case { name: "coordinator", role: Some(Role::Coordinator), waits: true },
    Case { name: "nats-server", role: Some(Role::Server), waits: true },
];

pub(super) const HEAD: &str = "| killed | turns finished before | of them lost | done twice | unfinished turns of the killed process, at \
     most | their seconds | a buffer in memory held: turns | their tokens | trajectory-seconds | findings |\n\
     |---|---|---|---|---|---|---|---|---|---|\n";

/// What one run gave.
#[derive(Debug, Serialize)]
pub(super) struct Lost {
    killed: &'static str,
    /// Whether batches wait for long rollouts.
    waits: bool,
    /// Seconds of the run.
    wall_s: f64,
    /// Tasks that were done to their end once more, in the whole run.
    done_twice: u64,
    /// Tokens of the whole run that a turn as it ended does not have: of parts that were handed back, and of turns that
    /// ended more than once. Tokens of turns that no version was trained on are not among them.
    lost_tokens: u64,
    #[serde(flatten)]
    count: Count,
    /// What the checkers found.
    findings: Vec<String>,
}

/// The count at the moment of the kill.
#[derive(Debug, Default, PartialEq, Serialize)]
struct Count {
    /// Turns that were in the log by then.
    finished_turns: u64,
    /// Of them, those of rollouts that no version was ever trained on.
    finished_turns_lost: u64,
    /// Tasks of the killed process's stage that were put and not in the log. Some of them waited in
    /// the queue, so this is the most that was lost.
    unfinished: u64,
    /// Their seconds since they were put.
    unfinished_s: f64,
    /// Finished turns of rollouts that no version had been trained on by then: what a buffer in
    /// memory held.
    held_turns: u64,
    held_tokens: u64,
    /// Seconds of those rollouts from their first outcome to the kill.
    held_s: f64,
}

/// The roles that `names` names.
///
/// # Errors
/// One is none of them.
pub(super) fn cases(names: &[String]) -> anyhow::Result<Vec<Case>> {
    if names.is_empty() {
        return Ok(CASES.to_vec());
    }
    if names == ["none"] {
        return Ok(Vec::new());
    }
    let find = |name: &String| {
        let known = CASES.map(|case| case.name).join(", ");
        let found = CASES.into_iter().find(|case| case.name == name);
        found.with_context(|| format!("--kills {name}: name some of {known}, or none"))
    };
    names.iter().map(find).collect()
}

/// Plays a run in whose middle a process is killed and started again at once.
///
/// # Errors
/// The run cannot be played, or ended before the kill.
pub(super) async fn play(dir: &Path, case: Case, steps: u64) -> anyhow::Result<Lost> {
    let Case { name, role, waits } = case;
    let options = StackOptions {
        processes: BTreeMap::from([(Role::Coordinator, 1), (Role::Env, 1)]),
        ..StackOptions::in_folder(dir.join(name))
    };
    let stack = Stack::start(&options).await?;
    let player = Player::connect(stack.url(), "durable").await?;
    let began = Instant::now();
    let observer = Observer::start(stack.url(), &stack.objects, began).await?;
    let spec = drain::spec("durable", steps, 1, if waits { PATIENCE_MS } else { 0 })?;
    let playing = result::play(&player, &spec, began);
    let mut playing = std::pin::pin!(playing);
    let member = role.and_then(|role| stack.of(role).next());
    let half = PolicyVersion(steps / 2);
    let killing = async {
        drain::until(&player, |status| status.version >= half).await;
        // The others have no task long enough to be reported.
        if let (Some(Role::Generate), Some(member)) = (role, member) {
            drain::has_a_task(&player, member).await?;
        }
        let at_s = began.elapsed().as_secs_f64();
        if let Some(member) = member {
            member.process.kill().await;
            member.process.start();
        }
        anyhow::Ok(at_s)
    };
    let at_s = tokio::select! {
        _ = &mut playing => anyhow::bail!("the run ended before the kill; give it more --steps"),
        at_s = killing => at_s?,
    };
    let runs = [playing.await?];
    let (findings, _) = result::check(&player, &stack.objects, &runs, &observer).await?;
    let broker = Broker::new(player.queue().clone(), Objects::open(&stack.objects.to_string_lossy())?);
    let history = checkers::record(&broker).await?;
    let trained = history.trained(&spec.name).map(|(version, _, rollout)| (rollout.id, version)).collect();
    let outcomes = drain::outcomes(&history);
    let counters = &runs[0].status.counters;
    let wasted = counters.turns.saturating_sub(counters.trained_turns);
    let account = account::Account::of(outcomes, wasted);
    let seen = observer.stop();
    ensure!(!seen.is_empty(), "the log was not observed");
    Ok(Lost {
        killed: name,
        waits,
        wall_s: runs[0].seconds(),
        done_twice: account.done_twice,
        lost_tokens: account.lost_tokens,
        count: Count::at(at_s, role.map_or(&[], Role::stages), &seen, &trained),
        findings,
    })
}

/// A rollout, as far as the log had it at the moment of the kill.
#[derive(Default)]
struct Begun {
    first_s: f64,
    last_s: f64,
    last: Option<Stage>,
    turns: u64,
    tokens: u64,
    /// The stage of its next outcome.
    next: Option<Stage>,
}

impl Begun {
    /// What it waited for at the kill. One that was given up has no next outcome; it waited for a
    /// turn, if it did for anything.
    fn waited_for(&self, is_trained: bool) -> Option<Stage> {
        let given_up = !is_trained && self.last == Some(Stage::EnvStep);
        self.next.or_else(|| given_up.then_some(Stage::Generate))
    }
}

impl Count {
    /// `seen` in the order of the log; `trained`: the version that was trained on a rollout.
    fn at(
        at_s: f64,
        stages: &[Stage],
        seen: &[ObservedTurn],
        trained: &BTreeMap<RolloutId, PolicyVersion>,
    ) -> Self {
        let committed: BTreeSet<PolicyVersion> = seen
            .iter()
            .filter(|outcome| outcome.at_s <= at_s)
            .filter_map(|outcome| match outcome.key {
                TaskKey::PublishWeights { version, .. } => Some(PolicyVersion(version)),
                _ => None,
            })
            .collect();
        let mut count = Self::default();
        for (id, begun) in rollouts(at_s, seen) {
            let version = trained.get(&id);
            count.finished_turns += begun.turns;
            if version.is_none() {
                count.finished_turns_lost += begun.turns;
            }
            if !version.is_some_and(|version| committed.contains(version)) {
                count.held_turns += begun.turns;
                count.held_tokens += begun.tokens;
                count.held_s += at_s - begun.first_s;
            }
            if begun.waited_for(version.is_some()).is_some_and(|stage| stages.contains(&stage)) {
                count.unfinished += 1;
                count.unfinished_s += at_s - begun.last_s;
            }
        }
        count
    }
}

/// The rollouts that had begun, each outcome once.
fn rollouts(at_s: f64, seen: &[ObservedTurn]) -> BTreeMap<RolloutId, Begun> {
    let (mut rollouts, mut known) = (BTreeMap::<RolloutId, Begun>::new(), BTreeSet::new());
    for ObservedTurn { at_s: when_s, key, tokens, .. } in
        seen.iter().filter(|outcome| known.insert(outcome.key))
    {
        let Some(id) = key.rollout() else { continue };
        if *when_s <= at_s {
            let begun = rollouts.entry(id).or_insert_with(|| Begun { first_s: *when_s, ..Begun::default() });
            (begun.last_s, begun.last) = (*when_s, Some(key.stage()));
            begun.turns += u64::from(key.stage() == Stage::Generate);
            begun.tokens += tokens;
        } else if let Some(begun) = rollouts.get_mut(&id) {
            begun.next.get_or_insert(key.stage());
        }
    }
    rollouts
}

impl Lost {
    pub(super) fn line(&self) -> String {
        let Self { killed, waits, done_twice, findings, count, .. } = self;
        let Count { finished_turns, finished_turns_lost, unfinished, unfinished_s, .. } = count;
        let Count { held_turns, held_tokens, held_s, .. } = count;
        format!(
            "| {killed}{} | {finished_turns} | {finished_turns_lost} | {done_twice} | {unfinished} | {unfinished_s:.1} | {held_turns} | \
             {held_tokens} | {held_s:.0} | {} |\n",
            if *waits { "" } else { ", batches go on without it" },
            findings.len(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(at_s: f64, key: &str) -> ObservedTurn {
        ObservedTurn { at_s, run: "r".parse().unwrap(), key: key.parse().unwrap(), tokens: 5 }
    }

    /// Rollout g1 was trained before the kill, g2 after it, g3 never; g2 had a turn in flight.
    #[test]
    fn what_is_finished_held_and_unfinished_is_counted_at_the_kill() {
        let log = [
            seen(1.0, "g1r0a0-s1"),
            seen(2.0, "g2r0a0-s1"),
            seen(3.0, "g3r0a0-s1"),
            seen(4.0, &TaskKey::PublishWeights { version: 1, attempt: 0 }.to_string()),
            seen(7.0, "g2r0a0-s2"),
            seen(8.0, "g2r0a0-s2"),
        ];
        let [one, two] = [1, 2].map(|group| RolloutId { group, index: 0, attempt: 0 });
        let trained = BTreeMap::from([(one, PolicyVersion(1)), (two, PolicyVersion(2))]);
        let count = Count::at(5.0, &[Stage::Generate], &log, &trained);
        assert_eq!((count.finished_turns, count.finished_turns_lost), (3, 1));
        assert_eq!((count.held_turns, count.held_tokens, count.held_s), (2, 10, 5.0));
        assert_eq!((count.unfinished, count.unfinished_s), (1, 3.0));
        assert_eq!(Count::at(5.0, &[Stage::EnvStep], &log, &trained).unfinished, 0);
    }
}
