//! What sampling costs: tokens a second of our engine beside transformers' `generate`, in turn on the same model,
//! machine and threads.

use std::path::{Path, PathBuf};
use std::time::Instant;

use millrace_workers::policy::torch::set_threads;
use serde::Serialize;

use super::model::{Setup, Shape};
use super::rival::Rival;
use super::{cores, median, publish};
use ours::{Ours, Work};
use parity::Parity;

mod ours;
mod parity;

/// The numbers that either side is tried with.
const DTYPES: [&str; 2] = ["float32", "bfloat16"];

/// How to measure.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    setup: Setup,
    /// Sequences at once
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 32, 64])]
    sequences: Vec<usize>,
    /// Tokens of each prompt
    #[arg(long, default_value_t = 64)]
    prompt: usize,
    /// Tokens sampled after each
    #[arg(long, default_value_t = 64)]
    tokens: u32,
    /// How often each is repeated; medians are printed
    #[arg(long, default_value_t = 3)]
    repeats: u32,
    /// Where the figures go as JSON
    #[arg(long, default_value = "target/bench/generate.json")]
    out: PathBuf,
}

/// What `rival.py` is told first.
#[derive(Debug, Serialize)]
struct Settings<'a> {
    model: &'a Path,
    prompt: usize,
    threads: i32,
}

/// What it is asked then; it answers with the seconds that this took. Or [`Product`], or [`parity::Question`].
#[derive(Debug, Serialize)]
struct Question {
    sequences: usize,
    dtype: &'static str,
    tokens: u32,
}

/// It times a matrix product in these numbers and answers with floating-point operations a second.
#[derive(Debug, Serialize)]
struct Product {
    matmul: &'static str,
}

/// The figures.
#[derive(Debug, Serialize)]
struct Figures {
    rows: Vec<Row>,
    /// Floating-point operations of a token, with its part of the prompt's.
    token_flops: f64,
    shared: Shared,
    /// Beside transformers on the same tokens; empty where that did not run.
    parity: Vec<Parity>,
    model: PathBuf,
    prompt: usize,
    tokens: u32,
    repeats: u32,
    threads: i32,
    cores: usize,
}

/// So many sequences at once; each side in the numbers that it is faster with.
#[derive(Debug, Serialize)]
struct Row {
    sequences: usize,
    dtype: &'static str,
    /// Medians, prompts included.
    tokens_per_s: f64,
    /// Floating-point operations a second of a matrix product, measured between the runs; `None` without transformers.
    matmul_flops: Option<f64>,
    /// `None` where it did not run.
    transformers: Option<Theirs>,
    /// Every run's, ours and theirs.
    runs: Vec<(f64, Option<f64>)>,
}

#[derive(Debug, Serialize)]
struct Theirs {
    dtype: &'static str,
    tokens_per_s: f64,
    ratio: f64,
}

/// Samples of one prompt.
#[derive(Debug, Serialize)]
struct Shared {
    samples: usize,
    prompt: usize,
    /// Tokens of the contexts that were computed, over all samples.
    prefill_tokens: u64,
    seconds: f64,
    /// The same for as many prompts that have nothing in common.
    apart_seconds: f64,
}

/// Measures and prints.
///
/// # Errors
/// There is no such model, or transformers does not run.
pub fn run(args: &Args) -> anyhow::Result<()> {
    set_threads(args.setup.threads);
    let mut ours = Ours::start(&args.setup)?;
    let mut rival =
        args.setup.rival(concat!(include_str!("matmul.py"), include_str!("generate/rival.py")))?;
    if let Some(rival) = &mut rival {
        let Setup { model, threads, .. } = &args.setup;
        let _: String = rival.ask(&Settings { model, prompt: args.prompt, threads: *threads })?;
    }
    let mut rows = Vec::new();
    for &sequences in &args.sequences {
        rows.push(row(args, sequences, &mut ours, rival.as_mut())?);
    }
    let shared = shared(&mut ours, args)?;
    let parity = match rival.as_mut() {
        Some(rival) => DTYPES
            .map(|dtype| Parity::measure(dtype, &mut ours, rival))
            .into_iter()
            .collect::<Result<_, _>>()?,
        None => Vec::new(),
    };
    // The last token that is drawn is nobody's input.
    let length = args.prompt + args.tokens as usize - 1;
    let flops = Shape::read(&args.setup.model)?.forward_flops([length].into_iter(), args.tokens as usize);
    let token_flops = flops / f64::from(args.tokens);
    let (model, prompt, tokens) = (args.setup.model.clone(), args.prompt, args.tokens);
    let (repeats, threads) = (args.repeats, args.setup.threads);
    let cores = cores();
    let figures =
        Figures { rows, token_flops, shared, parity, model, prompt, tokens, repeats, threads, cores };
    publish(&args.out, &figures, &table(&figures))
}

/// All runs of so many sequences, ours and theirs in turn.
fn row(args: &Args, sequences: usize, ours: &mut Ours, mut rival: Option<&mut Rival>) -> anyhow::Result<Row> {
    let work = Work { prompt: args.prompt, tokens: args.tokens, seed: 0 };
    let count = sequences as f64 * f64::from(args.tokens);
    let dtype = faster("millrace", |dtype, tokens| ours.seconds(dtype, Work { tokens, ..work }, sequences))?;
    let theirs = match rival.as_deref_mut() {
        Some(rival) => {
            Some(faster("transformers", |dtype, tokens| rival.ask(&Question { sequences, dtype, tokens }))?)
        }
        None => None,
    };
    let (mut runs, mut products) = (Vec::new(), Vec::new());
    for repeat in 1..=args.repeats {
        let our = count / ours.seconds(dtype, Work { seed: u64::from(repeat), ..work }, sequences)?;
        let their = match (rival.as_deref_mut(), theirs) {
            (Some(rival), Some(dtype)) => {
                let seconds: f64 = rival.ask(&Question { sequences, dtype, tokens: args.tokens })?;
                products.push(rival.ask::<f64>(&Product { matmul: dtype })?);
                Some(count / seconds)
            }
            _ => None,
        };
        println!("{sequences} sequences: {our:.1} tokens/s, transformers {their:.1?}");
        runs.push((our, their));
    }
    let tokens_per_s = median(runs.iter().map(|run| run.0).collect());
    let transformers = theirs.map(|dtype| {
        let theirs = median(runs.iter().filter_map(|run| run.1).collect());
        Theirs { dtype, tokens_per_s: theirs, ratio: tokens_per_s / theirs }
    });
    let matmul_flops = (!products.is_empty()).then(|| median(products));
    Ok(Row { sequences, dtype, tokens_per_s, matmul_flops, transformers, runs })
}

/// The numbers that one side is faster with, seen by a short run of each.
fn faster(
    who: &str,
    mut seconds: impl FnMut(&'static str, u32) -> anyhow::Result<f64>,
) -> anyhow::Result<&'static str> {
    const PROBE: u32 = 8;
    let mut best = (f64::INFINITY, DTYPES[0]);
    for dtype in DTYPES {
        let seconds = seconds(dtype, PROBE)?;
        println!("{who} in {dtype}: {seconds:.2} s for {PROBE} tokens");
        best = if seconds < best.0 { (seconds, dtype) } else { best };
    }
    Ok(best.1)
}

/// Samples of one long prompt, beside as many prompts.
fn shared(ours: &mut Ours, args: &Args) -> anyhow::Result<Shared> {
    const SAMPLES: usize = 8;
    const PROMPT: usize = 512;
    let (mut together, mut apart, mut prefill_tokens) = (Vec::new(), Vec::new(), 0);
    for repeat in 0..args.repeats {
        let work = Work { prompt: PROMPT, tokens: 16, seed: 1_000 + u64::from(repeat) };
        let start = Instant::now();
        prefill_tokens = ours.sample_one_prompt(DTYPES[0], work, SAMPLES)?;
        together.push(start.elapsed().as_secs_f64());
        apart.push(ours.seconds(DTYPES[0], Work { seed: 2_000 + u64::from(repeat), ..work }, SAMPLES)?);
    }
    let (seconds, apart_seconds) = (median(together), median(apart));
    Ok(Shared { samples: SAMPLES, prompt: PROMPT, prefill_tokens, seconds, apart_seconds })
}

fn table(f: &Figures) -> String {
    let mut table = format!(
        "Tokens a second, prompts of {} tokens and {} new, {} threads; medians of {} runs, each side in the numbers that it \
         is faster with. In brackets the share of a matrix product's speed.\n\n\
         | sequences | millrace | | transformers | | ratio |\n|---|---|---|---|---|---|\n",
        f.prompt, f.tokens, f.threads, f.repeats
    );
    for row in &f.rows {
        let speed = |tokens_per_s: f64| {
            let share = |flops: f64| format!(" ({:.0} %)", 100.0 * tokens_per_s * f.token_flops / flops);
            format!("{tokens_per_s:.1}{}", row.matmul_flops.map_or_else(String::new, share))
        };
        let theirs = row.transformers.as_ref().map_or_else(
            || "| |".to_owned(),
            |theirs| format!("{} | {} | {:.2}", speed(theirs.tokens_per_s), theirs.dtype, theirs.ratio),
        );
        table += &format!("| {} | {} | {} | {theirs} |\n", row.sequences, speed(row.tokens_per_s), row.dtype);
    }
    let s = &f.shared;
    table += &format!(
        "\n{} samples of a prompt of {} tokens compute {} tokens of context in {:.2} s; prompts that differ take {:.2} s.\n",
        s.samples, s.prompt, s.prefill_tokens, s.seconds, s.apart_seconds
    );
    table + &f.parity.iter().map(Parity::line).collect::<String>()
}
