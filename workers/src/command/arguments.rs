//! The values of `--stages` and `--pools`.

use std::str::FromStr;

use millrace_schemas::ids::IdError;
use millrace_schemas::stage::UnknownStage;
use millrace_schemas::{PoolName, Stage};

use crate::runtime::PoolSettings;
use crate::stages::{default_concurrency, default_settings};

pub mod cache;
pub mod engine;
pub mod time_division;

/// Tasks of one pool in flight at most, in one process.
const MAX_CONCURRENCY: u32 = 65_536;

/// `generate` or `generate:64`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StageArg {
    /// The stage.
    pub stage: Stage,
    /// Tasks of each pool in flight at most.
    pub concurrency: u32,
}

/// `env_step/frozen_lake`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolArg {
    /// The stage.
    pub stage: Stage,
    /// The pool.
    pub pool: PoolName,
}

/// Why a value of `--stages` or `--pools` is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArgumentError {
    /// No such stage.
    #[error(transparent)]
    Stage(#[from] UnknownStage),
    /// Not a pool's name.
    #[error(transparent)]
    Pool(#[from] IdError),
    /// The stage has no tasks.
    #[error("stage value=submit has no tasks; submit runs with `millrace submit`")]
    NoTasks,
    /// Not a number of tasks.
    #[error("concurrency value={0:?} is not a whole number from 1 to {MAX_CONCURRENCY}")]
    Concurrency(String),
    /// Not `stage/pool`.
    #[error("pool value={0:?} is not of the form stage/pool")]
    Shape(String),
    /// A pool of a stage that is not served.
    #[error("pool value={stage}/{pool}: add {stage} to --stages to serve it")]
    NotServed {
        /// The stage.
        stage: Stage,
        /// The pool.
        pool: PoolName,
    },
}

fn stage(word: &str) -> Result<Stage, ArgumentError> {
    match word.parse()? {
        Stage::Submit => Err(ArgumentError::NoTasks),
        stage => Ok(stage),
    }
}

impl FromStr for StageArg {
    type Err = ArgumentError;

    fn from_str(s: &str) -> Result<Self, ArgumentError> {
        let Some((name, count)) = s.split_once(':') else {
            let stage = stage(s)?;
            return Ok(Self { stage, concurrency: default_concurrency(stage) });
        };
        let concurrency = count.parse().ok().filter(|n| (1..=MAX_CONCURRENCY).contains(n));
        let concurrency = concurrency.ok_or_else(|| ArgumentError::Concurrency(count.to_owned()))?;
        Ok(Self { stage: stage(name)?, concurrency })
    }
}

impl FromStr for PoolArg {
    type Err = ArgumentError;

    fn from_str(s: &str) -> Result<Self, ArgumentError> {
        let (name, pool) = s.split_once('/').ok_or_else(|| ArgumentError::Shape(s.to_owned()))?;
        Ok(Self { stage: stage(name)?, pool: pool.parse()? })
    }
}

/// The pools to serve: of each stage those that `only` names. If it names none, all default ones
/// and those that the user's program `offers`.
///
/// # Errors
/// `only` names a pool of a stage that is not served.
pub fn pools<'a>(
    stages: &[StageArg],
    only: &[PoolArg],
    offers: impl Fn(Stage) -> &'a [PoolName],
) -> Result<Vec<PoolSettings>, ArgumentError> {
    if let Some(lost) = only.iter().find(|pool| !stages.iter().any(|arg| arg.stage == pool.stage)) {
        return Err(ArgumentError::NotServed { stage: lost.stage, pool: lost.pool.clone() });
    }
    let mut pools = Vec::new();
    for StageArg { stage, concurrency } in stages {
        let named: Vec<_> = only.iter().filter(|pool| pool.stage == *stage).collect();
        if named.is_empty() {
            pools.extend(default_settings(*stage, *concurrency));
        }
        let offered = offers(*stage).iter().filter(|_| named.is_empty());
        pools.extend(named.iter().map(|arg| &arg.pool).chain(offered).map(|pool| PoolSettings {
            stage: *stage,
            pool: pool.clone(),
            concurrency: *concurrency,
        }));
    }
    Ok(pools)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(stages: &[&str], only: &[&str]) -> Result<Vec<String>, ArgumentError> {
        let stages: Vec<StageArg> = stages.iter().map(|word| word.parse()).collect::<Result<_, _>>()?;
        let only: Vec<PoolArg> = only.iter().map(|word| word.parse()).collect::<Result<_, _>>()?;
        let own = ["riddles".parse()?];
        let offers = |stage| if stage == Stage::EnvStep { &own[..] } else { &[] };
        let pools = pools(&stages, &only, offers)?.into_iter();
        Ok(pools.map(|p| format!("{}/{}:{}", p.stage, p.pool, p.concurrency)).collect())
    }

    #[test]
    fn stages_bring_their_pools() {
        assert_eq!(
            named(&["generate", "publish_weights"], &[]).unwrap(),
            ["generate/policy:256", "publish_weights/commit:1"]
        );
        let steps = named(&["env_step:8"], &[]).unwrap();
        let all = ["frozen_lake", "sokoban", "counter", "arithmetic", "dataset", "riddles"]
            .map(|name| format!("env_step/{name}:8"));
        assert_eq!(steps, all);
        let some = named(&["generate:2", "env_step"], &["env_step/counter", "env_step/mine"]).unwrap();
        assert_eq!(some, ["generate/policy:2", "env_step/counter:64", "env_step/mine:64"]);
    }

    #[test]
    fn wrong_words_are_refused() {
        for (stages, only) in [
            (&["generates"][..], &[][..]),
            (&["submit"], &[]),
            (&["generate:0"], &[]),
            (&["generate:many"], &[]),
            (&["generate"], &["frozen_lake"]),
            (&["generate"], &["env_step/frozen_lake"]),
            (&["env_step"], &["env_step/Frozen"]),
        ] {
            assert!(named(stages, only).is_err(), "{stages:?} {only:?}");
        }
    }
}
