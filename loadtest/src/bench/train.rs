//! What training costs: an optimiser step of ours beside a plain PyTorch and transformers loop, in turn on the same
//! model, rollouts, machine, threads and kind of numbers; with what a layer leaves kept for backward, and with it
//! computed again.

use std::path::{Path, PathBuf};

use millrace_schemas::submit::Precision;
use serde::{Deserialize, Serialize};

use super::model::Setup;
use super::rival::Rival;
use super::{cores, median, publish};
use ours::{LEARNING_RATE, MAX_GRAD_NORM, Ours};
use rollouts::{Data, Rollout};

mod ours;
pub(super) mod rollouts;

/// How to measure.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    setup: Setup,
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
    /// The numbers that both compute in, f32 or bf16. Default: those of the model's config.json
    #[arg(long, value_parser = read_precision)]
    precision: Option<Precision>,
    /// How often each is repeated after a first step that does not count; medians are printed
    #[arg(long, default_value_t = 3)]
    repeats: usize,
    /// Where a trace of one more step goes: JSON that Perfetto shows
    #[arg(long)]
    trace: Option<PathBuf>,
    /// Where the figures go as JSON
    #[arg(long, default_value = "target/bench/train.json")]
    out: PathBuf,
}

fn read_precision(word: &str) -> Result<Precision, String> {
    match word {
        "f32" => Ok(Precision::F32),
        "bf16" => Ok(Precision::Bf16),
        other => Err(format!("precision={other} must be f32 or bf16")),
    }
}

/// The settings that `rival.py` reads first. It answers with its [`Memory`].
#[derive(Debug, Serialize)]
struct Settings<'a> {
    model: &'a Path,
    threads: i32,
    microbatch: u32,
    dtype: &'static str,
    learning_rate: f64,
    max_grad_norm: f64,
    rollouts: &'a [Rollout],
}

/// Later requests to the rival, which answers with [`Answer`].
#[derive(Debug, Serialize)]
struct Question {
    recompute: bool,
}

/// What came of the rival's step.
#[derive(Debug, Deserialize)]
struct Answer {
    /// `None` once its memory was short; it makes no step from then on.
    step: Option<StepFigures>,
    /// Why there is none.
    failed: Option<String>,
    /// Floating-point operations a second of a square product, measured right after.
    matmul_flops: f64,
}

/// Which memory a side's peak is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Memory {
    /// All of the process that is in the host's memory.
    Host,
    /// What libtorch allocated of a GPU's.
    Device,
}

/// What one step came to.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
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
    /// The numbers that layers are computed in; either keeps weights and optimiser state in f32.
    dtype: &'static str,
    tokens_per_s: f64,
    /// A second of one processor, whatever else ran on the machine.
    tokens_per_busy_s: f64,
    /// Most memory that the process has had.
    peak_bytes: u64,
    peak_of: Memory,
    /// Share of a matrix product's speed, where that was measured.
    mfu: Option<f64>,
    steps: Vec<StepFigures>,
}

/// Both sides, with one way to go backward.
#[derive(Debug, Serialize)]
struct Mode {
    /// Layers are computed again in backward.
    recompute: bool,
    ours: Side,
    rival: Option<Side>,
    /// Why the rival has no figures, where it was asked.
    rival_failed: Option<String>,
    /// Of tokens a second.
    ratio: Option<f64>,
    /// Of tokens a processor second.
    busy_ratio: Option<f64>,
    matmul_flops: Option<f64>,
}

/// The figures.
#[derive(Debug, Serialize)]
struct Figures {
    modes: Vec<Mode>,
    tokens: usize,
    sampled_tokens: usize,
    model: PathBuf,
    microbatch: u32,
    threads: i32,
    cores: usize,
}

/// Measures and prints.
///
/// # Errors
/// The model cannot be trained, the rival does not run, or does not compute the same.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let data = Data::new(&args.setup.model, args.short, (args.long, args.long_tokens))?;
    let mut ours = Ours::new(args, &data)?;
    let mut rival = rival(args, &data, ours.precision)?;
    // What needs less memory comes first: the most that a process has had never falls.
    let modes = [true, false].map(|recompute| mode(args, recompute, &data, &mut ours, rival.as_mut()));
    let modes = modes.into_iter().collect::<anyhow::Result<_>>()?;
    if let Some(path) = &args.trace {
        ours.trace(&data, path)?;
    }
    let figures = Figures {
        modes,
        tokens: data.tokens(),
        sampled_tokens: data.sampled(),
        model: args.setup.model.clone(),
        microbatch: args.microbatch,
        threads: args.setup.threads,
        cores: cores(),
    };
    publish(&args.out, &figures, &table(&figures))
}

/// The other side, ready to train, unless it is not wanted.
fn rival(args: &Args, data: &Data, precision: Precision) -> anyhow::Result<Option<(Rival, Memory)>> {
    let script = concat!(include_str!("matmul.py"), include_str!("train/rival.py"));
    let Some(mut rival) = args.setup.rival(script)? else { return Ok(None) };
    let memory = rival.ask(&Settings {
        model: &args.setup.model,
        threads: args.setup.threads,
        microbatch: args.microbatch,
        dtype: precision.dtype(),
        learning_rate: LEARNING_RATE,
        max_grad_norm: MAX_GRAD_NORM,
        rollouts: &data.rollouts,
    })?;
    Ok(Some((rival, memory)))
}

/// All steps of one mode, ours and theirs in turn.
fn mode(
    args: &Args,
    recompute: bool,
    data: &Data,
    ours: &mut Ours,
    mut rival: Option<&mut (Rival, Memory)>,
) -> anyhow::Result<Mode> {
    let precision = ours.precision;
    let (mut our_steps, mut their_steps, mut products) = (Vec::new(), Vec::new(), Vec::new());
    let mut rival_failed = None;
    for _ in 0..=args.repeats {
        let step = ours.step(data, recompute)?;
        println!("  ours   {:>7.2} s   loss {:.6}   norm {:.5}", step.seconds, step.loss, step.grad_norm);
        our_steps.push(step);
        if let Some((rival, _)) = &mut rival {
            let answer: Answer = rival.ask(&Question { recompute })?;
            products.push(answer.matmul_flops);
            let Some(theirs) = answer.step else {
                println!("  rival  {}", answer.failed.as_deref().unwrap_or("failed"));
                rival_failed = answer.failed;
                their_steps.clear();
                continue;
            };
            let StepFigures { seconds, loss, grad_norm, .. } = theirs;
            println!("  rival  {seconds:>7.2} s   loss {loss:.6}   norm {grad_norm:.5}");
            anyhow::ensure!(agree(precision, &step, &theirs), "the two do not compute the same");
            their_steps.push(theirs);
        }
    }
    let matmul_flops = (!products.is_empty()).then(|| median(products));
    let side = |steps, memory| side(steps, (precision, memory), data, matmul_flops);
    let ours = side(our_steps, Memory::Host);
    let theirs = rival.filter(|_| !their_steps.is_empty()).map(|(_, memory)| side(their_steps, *memory));
    let ratio = |of: fn(&Side) -> f64| theirs.as_ref().map(|theirs| of(&ours) / of(theirs));
    Ok(Mode {
        recompute,
        ratio: ratio(|side| side.tokens_per_s),
        busy_ratio: ratio(|side| side.tokens_per_busy_s),
        ours,
        rival: theirs,
        rival_failed,
        matmul_flops,
    })
}

/// Whether the same work was done: both began with the same weights and make the same steps. In
/// bf16 either rounds in its own places, and losses of rollouts above and below the mean nearly
/// cancel out.
fn agree(precision: Precision, ours: &StepFigures, theirs: &StepFigures) -> bool {
    let (share, least) = match precision {
        Precision::F32 => (2e-3, 1e-3),
        Precision::Bf16 => (5e-2, 1e-1),
    };
    let close = |a: f64, b: f64| (a - b).abs() <= share * b.abs().max(least);
    close(ours.loss, theirs.loss) && close(ours.grad_norm, theirs.grad_norm)
}

/// Medians without the first step, which allocates.
fn side(
    steps: Vec<StepFigures>,
    (precision, peak_of): (Precision, Memory),
    data: &Data,
    matmul_flops: Option<f64>,
) -> Side {
    let counted = if steps.len() > 1 { &steps[1..] } else { &steps[..] };
    let of = |figure: fn(&StepFigures) -> f64| median(counted.iter().map(figure).collect());
    let (seconds, busy) = (of(|step| step.seconds), of(|step| step.busy_seconds));
    Side {
        dtype: precision.dtype(),
        tokens_per_s: data.tokens() as f64 / seconds,
        tokens_per_busy_s: data.tokens() as f64 / busy,
        peak_bytes: steps.iter().map(|step| step.peak_bytes).max().unwrap_or(0),
        peak_of,
        mfu: matmul_flops.map(|flops| data.flops() / seconds / flops),
        steps,
    }
}

fn table(f: &Figures) -> String {
    let mut table = format!(
        "An optimiser step of {} tokens, {} of them sampled, at most {} a forward, {} threads; medians.\n\n\
         | backward | | computes in | tokens/s | a processor second | peak memory | of a matmul's speed (MFU) |\n\
         |---|---|---|---|---|---|---|\n",
        f.tokens, f.sampled_tokens, f.microbatch, f.threads
    );
    for mode in &f.modes {
        let backward = if mode.recompute { "`recompute = true`" } else { "keeps activations" };
        table += &line(backward, "millrace", &mode.ours);
        if let Some(failed) = &mode.rival_failed {
            table += &format!("| | PyTorch loop | {failed} | | | | |\n");
        }
        if let (Some(rival), Some(ratio), Some(busy)) = (&mode.rival, mode.ratio, mode.busy_ratio) {
            table += &line("", "PyTorch loop", rival);
            // Of two memories there is no ratio.
            let memory = if mode.ours.peak_of == rival.peak_of {
                format!("{:.2}", mode.ours.peak_bytes as f64 / rival.peak_bytes as f64)
            } else {
                String::new()
            };
            table += &format!("| | ratio | | {ratio:.2} | {busy:.2} | {memory} | |\n");
        }
    }
    table
}

fn line(backward: &str, name: &str, side: &Side) -> String {
    let mfu = side.mfu.map_or_else(String::new, |mfu| format!("{:.0} %", mfu * 100.0));
    let place = match side.peak_of {
        Memory::Host => "",
        Memory::Device => " of the GPU",
    };
    format!(
        "| {backward} | {name} | {} | {:.1} | {:.1} | {:.2} GB{place} | {mfu} |\n",
        side.dtype,
        side.tokens_per_s,
        side.tokens_per_busy_s,
        side.peak_bytes as f64 / 1e9
    )
}
