//! One run on a static fleet that loses a worker, and its machine with it, in a share of the steps.

use std::collections::BTreeMap;
use std::sync::Arc;

use millrace_schemas::{Stage, TaskKey};
use serde::Serialize;
use tokio::time::Instant;

use super::figures::percent;
use super::ground::{Ground, Progress};
use super::machines::Machines;
use super::play::{Setting, trainers};
use super::work::Begun;
use crate::bench::{mean_and_deviation, median};

/// A worker that was killed.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Killed {
    pub(super) worker: String,
    pub(super) pool: &'static str,
    /// Seconds since the start.
    pub(super) at_s: f64,
}

/// What one run gave. Seconds are those that passed, on the run's clock.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Lost {
    seed: u64,
    /// It was played so many times as fast as in virtual time.
    faster: f64,
    /// Workers of the fleet.
    workers: u32,
    /// In this share of the steps a worker was killed.
    share: f64,
    killed: Vec<Killed>,
    /// Seconds of a step.
    step_s: f64,
    /// Of each task that a killed worker had in flight and that another one did, the seconds from the kill until
    /// it began, by pool.
    recovery_s: BTreeMap<&'static str, Vec<f64>>,
    /// Rollouts dropped, by whatever reason.
    dropped: u64,
    /// Turns that were sampled and belong to no trained rollout.
    wasted_turns: u64,
}

impl Setting {
    /// A run in which a worker at work is killed in `share` of the steps, of each pool in turn. Its
    /// machine is replaced; a second trainer stands by.
    pub(super) async fn fail(&self, ground: Arc<dyn Ground>, share: f64) -> anyhow::Result<Lost> {
        let pools = self.shapes().map(|shape| {
            let pool = Machines::new(ground.host(), ground.pace().clone(), shape, None);
            pool.has(pool.shape.most);
            pool
        });
        let pools: Vec<Arc<Machines>> = pools.into_iter().chain([trainers(&ground, 2)]).collect();
        let began = Instant::now();
        ground.submit(&self.run_file()).await?;
        let mut killer = Killer::new(&*ground, &pools, share);
        let played = self.to_the_end(&*ground, began, async |progress| killer.look(progress).await).await;
        let killed = killer.killed;
        let took = began.elapsed();
        for pool in &pools {
            pool.end().await;
        }
        let Progress { turns, trained_turns, dropped, .. } = played?;
        Ok(Lost {
            seed: self.law.seed,
            faster: self.law.fleet_faster,
            workers: pools.iter().map(|pool| pool.shape.most).sum(),
            share,
            step_s: took.as_secs_f64() / self.steps as f64,
            recovery_s: recovered(&ground.begun()?, &killed),
            killed,
            dropped,
            wasted_turns: turns.saturating_sub(trained_turns),
        })
    }
}

/// Kills a worker at work in a share of the steps.
struct Killer<'a> {
    ground: &'a dyn Ground,
    pools: &'a [Arc<Machines>],
    share: f64,
    /// The step that is played, and since when.
    step: (u64, Instant),
    /// When the next kill is due.
    due: Option<Instant>,
    killed: Vec<Killed>,
}

impl<'a> Killer<'a> {
    fn new(ground: &'a dyn Ground, pools: &'a [Arc<Machines>], share: f64) -> Self {
        Self { ground, pools, share, step: (0, Instant::now()), due: None, killed: Vec::new() }
    }

    async fn look(&mut self, progress: &Progress) -> anyhow::Result<()> {
        let (pace, now) = (self.ground.pace(), Instant::now());
        let (step, since) = self.step;
        if progress.version > step {
            let step = progress.version;
            if pace.draw(&format!("step {step} meets a failure")) < self.share {
                // Somewhere in a step as long as the one before.
                let within = (now - since).mul_f64(pace.draw(&format!("within {step}")));
                self.due = Some(now + within);
            }
            self.step = (step, now);
        }
        if self.due.is_none_or(|due| due > now) {
            return Ok(());
        }
        let pool = &self.pools[self.killed.len() % self.pools.len()];
        let Some(worker) = at_work(&self.ground.begun()?, pool.shape.stages) else { return Ok(()) };
        let at_s = pace.now_s();
        // It may have been killed before, and its place not be taken yet.
        if pool.lose(&worker).await {
            self.due = None;
            self.killed.push(Killed { worker, pool: pool.shape.name, at_s });
        }
        Ok(())
    }
}

/// The worker that began a task of these stages last.
fn at_work(begun: &[Begun], stages: &[Stage]) -> Option<String> {
    let of_stages = begun.iter().filter(|task| stages.contains(&task.key.stage()));
    of_stages.max_by(|a, b| a.at_s.total_cmp(&b.at_s)).map(|task| task.worker.clone())
}

/// What one attempt of a task has in common with the next.
fn stem(key: TaskKey) -> TaskKey {
    match key {
        TaskKey::TrainShard { makes, rank, .. } => TaskKey::TrainShard { makes, rank, attempt: 0 },
        TaskKey::PublishWeights { version, .. } => TaskKey::PublishWeights { version, attempt: 0 },
        other => other,
    }
}

/// Seconds from each kill until another worker began what the killed one had in flight, by pool.
fn recovered(begun: &[Begun], killed: &[Killed]) -> BTreeMap<&'static str, Vec<f64>> {
    let mut of_task: BTreeMap<TaskKey, Vec<&Begun>> = BTreeMap::new();
    for task in begun {
        of_task.entry(stem(task.key)).or_default().push(task);
    }
    let mut recovered: BTreeMap<_, Vec<f64>> = BTreeMap::new();
    for kill in killed {
        for tries in of_task.values() {
            if tries.iter().any(|begun| begun.worker == kill.worker && begun.at_s <= kill.at_s) {
                let again =
                    tries.iter().filter(|begun| begun.worker != kill.worker && begun.at_s > kill.at_s);
                if let Some(first) = again.map(|begun| begun.at_s).min_by(f64::total_cmp) {
                    recovered.entry(kill.pool).or_default().push(first - kill.at_s);
                }
            }
        }
    }
    recovered
}

pub(super) fn table(lost: &[Lost]) -> String {
    let mut rows = String::from(
        "| steps with a failure | workers | killed | s a step | goodput | recovery, s: generate | env | train | rollouts dropped \
         | turns wasted |\n|---|---|---|---|---|---|---|---|---|---|\n",
    );
    let mut shares: Vec<f64> = lost.iter().map(|one| one.share).collect();
    shares.sort_by(f64::total_cmp);
    shares.dedup();
    let with = |share: f64| lost.iter().filter(move |one| one.share == share);
    let of =
        |share: f64, value: fn(&Lost) -> f64| mean_and_deviation(&with(share).map(value).collect::<Vec<_>>());
    let (usual, _) = of(0.0, |one| one.step_s);
    for share in shares {
        let recovery = ["generate", "env", "train"].map(|pool| {
            let of_pool = with(share).filter_map(|one| one.recovery_s.get(pool));
            let seconds: Vec<f64> = of_pool.flatten().copied().collect();
            match seconds.iter().copied().max_by(f64::total_cmp) {
                Some(most) => format!("{:.1}, at most {most:.1}", median(seconds)),
                None => "–".to_owned(),
            }
        });
        let (step, step_d) = of(share, |one| one.step_s);
        rows += &format!(
            "| {:.0} % | {} | {:.0} | {step:.1} ± {step_d:.1} | {} | {} | {:.0} | {:.0} |\n",
            100.0 * share,
            of(share, |one| f64::from(one.workers)).0,
            of(share, |one| one.killed.len() as f64).0,
            percent(usual / step),
            recovery.join(" | "),
            of(share, |one| one.dropped as f64).0,
            of(share, |one| one.wasted_turns as f64).0,
        );
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recovery_is_of_what_the_killed_worker_had_in_flight() {
        let begun =
            |worker: &str, key: &str, at_s| Begun { worker: worker.into(), key: key.parse().unwrap(), at_s };
        let tasks = [
            begun("generate-1", "g0r0a0-s1", 1.0),
            // Done before the kill, so nobody begins it again.
            begun("generate-1", "g0r1a0-s1", 2.0),
            begun("generate-2", "g0r0a0-s1", 9.5),
            // Another's, and a later one.
            begun("generate-2", "g0r2a0-s1", 3.0),
            begun("generate-3", "g0r0a0-s1", 20.0),
            begun("train-1", "s4k0a0", 4.0),
            begun("train-2", "s4k0a1", 8.0),
        ];
        let kill = |worker: &str, pool, at_s| Killed { worker: worker.into(), pool, at_s };
        let killed = [kill("generate-1", "generate", 4.5), kill("train-1", "train", 5.0)];
        let expected = BTreeMap::from([("generate", vec![5.0]), ("train", vec![3.0])]);
        assert_eq!(recovered(&tasks, &killed), expected);
        assert_eq!(at_work(&tasks, &[Stage::Generate]).as_deref(), Some("generate-3"));
        assert_eq!(at_work(&tasks, &[Stage::Reward]), None);
    }
}
