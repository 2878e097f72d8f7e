//! Half load for as long as one likes: whether memory and disk stay as they are.

use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::plane::Plane;
use super::{SMALL, rate};

/// Between two samples.
const EVERY: Duration = Duration::from_secs(5);
/// Of the rate that the closed loop reaches.
const SHARE: f64 = 0.5;

/// What was seen.
#[derive(Debug, Serialize)]
pub(super) struct Soak {
    minutes: f64,
    per_s: f64,
    /// Lives in all.
    lives: u64,
    samples: Vec<Sample>,
}

#[derive(Debug, Serialize)]
struct Sample {
    s: f64,
    coordinator_mb: f64,
    server_mb: f64,
    /// The streams' files.
    streams_mb: f64,
    /// The object store.
    objects_mb: f64,
}

/// Plays and samples.
///
/// # Errors
/// A program is missing, or a process fails.
pub(super) async fn soak(minutes: f64, seconds: f64) -> anyhow::Result<Soak> {
    let mut plane = Plane::start(SMALL).await?;
    let per_s = SHARE * rate(&plane, Duration::from_secs_f64(seconds)).await;
    plane.player.pace(Some(per_s));
    let (since, mut samples) = (Instant::now(), Vec::new());
    let begun = plane.player.lives();
    while since.elapsed().as_secs_f64() < 60.0 * minutes {
        tokio::time::sleep(EVERY).await;
        let used = plane.usage()?;
        let [streams_mb, objects_mb] = plane.folders().map(|folder| megabytes(&folder));
        let (coordinator_mb, server_mb) = (used.coordinator_mb, used.server_mb);
        let s = since.elapsed().as_secs_f64();
        samples.push(Sample { s, coordinator_mb, server_mb, streams_mb, objects_mb });
        // Kept nowhere else for so long.
        plane.player.take_late_us();
    }
    let lives = plane.player.lives() - begun;
    plane.end().await?;
    Ok(Soak { minutes, per_s, lives, samples })
}

/// Of all files below a folder. One that goes meanwhile counts for nothing.
fn megabytes(folder: &Path) -> f64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0.0 };
    let of = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(data) if data.is_dir() => megabytes(&entry.path()),
        Ok(data) => data.len() as f64 / 1e6,
        Err(_) => 0.0,
    };
    entries.flatten().map(of).sum()
}

impl Soak {
    /// Means of each third.
    pub(super) fn table(&self) -> String {
        let head = format!(
            "\n{:.0} minutes at {:.0} lives/s, half of what the closed loop reached; {} lives. Means of each third:\n\n\
             | | coordinator MB | nats-server MB | streams on disk MB | objects MB |\n|---|---|---|---|---|\n",
            self.minutes, self.per_s, self.lives
        );
        let row = |third: usize| {
            let length = self.samples.len() / 3;
            let samples = &self.samples[third * length..(third + 1) * length];
            let mean = |of: fn(&Sample) -> f64| samples.iter().map(of).sum::<f64>() / length.max(1) as f64;
            format!(
                "| {} | {:.0} | {:.0} | {:.0} | {:.1} |\n",
                ["first", "second", "last"][third],
                mean(|sample| sample.coordinator_mb),
                mean(|sample| sample.server_mb),
                mean(|sample| sample.streams_mb),
                mean(|sample| sample.objects_mb)
            )
        };
        head + &(0..3).map(row).collect::<String>()
    }
}
