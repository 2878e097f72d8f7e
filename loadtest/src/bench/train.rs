//! What training costs: an optimiser step of ours beside a plain PyTorch and transformers loop, in turn on the same
//! model, rollouts, machine and threads.

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Serialize;

use super::median;
use ours::Ours;
use rival::{Rival, Settings};

mod ours;
mod rival;
mod rollouts;

/// How to measure.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A model directory
    #[arg(long)]
    model: PathBuf,
    /// Rollouts of mixed lengths from 40 to 200 tokens
    #[arg(long, default_value_t = 16)]
    short: usize,
    /// Long rollouts
    #[arg(long, default_value_t = 2)]
    long: usize,
    /// Tokens of a long rollout
    #[arg(long, default_value_t = 1000)]
    long_tokens: usize,
    /// Tokens of a forward and backward; the rival's count their padding
    #[arg(long, default_value_t = 1024)]
    microbatch: u32,
    /// Compute activations again in backward, on both sides
    #[arg(long)]
    recompute: bool,
    /// How often each is repeated after a first step that does not count; medians are printed
    #[arg(long, default_value_t = 3)]
    repeats: usize,
    /// Threads of either
    #[arg(long, default_value_t = 2)]
    threads: i32,
    /// The Python that has transformers
    #[arg(long, default_value = "python3")]
    python: PathBuf,
    /// Do not run transformers
    #[arg(long)]
    alone: bool,
    /// Where the figures go as JSON
    #[arg(long, default_value = "target/bench/train.json")]
    out: PathBuf,
}

/// What one step came to.
#[derive(Debug, Clone, Copy, Serialize, serde::Deserialize)]
struct StepFigures {
    seconds: f64,
    /// Processor seconds of all threads.
    busy_seconds: f64,
    loss: f64,
    grad_norm: f64,
    /// Most memory that the process has had.
    peak_bytes: u64,
}

/// One side's medians.
#[derive(Debug, Serialize)]
struct Side {
    tokens_per_s: f64,
    /// A second of one processor, whatever else ran on the machine.
    tokens_per_busy_s: f64,
    /// Share of a matrix product's speed in the same kind.
    mfu: f64,
    steps: Vec<StepFigures>,
}

/// The figures.
#[derive(Debug, Serialize)]
struct Figures {
    ours: Side,
    rival: Option<Side>,
    /// Of tokens a second.
    ratio: Option<f64>,
    matmul_flops: Option<f64>,
    tokens: usize,
    sampled_tokens: usize,
    model: PathBuf,
    microbatch: u32,
    recompute: bool,
    threads: i32,
    cores: usize,
}

/// Measures and prints.
///
/// # Errors
/// The model cannot be trained, or the rival does not run.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let data = rollouts::Data::new(&args.model, args.short, (args.long, args.long_tokens))?;
    let mut ours = Ours::new(args, &data)?;
    let mut rival = None;
    if !args.alone {
        rival = Some(Rival::start(&args.python, &Settings::new(args, &data))?);
    }
    let (mut our_steps, mut their_steps) = (Vec::new(), Vec::new());
    for round in 0..=args.repeats {
        let step = ours.step(&data)?;
        println!("  ours   {:>7.2} s   loss {:.6}   norm {:.5}", step.seconds, step.loss, step.grad_norm);
        our_steps.push(step);
        if let Some(rival) = &mut rival {
            let step = rival.step()?;
            println!("  rival  {:>7.2} s   loss {:.6}   norm {:.5}", step.seconds, step.loss, step.grad_norm);
            their_steps.push(step);
        }
        anyhow::ensure!(round > 0 || agree(&our_steps, &their_steps), "the first steps do not agree");
    }
    let peak = rival.as_ref().map(|rival| rival.hello.matmul_flops);
    let side = |steps: Vec<StepFigures>| side(steps, &data, peak.unwrap_or(f64::NAN));
    let ours = side(our_steps);
    let theirs = (!their_steps.is_empty()).then(|| side(their_steps));
    let figures = Figures {
        ratio: theirs.as_ref().map(|theirs| ours.tokens_per_s / theirs.tokens_per_s),
        ours,
        rival: theirs,
        matmul_flops: peak,
        tokens: data.tokens(),
        sampled_tokens: data.sampled(),
        model: args.model.clone(),
        microbatch: args.microbatch,
        recompute: args.recompute,
        threads: args.threads,
        cores: std::thread::available_parallelism().map_or(1, usize::from),
    };
    print(&figures);
    write(&args.out, &figures)
}

/// Whether the same work was done: loss and gradient of the first step, from the same weights, are the same.
fn agree(ours: &[StepFigures], theirs: &[StepFigures]) -> bool {
    let close = |a: f64, b: f64| (a - b).abs() <= 2e-3 * b.abs().max(1e-3);
    ours.iter().zip(theirs).all(|(a, b)| close(a.loss, b.loss) && close(a.grad_norm, b.grad_norm))
}

/// Medians without the first step, which allocates.
fn side(steps: Vec<StepFigures>, data: &rollouts::Data, peak: f64) -> Side {
    let counted = if steps.len() > 1 { &steps[1..] } else { &steps[..] };
    let of = |figure: fn(&StepFigures) -> f64| median(counted.iter().map(figure).collect());
    let (seconds, busy) = (of(|step| step.seconds), of(|step| step.busy_seconds));
    Side {
        tokens_per_s: data.tokens() as f64 / seconds,
        tokens_per_busy_s: data.tokens() as f64 / busy,
        mfu: data.flops() / seconds / peak,
        steps,
    }
}

fn print(f: &Figures) {
    println!(
        "\nmedians of {} steps, {} threads: {} tokens, {} sampled",
        f.ours.steps.len() - 1,
        f.threads,
        f.tokens,
        f.sampled_tokens
    );
    let line = |name: &str, side: &Side| {
        let peak = side.steps.iter().map(|step| step.peak_bytes).max().unwrap_or(0) as f64 / 1e9;
        println!(
            "  {name:<24} {:>7.1} tokens/s  {:>7.1} a processor second  {:>5.2} GB peak  {:>4.0} % of a matmul",
            side.tokens_per_s,
            side.tokens_per_busy_s,
            peak,
            side.mfu * 100.0
        );
    };
    line("ours", &f.ours);
    if let Some(rival) = &f.rival {
        line("PyTorch + transformers", rival);
        println!("  ratio                    {:>7.2}", f.ratio.unwrap_or(f64::NAN));
    }
}

fn write(out: &Path, figures: &Figures) -> anyhow::Result<()> {
    if let Some(folder) = out.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(out, serde_json::to_vec_pretty(figures)?)
        .with_context(|| format!("failed to write {}", out.display()))
}
