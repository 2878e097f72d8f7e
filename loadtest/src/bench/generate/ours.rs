//! Work for our engine.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, bail};
use bytes::Bytes;
use millrace_policy::random::Stream;
use millrace_policy::{CONFIG_FILE, Engine, EngineRequest, LoadedVersion, MODEL_FILE, Ticket};
use millrace_schemas::RolloutId;
use millrace_schemas::generate::{GenerateDone, GenerateTask, Sampling};
use millrace_workers::torch::{EngineSettings, TorchEngine, trace};

use super::super::model::{Setup, version};

/// Tokens that prompts are drawn from; every benchmarked model has more.
const VOCABULARY: u64 = 10_000;

/// An engine for each of the numbers that it is tried with.
pub(super) struct Ours(Vec<(&'static str, TorchEngine)>);

impl Ours {
    /// Engines of a model directory.
    pub(super) fn start(setup: &Setup) -> anyhow::Result<Self> {
        let (config, weights) = (setup.read(CONFIG_FILE)?, setup.read(MODEL_FILE)?);
        let engine = |dtype| {
            let version = without_ends(&config, weights.clone(), dtype)?;
            Ok((dtype, TorchEngine::new(&version, EngineSettings::default())?))
        };
        super::DTYPES.into_iter().map(engine).collect::<anyhow::Result<_>>().map(Self)
    }

    pub(super) fn engine(&mut self, dtype: &str) -> anyhow::Result<&mut TorchEngine> {
        let engine = self.0.iter_mut().find(|(of, _)| *of == dtype);
        engine.map(|(_, engine)| engine).with_context(|| format!("no engine in {dtype}"))
    }

    /// Seconds for so many turns at once, each after a prompt of its own.
    pub(super) fn seconds(&mut self, dtype: &str, work: Work, sequences: usize) -> anyhow::Result<f64> {
        let start = Instant::now();
        work.run(self.engine(dtype)?, &work.tasks(sequences, 1.0, |index| index))?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// Samples as many turns at once after one prompt. Gives the tokens of contexts that were computed.
    pub(super) fn sample_one_prompt(
        &mut self,
        dtype: &str,
        work: Work,
        samples: usize,
    ) -> anyhow::Result<u64> {
        let turns = work.run(self.engine(dtype)?, &work.tasks(samples, 1.0, |_| 0))?;
        Ok(turns.iter().map(|turn| u64::from(turn.prefill_tokens)).sum())
    }

    /// Traces a step in which so many turns get a token each.
    pub(super) fn trace(
        &mut self,
        dtype: &str,
        work: Work,
        sequences: usize,
        path: &Path,
    ) -> anyhow::Result<()> {
        let engine = self.engine(dtype)?;
        let tasks = work.tasks(sequences, 1.0, |index| index);
        work.admit(engine, &tasks);
        // All contexts are prefilled, and a step like the next has been made.
        for _ in 0..work.tokens / 2 {
            anyhow::ensure!(engine.step()?.is_empty(), "a turn ended before it was traced");
        }
        trace(path, || engine.step()).map_err(anyhow::Error::msg)??;
        abandon(engine, sequences);
        println!("a trace of one step is in {}", path.display());
        Ok(())
    }

    /// Turns sampled at this temperature, each with its context.
    pub(super) fn turns(
        &mut self,
        dtype: &str,
        work: Work,
        count: usize,
        temperature: f64,
    ) -> anyhow::Result<Vec<(Vec<u32>, GenerateDone)>> {
        let tasks = work.tasks(count, temperature, |index| index);
        let turns = work.run(self.engine(dtype)?, &tasks)?;
        Ok(tasks.into_iter().map(|task| task.context).zip(turns).collect())
    }
}

/// A model as a version. Its end tokens are left out, so that every turn has its full length.
pub(super) fn without_ends(config: &[u8], weights: Bytes, dtype: &str) -> anyhow::Result<LoadedVersion> {
    let mut config: serde_json::Value = serde_json::from_slice(config)?;
    config["eos_token_id"] = serde_json::Value::Null;
    config["dtype"] = dtype.into();
    let config = Bytes::from(serde_json::to_vec(&config)?);
    let files = BTreeMap::from([(CONFIG_FILE.to_owned(), config), (MODEL_FILE.to_owned(), weights)]);
    version(0, files, None)
}

/// Turns to sample.
#[derive(Debug, Clone, Copy)]
pub(super) struct Work {
    /// Tokens of each context.
    pub(super) prompt: usize,
    /// Tokens of each turn.
    pub(super) tokens: u32,
    pub(super) seed: u64,
}

impl Work {
    /// So many turns, each after the prompt of this number.
    pub(super) fn tasks(
        self,
        count: usize,
        temperature: f64,
        prompt: impl Fn(u64) -> u64,
    ) -> Vec<GenerateTask> {
        // No prompt comes twice, or it would be found.
        let seed = (self.seed * 1_000 + count as u64) << 20;
        let task = |index| {
            let mut random = Stream::new(seed | prompt(index));
            let context = (0..self.prompt).map(|_| random.below(VOCABULARY) as u32).collect();
            GenerateTask::new(context, self.tokens, Sampling::at(temperature), seed | index)
        };
        (0..count as u64).map(task).collect()
    }

    pub(super) fn admit(self, engine: &mut TorchEngine, tasks: &[GenerateTask]) {
        for (index, task) in tasks.iter().enumerate() {
            let rollout = RolloutId { group: self.seed, index: index as u32, attempt: 0 };
            engine.admit(EngineRequest { ticket: Ticket(index as u64), rollout, task: task.clone() });
        }
    }

    /// All at once; what came of them, in order.
    fn run(self, engine: &mut TorchEngine, tasks: &[GenerateTask]) -> anyhow::Result<Vec<GenerateDone>> {
        self.admit(engine, tasks);
        let mut turns = BTreeMap::new();
        while turns.len() < tasks.len() {
            for finished in engine.step()? {
                let done = finished.result?;
                if done.tokens.len() != self.tokens as usize {
                    bail!("a turn has tokens={} instead of {}", done.tokens.len(), self.tokens);
                }
                turns.insert(finished.ticket, done);
            }
        }
        Ok(turns.into_values().collect())
    }
}

/// Drops the first `count` of what was admitted.
pub(super) fn abandon(engine: &mut TorchEngine, count: usize) {
    (0..count as u64).for_each(|ticket| drop(engine.abandon(Ticket(ticket))));
}
