//! Pictures of what asynchrony gains, on a workload like the published one: over GPUs, over α, over the
//! share that trains, and what each GPU does when.

use std::path::{Path, PathBuf};

use anyhow::Context;
use millrace_schemas::plan::{PlanRequest, Spread};

use super::all;
use super::chart::{Chart, Line, lanes, lines};
use super::search::Search;
use super::split::{Division, Scale, Split};
use crate::bench::origin;

/// GPUs of the picture over GPUs.
const GPUS: [u32; 4] = [8, 16, 32, 64];
/// GPUs of the pictures over α and over the share that trains.
const FIXED: u32 = 16;
/// Async ratios of the picture over α.
const ALPHAS: [f64; 6] = [0.0, 0.5, 1.0, 2.0, 3.0, 4.0];
/// The async ratio of the other pictures.
const ALPHA: f64 = 2.0;
/// GPUs of the picture of what each does when: as many as can be told apart.
const LANES: u32 = 8;

/// An eighth of `scenarios/headlines/rlvr.toml`, whose 128 GPUs are 16 here, so that it takes minutes.
fn request(gpus: u32) -> PlanRequest {
    let nothing = Spread::LogNormal { median: 0.0, sigma: 0.0, most: 0.0 };
    PlanRequest {
        run: "rlvr, 128 rollouts".into(),
        gpus,
        least_trainers: 1,
        alphas: vec![ALPHA],
        groups: 16,
        group_size: 8,
        redundant_groups: 0,
        patience_s: 0,
        turns: Spread::LogNormal { median: 1.0, sigma: 0.0, most: 1.0 },
        tokens: Spread::LogNormal { median: 1_500.0, sigma: 1.0, most: 32_768.0 },
        slots: 64,
        slot_tokens_per_s: 54.6,
        lone_tokens_per_s: 98.7,
        env_s: nothing,
        reward_s: 0.0,
        train_gpu_s: 1_360.0,
        train_step_s: 2.0,
        load_s: 2.0,
        seed: 1,
        assumptions: vec![],
        measured: None,
    }
}

/// Draws them into `folder`.
///
/// # Errors
/// A run fails, or a file cannot be written.
pub(in crate::headlines) fn draw(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    std::fs::create_dir_all(folder).with_context(|| format!("failed to make folder={}", folder.display()))?;
    let origin = origin::origin();
    let mut paths = Vec::new();
    let mut keep = |name: &str, svg: String| {
        let path = folder.join(name);
        std::fs::write(&path, svg).with_context(|| format!("failed to write path={}", path.display()))?;
        paths.push(path);
        anyhow::Ok(())
    };
    keep("speed-up-over-gpus.svg", over_gpus(&origin)?)?;
    keep("speed-up-over-alpha.svg", over_alpha(&origin)?)?;
    keep("speed-up-over-train-share.svg", over_share(&origin)?)?;
    keep("idle-over-time.svg", over_time(&origin)?)?;
    Ok(paths)
}

/// All GPUs in turn, without asynchrony.
fn in_turn(gpus: u32) -> anyhow::Result<Split> {
    let request = request(gpus);
    Scale::whole(&request).play(&request, Division { generate: 0, train: 0, both: gpus, alpha: 0.0 })
}

/// The best split at an async ratio.
fn best(gpus: u32, alpha: f64) -> anyhow::Result<Split> {
    Ok(Search::new(&request(gpus), alpha).coarse()?.best().clone())
}

fn over_gpus(origin: &str) -> anyhow::Result<String> {
    let sync = all(GPUS.into_iter().map(|gpus| move || in_turn(gpus)))?;
    let ours = all(GPUS.into_iter().map(|gpus| move || best(gpus, ALPHA)))?;
    let first_s = sync.first().context("no run")?.step_s;
    let points = |splits: &[Split]| -> Vec<(f64, f64)> {
        GPUS.into_iter().zip(splits).map(|(gpus, split)| (f64::from(gpus), first_s / split.step_s)).collect()
    };
    let ideal = GPUS.into_iter().map(|gpus| (f64::from(gpus), f64::from(gpus) / f64::from(GPUS[0])));
    lines(&Chart {
        title: "Speed-up over GPUs, the same batch",
        x: "GPUs",
        y: "speed-up over 8 GPUs in turn, synchronous",
        lines: vec![
            Line { name: format!("α = {ALPHA}, the best split"), points: points(&ours) },
            Line { name: "synchronous, all GPUs in turn".into(), points: points(&sync) },
            Line { name: "proportional".into(), points: ideal.collect() },
        ],
        origin,
    })
}

fn over_alpha(origin: &str) -> anyhow::Result<String> {
    let sync_s = in_turn(FIXED)?.step_s;
    let splits = all(ALPHAS.into_iter().map(|alpha| move || best(FIXED, alpha)))?;
    let points = ALPHAS.into_iter().zip(&splits).map(|(alpha, split)| (alpha, sync_s / split.step_s));
    lines(&Chart {
        title: "Speed-up over α, 16 GPUs",
        x: "α, the staleness bound",
        y: "speed-up over all GPUs in turn, synchronous",
        lines: vec![Line { name: "the best split at each α".into(), points: points.collect() }],
        origin,
    })
}

fn over_share(origin: &str) -> anyhow::Result<String> {
    let sync_s = in_turn(FIXED)?.step_s;
    let request = &request(FIXED);
    let whole = Scale::whole(request);
    let trainers: Vec<u32> = (1..FIXED).step_by(2).collect();
    let mut of_alphas = Vec::new();
    for alpha in [0.0, 1.0, ALPHA] {
        let of = |train| Division { generate: FIXED - train, train, both: 0, alpha };
        let splits = all(trainers.iter().map(|train| move || whole.play(request, of(*train))))?;
        let points =
            splits.iter().map(|split| (f64::from(split.train) / f64::from(FIXED), sync_s / split.step_s));
        of_alphas.push(Line { name: format!("α = {alpha}"), points: points.collect() });
    }
    lines(&Chart {
        title: "Speed-up over the share that trains, 16 GPUs",
        x: "share of the GPUs that trains",
        y: "speed-up over all GPUs in turn, synchronous",
        lines: of_alphas,
        origin,
    })
}

fn over_time(origin: &str) -> anyhow::Result<String> {
    let (sync, ours) = (in_turn(LANES)?, best(LANES, ALPHA)?);
    let name = |split: &Split, what: &str| {
        format!("{what}: {:.0} s a step, idle {:.0} %", split.step_s, 100.0 * split.idle())
    };
    let sides = [
        (name(&sync, "synchronous, in turn"), &sync.timeline),
        (name(&ours, &format!("α = {ALPHA}, {} + {}", ours.generate, ours.train)), &ours.timeline),
    ];
    lanes("What 8 GPUs do when, three steps of the synchronous run", &sides, 3.0 * sync.step_s, origin)
}
