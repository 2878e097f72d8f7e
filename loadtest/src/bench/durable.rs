//! What durability costs and what it saves: rollouts a second that are durable, beside a buffer in
//! memory and the bare disk; then what `kill -9` of each role loses, beside what a buffer in memory
//! would have held.

use std::path::PathBuf;

use serde::Serialize;

use super::{cores, origin, publish};
use lost::Lost;
use rate::Rates;

mod lost;
mod disk;
mod memory;
mod rate;

/// How to measure.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Seconds of each measurement
    #[arg(long, default_value_t = 1.5)]
    seconds: f64,
    /// How often all rates are measured, in turn; medians are printed
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Kilobytes of a rollout
    #[arg(long, value_delimiter = ',', default_value = "1,64,128,256,512")]
    kilobytes: Vec<u32>,
    /// Connections that append
    #[arg(long, default_value_t = 2)]
    producers: u32,
    /// Megabytes that are on their way at once, at most 1,024 rollouts
    #[arg(long, default_value_t = 32)]
    in_flight_mb: u32,
    /// Which processes are killed, each in a run of its own: generate, generate-goes-on, env,
    /// train, coordinator, nats-server; nobody-goes-on. Default: all; `none` for no run
    #[arg(long, value_delimiter = ',')]
    kills: Vec<String>,
    /// Train steps of each such run; the kill is in the middle
    #[arg(long, default_value_t = 16)]
    steps: u64,
    /// Folder for the processes
    #[arg(long, default_value = "target/durable")]
    dir: PathBuf,
    /// Where the figures go as JSON
    #[arg(long, default_value = "target/bench/durable.json")]
    out: PathBuf,
}

#[derive(Debug, Serialize)]
struct Figures {
    seconds: f64,
    rounds: u32,
    cores: usize,
    /// Load average before and after.
    load: [f64; 2],
    rates: Vec<Rates>,
    lost: Vec<Lost>,
}

/// Measures and prints.
///
/// # Errors
/// There is no nats-server, no Python, a run cannot be played, or a role is unknown.
pub async fn run(args: &Args) -> anyhow::Result<()> {
    let chosen = lost::cases(&args.kills)?;
    let before = origin::load();
    let rates = rate::measure(args).await?;
    let mut lost = Vec::new();
    for case in chosen {
        let figures = lost::play(&args.dir, case, args.steps).await?;
        println!("{figures:?}");
        lost.push(figures);
    }
    let Args { seconds, rounds, .. } = *args;
    let load = [before, origin::load()];
    let figures = Figures { seconds, rounds, cores: cores(), load, rates, lost };
    publish(&args.out, &figures, &table(&figures))
}

fn table(figures: &Figures) -> String {
    let Figures { seconds, rounds, load: [before, after], rates, lost, .. } = figures;
    let mut text = format!(
        "Medians of {rounds} rounds in turn, {seconds} s a measurement. Load average before and after: {before:.1}, \
         {after:.1}.\n\n"
    );
    text += rate::HEAD;
    text.extend(rates.iter().map(Rates::line));
    if !lost.is_empty() {
        text += "\n";
        text += lost::HEAD;
        text.extend(lost.iter().map(Lost::line));
    }
    text
}
