//! What a new version of the weights costs on its way: as changes of an anchor beside whole and beside a chain of
//! changes, for workers that come at once or late; and from its publication until each of many workers has it.

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Serialize;
use tokio::runtime::Runtime;

use super::publish;
use deltas::Deltas;
use fan_out::FanOut;

mod deltas;
mod fan_out;

/// How to measure.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A model directory; its weights are trained in bf16
    #[arg(long, required_unless_present = "drawn_layers")]
    model: Option<PathBuf>,
    /// Optimiser steps at a learning rate of 1e-6; one anchor serves them all
    #[arg(long, default_value_t = 16)]
    steps: usize,
    /// Layers of a model of width 896 with weights that are drawn, measured too: 24 make half a billion
    #[arg(long)]
    drawn_layers: Option<u32>,
    /// Tokens in its vocabulary
    #[arg(long, default_value_t = 151_936)]
    drawn_vocabulary: u32,
    /// Steps of that one
    #[arg(long, default_value_t = 4)]
    drawn_steps: usize,
    /// Rollouts of a step, of 120 tokens on average
    #[arg(long, default_value_t = 8)]
    rollouts: usize,
    /// Numbers of workers that fetch a version at once
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 32])]
    workers: Vec<usize>,
    /// How often each number is tried; medians are printed
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Threads of the trainer
    #[arg(long, default_value_t = 2)]
    threads: i32,
    /// Where the figures go as JSON
    #[arg(long, default_value = "target/bench/weights.json")]
    out: PathBuf,
}

#[derive(Debug, Serialize)]
struct Figures {
    deltas: Vec<Deltas>,
    fan_out: Vec<FanOut>,
}

/// Measures and prints.
///
/// # Errors
/// The model cannot be trained, the S3 server does not run, or a worker got other weights.
pub fn run(args: &Args) -> anyhow::Result<()> {
    anyhow::ensure!(args.steps > 0 && args.drawn_steps > 0, "--steps and --drawn-steps are at least 1");
    anyhow::ensure!(
        args.rollouts > 1,
        "--rollouts is at least 2: one alone is no better than the mean of its group"
    );
    anyhow::ensure!(args.rounds > 0 && !args.workers.contains(&0), "--rounds and --workers are at least 1");
    let mut all = Vec::new();
    let mut pair = None;
    if let Some(model) = &args.model {
        let (deltas, made) = deltas::of_directory(args, model)?;
        all.push(deltas);
        pair.get_or_insert(made);
    }
    if let Some(layers) = args.drawn_layers {
        let (deltas, made) = deltas::of_drawn(args, layers)?;
        all.push(deltas);
        pair.get_or_insert(made);
    }
    let pair = pair.context("no model was asked for")?;
    let limits = fan_out::Limits::measure(args, &pair)?;
    let fan_out = Runtime::new()?.block_on(fan_out::measure(args, pair, &limits))?;
    let tables = format!("{}\n{}", deltas::table(&all), fan_out::table(&fan_out));
    publish(&args.out, &Figures { deltas: all, fan_out }, &tables)
}

/// A number of bytes in decimal megabytes.
fn mb(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
