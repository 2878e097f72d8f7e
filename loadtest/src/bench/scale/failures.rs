//! One run on a static fleet that loses a worker, and its machine with it, in a share of the steps.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::ensure;
use millrace_schemas::{Stage, TaskKey};
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::figures::percent;
use super::ground::Ground;
use super::machines::Machines;
use super::play::{LONGEST, LOOK, Setting, trainers};
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
        let played = self.killing(&*ground, &pools, share).await;
        let took = began.elapsed();
        for pool in &pools {
            pool.end().await;
        }
        let (killed, wasted_turns, dropped) = played?;
        Ok(Lost {
            seed: self.law.seed,
            faster: self.law.fleet_faster,
            workers: pools.iter().map(|pool| pool.shape.most).sum(),
            share,
            step_s: took.as_secs_f64() / self.steps as f64,
            recovery_s: recovered(&ground.begun()?, &killed),
            killed,
            dropped,
            wasted_turns,
        })
    }

    /// Plays the run to its end. Returns who was killed, the turns wasted and the rollouts dropped.
    async fn killing(
        &self,
        ground: &dyn Ground,
        pools: &[Arc<Machines>],
        share: f64,
    ) -> anyhow::Result<(Vec<Killed>, u64, u64)> {
        let longest = Instant::now() + LONGEST.div_f64(self.law.fleet_faster);
        let pace = ground.pace();
        let (mut killed, mut version, mut since) = (Vec::new(), 0, Instant::now());
        let mut due = None;
        loop {
            let progress = ground.progress().await?;
            if progress.over {
                let wasted = progress.turns.saturating_sub(progress.trained_turns);
                return Ok((killed, wasted, progress.dropped));
            }
            ensure!(Instant::now() < longest, "the run did not end within {} s", LONGEST.as_secs());
            if progress.version > version {
                version = progress.version;
                if pace.draw(&format!("step {version} meets a failure")) < share {
                    // Somewhere in a step as long as the one before.
                    due = Some(
                        Instant::now() + since.elapsed().mul_f64(pace.draw(&format!("within {version}"))),
                    );
                }
                since = Instant::now();
            }
            if due.is_some_and(|due| due <= Instant::now()) {
                let pool = &pools[killed.len() % pools.len()];
                if let Some(worker) = at_work(&ground.begun()?, pool.shape.stages) {
                    due = None;
                    killed.push(Killed { worker: worker.clone(), pool: pool.shape.name, at_s: pace.now_s() });
                    pool.lose(&worker).await;
                }
            }
            sleep(LOOK.div_f64(self.law.work_faster)).await;
        }
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
    shares.dedup();
    shares.sort_by(f64::total_cmp);
    shares.dedup();
    let of = |share: f64, value: &dyn Fn(&Lost) -> f64| {
        let same = lost.iter().filter(|one| one.share == share);
        mean_and_deviation(&same.map(value).collect::<Vec<_>>())
    };
    let (usual, _) = of(0.0, &|one| one.step_s);
    for share in shares {
        let same: Vec<&Lost> = lost.iter().filter(|one| one.share == share).collect();
        let recovery = ["generate", "env", "train"].map(|pool| {
            let of_pool = same.iter().filter_map(|one| one.recovery_s.get(pool));
            let seconds: Vec<f64> = of_pool.flatten().copied().collect();
            match seconds.iter().copied().max_by(f64::total_cmp) {
                Some(most) => format!("{:.1}, at most {most:.1}", median(seconds)),
                None => "–".to_owned(),
            }
        });
        let (step, step_d) = of(share, &|one| one.step_s);
        rows += &format!(
            "| {:.0} % | {} | {:.0} | {step:.1} ± {step_d:.1} | {} | {} | {:.0} | {:.0} |\n",
            100.0 * share,
            same[0].workers,
            of(share, &|one| one.killed.len() as f64).0,
            percent(usual / step),
            recovery.join(" | "),
            of(share, &|one| one.dropped as f64).0,
            of(share, &|one| one.wasted_turns as f64).0,
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
