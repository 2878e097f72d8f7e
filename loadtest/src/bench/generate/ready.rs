//! What the next version of the weights costs an engine that samples.

use std::thread;
use std::time::Instant;

use anyhow::ensure;
use millrace_policy::{CONFIG_FILE, Engine, MODEL_FILE};
use millrace_schemas::blob::Sha;
use millrace_workers::torch::TorchWeights;
use serde::Serialize;

use super::super::median;
use super::super::model::Setup;
use super::ours::{Ours, Work, abandon, without_ends};

/// Turns in flight meanwhile.
const SEQUENCES: usize = 8;
/// Steps before the weights come.
const STEPS: usize = 32;

/// The same weights once more, from a file into the engine, while it samples in bf16.
#[derive(Debug, Serialize)]
pub(super) struct Ready {
    /// Size of the weights' file.
    bytes: usize,
    sequences: usize,
    /// From a file on disk to an engine that samples with it.
    ready_s: f64,
    /// Of that, reading the file and its hash, while the engine samples.
    read_s: f64,
    /// Making it an engine's, on the device, while the engine samples.
    prepare_s: f64,
    /// The swap; no turn advances meanwhile.
    swap_s: f64,
    /// The first step after it, which prefills all contexts again.
    prefill_s: f64,
    /// A step before the weights came, and while they were read.
    step_s: f64,
    meanwhile_step_s: f64,
    /// The longest step while the weights were read.
    longest_step_s: f64,
}

impl Ready {
    /// Measures it.
    pub(super) fn measure(setup: &Setup, ours: &mut Ours) -> anyhow::Result<Self> {
        let engine = ours.engine("bfloat16")?;
        let work = Work { prompt: 64, tokens: 1_900, seed: 4_000 };
        let tasks = work.tasks(SEQUENCES, 1.0, |index| index);
        work.admit(engine, &tasks);
        let mut step = || -> anyhow::Result<f64> {
            let start = Instant::now();
            let _ = engine.step()?;
            Ok(start.elapsed().as_secs_f64())
        };
        // The first ones prefill, and a GPU captures its steps.
        (0..STEPS).try_for_each(|_| step().map(drop))?;
        let before = (0..STEPS).map(|_| step()).collect::<Result<Vec<_>, _>>()?;
        let config = setup.read(CONFIG_FILE)?;
        let start = Instant::now();
        let (weights, bytes, read_s, prepare_s, meanwhile) = thread::scope(|scope| -> anyhow::Result<_> {
            let reading = scope.spawn(|| -> anyhow::Result<_> {
                let start = Instant::now();
                let file = setup.read(MODEL_FILE)?;
                let (bytes, _) = (file.len(), Sha::of(&file));
                let read_s = start.elapsed().as_secs_f64();
                let version = without_ends(&config, file, "bfloat16")?;
                let start = Instant::now();
                let weights = TorchWeights::read(&version)?;
                Ok((weights, bytes, read_s, start.elapsed().as_secs_f64()))
            });
            let mut meanwhile = Vec::new();
            while !reading.is_finished() {
                meanwhile.push(step()?);
            }
            let (weights, bytes, read_s, prepare_s) =
                reading.join().map_err(|_| anyhow::anyhow!("the thread that reads weights panicked"))??;
            Ok((weights, bytes, read_s, prepare_s, meanwhile))
        })?;
        ensure!(!meanwhile.is_empty(), "the weights were read before the engine made a step");
        let swap = Instant::now();
        engine.swap(Box::new(weights))?;
        let (swap_s, ready_s) = (swap.elapsed().as_secs_f64(), start.elapsed().as_secs_f64());
        let prefill = Instant::now();
        let _ = engine.step()?;
        let prefill_s = prefill.elapsed().as_secs_f64();
        abandon(engine, SEQUENCES);
        let longest_step_s = meanwhile.iter().copied().fold(0.0, f64::max);
        let (step_s, meanwhile_step_s) = (median(before), median(meanwhile));
        Ok(Self {
            bytes,
            sequences: SEQUENCES,
            ready_s,
            read_s,
            prepare_s,
            swap_s,
            prefill_s,
            step_s,
            meanwhile_step_s,
            longest_step_s,
        })
    }

    /// As lines of the report.
    pub(super) fn lines(&self) -> String {
        let ms = |seconds: f64| 1e3 * seconds;
        format!(
            "\nThe next weights, a file of {:.0} MB, in an engine that samples {} sequences in bf16: ready after {:.2} s, of \
             which the file and its hash take {:.2} s, and making it an engine's {:.2} s. A step takes {:.1} ms before and \
             {:.1} ms meanwhile, at most {:.1} ms. All wait for the swap, {:.1} ms; the step after it prefills all contexts \
             and takes {:.1} ms.\n",
            self.bytes as f64 / 1e6,
            self.sequences,
            self.ready_s,
            self.read_s,
            self.prepare_s,
            ms(self.step_s),
            ms(self.meanwhile_step_s),
            ms(self.longest_step_s),
            ms(self.swap_s),
            ms(self.prefill_s),
        )
    }
}
