//! Published results that scheduling decides, reproduced on simulated GPUs. The coordinator, the
//! queue in memory and the workers' run loop are the real ones, in one process and in virtual time;
//! what a GPU computes is a time that passes. `scenarios/headlines/` has the assumptions, and
//! `loadtest/README.md` what costs nothing.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::bench::publish;
use crate::virtual_time::in_virtual_time;
use figures::Figures;
use row::Row;
use scenario::{Fleet, Role, Scenario};

mod draw;
mod scenario;
mod engine;
mod lockstep;
mod plant;
mod node;
mod play;
mod timeline;
mod theory;
mod figures;
mod row;
pub mod plan;

/// The best fleet of each side is chosen with this seed, which is not measured.
const CHOOSING_SEED: u64 = 1_000;

/// What to reproduce.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only these scenarios, by name or file
    #[arg(long, value_delimiter = ',')]
    scenarios: Vec<String>,
    /// Seeds: each draws other lengths and latencies
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 3])]
    seeds: Vec<u64>,
    /// Where the figures go; the tables go beside them, as Markdown
    #[arg(long, default_value = "target/bench/headlines.json")]
    out: PathBuf,
    /// Draw pictures into this folder instead, on a smaller workload: speed-up over GPUs, over α, over
    /// the share that trains; what each GPU does when
    #[arg(long, value_name = "DIR", conflicts_with_all = ["scenarios", "seeds", "out"])]
    plots: Option<PathBuf>,
}

/// Reproduces them, and prints what theory says against it.
///
/// # Errors
/// A scenario is refused, or a run fails.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(folder) = &args.plots {
        for path in plan::pictures::draw(folder)? {
            println!("in {}", path.display());
        }
        return Ok(ExitCode::SUCCESS);
    }
    let scenarios = if args.scenarios.is_empty() {
        Scenario::shipped()
    } else {
        args.scenarios.iter().map(|name| Scenario::read(name)).collect::<anyhow::Result<_>>()?
    };
    let mut rows = Vec::new();
    for scenario in scenarios {
        rows.push(reproduce(scenario, &args.seeds)?);
        // A long command: what there is so far is worth keeping.
        row::keep(&args.out, &rows)?;
    }
    publish(&args.out, &row::record(&rows), &row::page(&rows))?;
    let findings = rows.iter().flat_map(Row::findings).count();
    Ok(if findings == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Chooses the best fleet of each side, and measures them.
fn reproduce(scenario: Scenario, seeds: &[u64]) -> anyhow::Result<Row> {
    let mut chosen: Vec<Fleet> = Vec::new();
    let mut tried = Vec::new();
    for role in [Role::Baseline, Role::Ours] {
        let mut fleets: Vec<&Fleet> = scenario.fleets.iter().filter(|fleet| fleet.role == role).collect();
        if fleets.len() > 1 {
            let mut played = Vec::new();
            for fleet in fleets {
                let figures = measured(&scenario, fleet, CHOOSING_SEED)?;
                played.push((fleet, figures.clone()));
                tried.push(figures);
            }
            fleets = best(&played).into_iter().collect();
        }
        chosen.extend(fleets.into_iter().cloned());
    }
    chosen.extend(scenario.fleets.iter().filter(|fleet| fleet.role == Role::Beside).cloned());
    let mut runs = Vec::new();
    for fleet in &chosen {
        for seed in seeds {
            runs.push(measured(&scenario, fleet, *seed)?);
        }
    }
    Ok(Row::new(scenario, &chosen, tried, runs))
}

/// The fastest that does not train on other lengths than are offered, or the fastest of all.
fn best<'a>(played: &[(&'a Fleet, Figures)]) -> Option<&'a Fleet> {
    let fastest = |honest: bool| {
        let fair = played.iter().filter(|(_, figures)| !honest || figures.is_as_expected());
        fair.min_by(|(_, one), (_, other)| one.step_s.total_cmp(&other.step_s)).map(|(fleet, _)| *fleet)
    };
    fastest(true).or_else(|| fastest(false))
}

fn measured(scenario: &Scenario, fleet: &Fleet, seed: u64) -> anyhow::Result<Figures> {
    let figures = in_virtual_time(play::play(scenario, fleet, seed))?;
    println!("{}: {} seed={seed}: {:.1} s a step", scenario.name, fleet.name, figures.step_s);
    Ok(figures)
}
