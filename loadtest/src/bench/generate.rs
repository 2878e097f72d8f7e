//! What sampling costs: tokens a second of our engine beside vLLM, transformers' `generate` and llama.cpp's server, in
//! turn on the same model, machine and threads.

use std::path::{Path, PathBuf};
use std::time::Instant;

use millrace_workers::torch::set_threads;
use serde::Serialize;

use super::model::{Setup, Shape};
use super::rival::Rival;
use super::{cores, median, publish};
use ours::{Ours, Work};
use parity::Parity;
use ready::Ready;

mod ours;
mod parity;
mod ready;

/// The numbers that either side is tried with.
const DTYPES: [&str; 2] = ["float32", "bfloat16"];
/// Seeds the prompts of the step that is traced.
const TRACED: u64 = 3_000;

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
    /// The Python that has vLLM, as `infra/dev/engines.sh setup vllm` makes it; on a CPU. Where there is none, vLLM is left out
    #[arg(long, default_value = "target/engines/vllm/bin/python")]
    vllm: PathBuf,
    /// Where a trace of one step goes, with the most sequences: JSON that Perfetto shows
    #[arg(long)]
    trace: Option<PathBuf>,
    /// Where the figures go as JSON
    #[arg(long, default_value = "target/bench/generate.json")]
    out: PathBuf,
}

/// The settings that a rival reads first.
#[derive(Debug, Serialize)]
struct Settings<'a> {
    model: &'a Path,
    prompt: usize,
    threads: i32,
    /// The most at once.
    sequences: usize,
    /// Tokens of a sequence.
    context: usize,
    /// What serves a model by llama.cpp; the others have no use for it.
    server: &'static str,
}

/// Later requests to the rival, which answers with the seconds that the work took. transformers
/// also gets a [`Product`], a [`Peak`] or a [`parity::Question`].
#[derive(Debug, Serialize)]
struct Question {
    sequences: usize,
    dtype: &'static str,
    tokens: u32,
}

/// Another that samples.
struct Contender {
    name: &'static str,
    /// The numbers that it is tried with.
    dtypes: [&'static str; 2],
    rival: Rival,
}

/// It answers with the bytes of a GPU's memory that it had at most since the question before; with
/// null on a CPU.
#[derive(Debug, Serialize)]
struct Peak {
    peak: bool,
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
    shared: SharedPrefix,
    ready: Ready,
    /// Beside transformers on the same tokens; empty where it did not run.
    parity: Vec<Parity>,
    model: PathBuf,
    prompt: usize,
    tokens: u32,
    repeats: u32,
    threads: i32,
    cores: usize,
}

/// So many sequences at once.
#[derive(Debug, Serialize)]
struct Row {
    sequences: usize,
    /// Ours first.
    sides: Vec<Side>,
    /// Floating-point operations a second of a matrix product, measured between the runs; `None` without transformers.
    matmul_flops: Option<f64>,
}

/// One of those that sample, in the numbers that it is faster with.
#[derive(Debug, Serialize)]
struct Side {
    name: &'static str,
    dtype: &'static str,
    /// The median, prompts included.
    tokens_per_s: f64,
    runs: Vec<f64>,
    /// Most of a GPU's memory that libtorch allocated during the runs, with the model in both
    /// kinds of numbers. `None` on a CPU, and of ours, which has no way to tell.
    peak_device_bytes: Option<u64>,
}

/// Samples of one prompt.
#[derive(Debug, Serialize)]
struct SharedPrefix {
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
/// There is no such model, or a rival does not run.
pub fn run(args: &Args) -> anyhow::Result<()> {
    set_threads(args.setup.threads);
    let mut ours = Ours::start(&args.setup)?;
    let mut rivals = contenders(args)?;
    let rows = args.sequences.iter().map(|&sequences| row(args, sequences, &mut ours, &mut rivals));
    let rows = rows.collect::<anyhow::Result<_>>()?;
    if let (Some(path), Some(&sequences)) = (&args.trace, args.sequences.iter().max()) {
        let work = Work { prompt: args.prompt, tokens: args.tokens, seed: TRACED };
        ours.trace(DTYPES[1], work, sequences, path)?;
    }
    let shared = shared(&mut ours, args)?;
    let ready = Ready::measure(&args.setup, &mut ours)?;
    let parity = match rivals.first_mut() {
        Some(Contender { rival, .. }) => DTYPES
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
        Figures { rows, token_flops, shared, ready, parity, model, prompt, tokens, repeats, threads, cores };
    publish(&args.out, &figures, &table(&figures))
}

/// transformers and, on a CPU, vLLM where it is installed, and llama.cpp for a model that can be converted for it; nobody
/// if nobody is wanted.
fn contenders(args: &Args) -> anyhow::Result<Vec<Contender>> {
    let transformers = concat!(include_str!("matmul.py"), include_str!("generate/rival.py"));
    let settings = Settings {
        model: &args.setup.model,
        prompt: args.prompt,
        threads: args.setup.threads,
        sequences: args.sequences.iter().copied().max().unwrap_or(1),
        context: args.prompt + args.tokens as usize,
        server: include_str!("../../../workers/python/examples/llama_cpp.py"),
    };
    let Some(mut rival) = args.setup.rival(transformers)? else { return Ok(Vec::new()) };
    let device: String = rival.ask(&settings)?;
    let mut contenders = vec![Contender { name: "transformers", dtypes: DTYPES, rival }];
    if device != "cpu" {
        return Ok(contenders);
    }
    if !args.vllm.is_file() {
        println!(
            "vllm={} is not there: vLLM is left out; `infra/dev/engines.sh setup vllm` makes it",
            args.vllm.display()
        );
    } else if let Some(mut rival) = args.setup.rival_of(&args.vllm, include_str!("generate/vllm.py"))? {
        rival.ask::<()>(&settings)?;
        contenders.push(Contender { name: "vLLM", dtypes: DTYPES, rival });
    }
    if let Some(mut rival) = args.setup.rival(include_str!("generate/llama.py"))? {
        match rival.ask::<Option<String>>(&settings)? {
            Some(why) => println!("llama.cpp is left out: {why}"),
            None => contenders.push(Contender { name: "llama.cpp", dtypes: ["float32", "float16"], rival }),
        }
    }
    Ok(contenders)
}

/// All runs of so many sequences, everybody's in turn.
fn row(args: &Args, sequences: usize, ours: &mut Ours, rivals: &mut [Contender]) -> anyhow::Result<Row> {
    let work = Work { prompt: args.prompt, tokens: args.tokens, seed: 0 };
    let side =
        |name, dtype| Side { name, dtype, tokens_per_s: f64::NAN, runs: Vec::new(), peak_device_bytes: None };
    let own = |dtype, tokens| ours.seconds(dtype, Work { tokens, ..work }, sequences);
    let mut sides = vec![side("millrace", faster("millrace", (DTYPES, args.tokens), own)?)];
    for Contender { name, dtypes, rival } in rivals.iter_mut() {
        let theirs = |dtype, tokens| rival.ask(&Question { sequences, dtype, tokens });
        sides.push(side(name, faster(name, (*dtypes, args.tokens), theirs)?));
    }
    peak(rivals)?;
    let mut products = Vec::new();
    let count = sequences as f64 * f64::from(args.tokens);
    for repeat in 1..=args.repeats {
        let seconds = ours.seconds(sides[0].dtype, Work { seed: u64::from(repeat), ..work }, sequences)?;
        sides[0].runs.push(count / seconds);
        for (side, Contender { rival, .. }) in sides[1..].iter_mut().zip(rivals.iter_mut()) {
            let question = Question { sequences, dtype: side.dtype, tokens: args.tokens };
            side.runs.push(count / rival.ask::<f64>(&question)?);
        }
        if let Some(Contender { rival, .. }) = rivals.first_mut() {
            products.push(rival.ask::<f64>(&Product { matmul: sides[0].dtype })?);
        }
        let said = sides.iter().map(|side| format!(" {} {:.1}", side.name, side.runs[side.runs.len() - 1]));
        println!("{sequences} sequences, tokens/s:{}", said.collect::<String>());
    }
    if let Some(theirs) = sides.get_mut(1) {
        theirs.peak_device_bytes = peak(rivals)?;
    }
    for side in &mut sides {
        side.tokens_per_s = median(side.runs.clone());
    }
    Ok(Row { sequences, sides, matmul_flops: (!products.is_empty()).then(|| median(products)) })
}

/// The most memory of the GPU that transformers, the first of the rivals, has had since it was
/// asked last.
fn peak(rivals: &mut [Contender]) -> anyhow::Result<Option<u64>> {
    let Some(Contender { rival, .. }) = rivals.first_mut() else { return Ok(None) };
    rival.ask(&Peak { peak: true })
}

/// The numbers that one side is faster with, seen by a run of each as it is measured, after a short one.
fn faster(
    who: &str,
    (dtypes, tokens): ([&'static str; 2], u32),
    mut seconds: impl FnMut(&'static str, u32) -> anyhow::Result<f64>,
) -> anyhow::Result<&'static str> {
    const WARM_UP: u32 = 8;
    let mut best = (f64::INFINITY, dtypes[0]);
    for dtype in dtypes {
        seconds(dtype, WARM_UP)?;
        let seconds = seconds(dtype, tokens)?;
        println!("{who} in {dtype}: {seconds:.2} s for {tokens} tokens");
        best = if seconds < best.0 { (seconds, dtype) } else { best };
    }
    Ok(best.1)
}

/// Samples of one long prompt, beside as many prompts.
fn shared(ours: &mut Ours, args: &Args) -> anyhow::Result<SharedPrefix> {
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
    Ok(SharedPrefix { samples: SAMPLES, prompt: PROMPT, prefill_tokens, seconds, apart_seconds })
}

fn table(f: &Figures) -> String {
    let mut table = format!(
        "Tokens a second, prompts of {} tokens and {} new, {} threads; medians of {} runs, each side in the numbers that it \
         is faster with. In brackets the share of a matrix product's speed; ratios are millrace's speed to theirs.\n\n",
        f.prompt, f.tokens, f.threads, f.repeats
    );
    for (index, Row { sequences, sides, matmul_flops }) in f.rows.iter().enumerate() {
        if index == 0 {
            let heads = sides.iter().skip(1).map(|side| format!(" {} | | ratio |", side.name));
            table += &format!("| sequences | millrace | |{}\n", heads.collect::<String>());
            table += &format!("|---|---|---|{}\n", "---|---|---|".repeat(sides.len() - 1));
        }
        table += &format!("| {sequences} |");
        for side in sides {
            let share = |flops: f64| format!(" ({:.0} %)", 100.0 * side.tokens_per_s * f.token_flops / flops);
            let share = matmul_flops.map_or_else(String::new, share);
            table += &format!(" {:.1}{share} | {} |", side.tokens_per_s, side.dtype);
            if side.name != sides[0].name {
                table += &format!(" {:.2} |", sides[0].tokens_per_s / side.tokens_per_s);
            }
        }
        table.push('\n');
    }
    let s = &f.shared;
    table += &format!(
        "\n{} samples of a prompt of {} tokens compute {} tokens of context in {:.2} s; prompts that differ take {:.2} s.\n",
        s.samples, s.prompt, s.prefill_tokens, s.seconds, s.apart_seconds
    );
    table += &f.ready.lines();
    let peaks = f.rows.iter().flat_map(|row| row.sides.iter().map(move |side| (row.sequences, side)));
    for (sequences, Side { name, peak_device_bytes, .. }) in peaks {
        if let Some(bytes) = peak_device_bytes {
            let gb = *bytes as f64 / 1e9;
            table += &format!(
                "\n{name} had {gb:.2} GB of the GPU's memory at most with {sequences} sequences and the model in both kinds.\n"
            );
        }
    }
    table + &f.parity.iter().map(Parity::line).collect::<String>()
}
