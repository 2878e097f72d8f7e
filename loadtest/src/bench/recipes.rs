//! What staleness costs: the same run under several algorithms, bounds on staleness and seeds, each by `millrace up`, one
//! after the other.

use std::path::PathBuf;

use anyhow::Context;
use clap::ValueEnum;
use millrace_schemas::RunSpec;
use millrace_schemas::report::Report;
use millrace_schemas::submit::{Advantage, Algorithm, Correction, CorrectionWeight, Loss, OldPolicy};
use serde::Serialize;

use super::play::{play, run_file};
use super::{mean_and_deviation, publish};

/// How to measure.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run file; its name, seed, α and what a recipe says are changed
    #[arg(long, default_value = "broker/coordinator/runs/frozen-lake-surroundings.toml")]
    run: PathBuf,
    /// Algorithms
    #[arg(long, value_delimiter = ',', default_values = ["grpo", "decoupled", "tis", "cispo", "topr"])]
    recipes: Vec<Recipe>,
    /// Bounds on staleness; 0 is synchronous
    #[arg(long, value_delimiter = ',', default_values_t = [0.0, 1.0, 2.0, 4.0])]
    alphas: Vec<f64>,
    /// Seeds
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 3])]
    seeds: Vec<u64>,
    /// Make this many steps instead of the run file's
    #[arg(long)]
    steps: Option<u64>,
    /// Folder of the runs
    #[arg(long, default_value = "target/recipes")]
    dir: PathBuf,
    /// Where the figures go as JSON
    #[arg(long, default_value = "target/bench/recipes.json")]
    out: PathBuf,
}

/// An algorithm, as far as it is not the run file's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
enum Recipe {
    /// The run file's: GRPO with PPO's clip, against the policy that sampled
    Grpo,
    /// Decoupled PPO: clipped against the version trained on, weighed by what that is to the policy that sampled
    Decoupled,
    /// The same, the weight cut at 2
    Tis,
    /// The clipped ratio as a weight
    Cispo,
    /// Tapered off-policy REINFORCE
    Topr,
    /// PPO with a critic
    Ppo,
}

impl Recipe {
    fn of(self, plain: &Algorithm) -> Algorithm {
        let weighed = |cap| Correction { weight: CorrectionWeight::Token, cap, ..Correction::default() };
        let plain = plain.clone();
        match self {
            Self::Grpo => plain,
            Self::Decoupled => Algorithm { old: OldPolicy::Proximal, correction: weighed(0.0), ..plain },
            Self::Tis => Algorithm { old: OldPolicy::Proximal, correction: weighed(2.0), ..plain },
            Self::Cispo => Algorithm { loss: Loss::Cispo, ..plain },
            Self::Topr => Algorithm { loss: Loss::Topr, ..plain },
            Self::Ppo => Algorithm { advantage: Advantage::Gae, ..plain },
        }
    }

    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// All seeds of a recipe under one bound.
#[derive(Debug, Serialize)]
struct Row {
    recipe: String,
    alpha: f64,
    runs: Vec<Report>,
}

/// Plays and prints.
///
/// # Errors
/// A run is refused or fails, or its books do not balance.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut base = run_file(&args.run)?;
    base.steps = args.steps.unwrap_or(base.steps);
    let mut rows = Vec::new();
    for &recipe in &args.recipes {
        for &alpha in &args.alphas {
            let mut runs = Vec::new();
            for &seed in &args.seeds {
                let spec = spec(&base, recipe, alpha, seed);
                let played = play(&args.dir, &spec, &[])
                    .with_context(|| format!("{} alpha={alpha} seed={seed}", recipe.name()))?;
                let success = 100.0 * played.success_after.unwrap_or(f64::NAN);
                println!(
                    "{} alpha={alpha} seed={seed}: {success:.1} % in {:.0} s",
                    recipe.name(),
                    played.wall_s
                );
                runs.push(played);
            }
            rows.push(Row { recipe: recipe.name(), alpha, runs });
            // After each row, since all of them take long.
            publish(&args.out, &rows, &table(&rows, &base))?;
        }
    }
    Ok(())
}

/// The run file of one run.
fn spec(base: &RunSpec, recipe: Recipe, alpha: f64, seed: u64) -> RunSpec {
    let mut spec = RunSpec { seed, algorithm: recipe.of(&base.algorithm), ..base.clone() };
    spec.rollout.alpha = alpha;
    spec.weights.newest = spec.weights.newest.max(spec.max_staleness() + 1);
    spec
}

fn table(rows: &[Row], base: &RunSpec) -> String {
    let mut table = format!(
        "`{}`, {} steps; held-out success of the last version, mean and standard deviation over seeds; every run balanced and \
         audited.\n\n| algorithm | α | seeds | success | seconds | mean staleness |\n|---|---|---|---|---|---|\n",
        base.name, base.steps
    );
    for row in rows {
        let of = |figure: &dyn Fn(&Report) -> f64| {
            mean_and_deviation(&row.runs.iter().map(figure).collect::<Vec<_>>())
        };
        let (success, spread) = of(&|run| 100.0 * run.success_after.unwrap_or(f64::NAN));
        let ((seconds, _), (staleness, _)) = (of(&|run| run.wall_s), of(&staleness));
        table += &format!(
            "| {} | {} | {} | {success:.1} ± {spread:.1} % | {seconds:.0} | {staleness:.2} |\n",
            row.recipe,
            row.alpha,
            row.runs.len()
        );
    }
    table
}

/// The mean over a run's rollouts.
fn staleness(run: &Report) -> f64 {
    let all: u64 = run.staleness.iter().sum();
    let sum: u64 = run.staleness.iter().enumerate().map(|(versions, count)| versions as u64 * count).sum();
    sum as f64 / all.max(1) as f64
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use millrace_schemas::submit::from_toml;

    use super::*;

    #[test]
    fn every_recipe_is_a_run_that_is_taken() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../broker/coordinator/runs/frozen-lake-surroundings.toml");
        let base = run_file(&path).unwrap();
        for recipe in Recipe::value_variants() {
            for alpha in [0.0, 1.0, 4.0, 64.0] {
                let spec = toml::to_string(&spec(&base, *recipe, alpha, 1)).unwrap();
                from_toml(&spec).unwrap_or_else(|e| panic!("{recipe:?} alpha={alpha}: {e}"));
            }
        }
    }

    #[test]
    fn means_and_deviations_are_those_of_a_sample() {
        assert_eq!(mean_and_deviation(&[1.0, 2.0, 3.0]), (2.0, 1.0));
        assert_eq!(mean_and_deviation(&[4.0]), (4.0, 0.0));
        let report = Report { staleness: vec![1, 2, 1], ..Report::default() };
        assert_eq!(staleness(&report), 1.0);
    }
}
