//! One seed: a world, its faults, quiet time, and what is left to be looked at.

use std::collections::BTreeMap;
use std::time::Duration;

use millrace_schemas::blob::Sha;
use millrace_schemas::envelope::encode;
use tokio::time::{Instant, sleep};

use super::fleet::Fleet;
use super::operator::Operator;
use super::runs::draw_runs;
use super::scenario::{FaultKind, Scenario};
use super::world::World;
use super::{deadline, faults};
use crate::checkers::history::Ended;
use crate::checkers::{History, PolicyWatch, SnapshotWatch, objects_stand, record};
use crate::virtual_time::in_virtual_time;

/// Undisturbed time in which every run must end.
const UNDISTURBED: Duration = Duration::from_secs(900);
/// Quiet time after the last run's end in which the queue must become empty: late acks are on their way.
const DRAIN: Duration = Duration::from_secs(100);

/// What one seed gave.
pub struct Played {
    /// What there is to be checked.
    pub history: History,
    /// Identifies the history: the same for the same seed and program.
    pub hash: Sha,
    /// Faults by kind.
    pub faults: BTreeMap<FaultKind, u64>,
    /// Rollouts begun, over all runs.
    pub rollouts: u64,
    /// Virtual time that went by.
    pub lasted: Duration,
}

/// Plays one seed in virtual time on this thread: first its runs without a fault, for their
/// undisturbed duration, then with all faults.
///
/// # Errors
/// The simulated world failed, which is a bug of the simulator and no finding.
pub fn play(seed: u64, scenario: &Scenario) -> anyhow::Result<Played> {
    let undisturbed = in_virtual_time(play_undisturbed(seed, scenario))?;
    in_virtual_time(play_in_time(seed, scenario, undisturbed))
}

/// For how long the runs of this seed take without a fault; [`UNDISTURBED`] where they do not end.
async fn play_undisturbed(seed: u64, scenario: &Scenario) -> anyhow::Result<Duration> {
    let start = Instant::now();
    let world = World::new(seed, scenario);
    let specs = draw_runs(&world, &scenario.runs);
    let fleet = Fleet::start(world.clone());
    let mut operator = Operator::new(&world, specs);
    operator.submit().await?;
    operator.tend(start + UNDISTURBED).await?;
    fleet.end();
    Ok(start.elapsed())
}

async fn play_in_time(seed: u64, scenario: &Scenario, undisturbed: Duration) -> anyhow::Result<Played> {
    let start = Instant::now();
    let world = World::new(seed, scenario);
    let specs = draw_runs(&world, &scenario.runs);
    let (policies, snapshots) = (PolicyWatch::default(), SnapshotWatch::default());
    let watching = [
        tokio::spawn(policies.clone().run(world.plain())),
        tokio::spawn(snapshots.clone().run(world.plain())),
    ];
    let fleet = Fleet::start(world.clone());
    let mut operator = Operator::new(&world, specs);
    operator.submit().await?;
    {
        let trouble = faults::bring(&fleet, scenario);
        let tend = operator.tend(start + Duration::from_secs(10 * scenario.seconds));
        // Trouble without a run would find nothing.
        tokio::select! {
            biased;
            () = trouble => {}
            tended = tend => drop(tended?),
        }
    }
    world.clear();
    fleet.mend();
    operator.repaired = Some(Instant::now());
    let most = deadline::most(&world, scenario, undisturbed);
    let quiet = Instant::now();
    // Twice as long, to tell a late end from none.
    operator.tend(quiet + 2 * most).await?;
    sleep(DRAIN).await;
    fleet.end();
    watching.iter().for_each(tokio::task::JoinHandle::abort);
    let mut history = record(&world.plain()).await?;
    history.objects = objects_stand::look(&world.plain(), &history.state).await?;
    history.policies = policies.seen();
    history.snapshots = snapshots.seen();
    history.peak_queued = Some(operator.peak_queued);
    history.puts = Some(world.puts.seen());
    history.losses = world.queue.losses();
    history.would_act = world.found();
    history.planted = Some(world.planted().into_keys().collect());
    history.ends = operator.ends(quiet).into_iter().map(|(run, took)| Ended { run, took, most }).collect();
    let rollouts = history.runs().map(|(_, run)| run.books.admitted).sum();
    Ok(Played { hash: hash(&history), faults: world.counts(), rollouts, lasted: start.elapsed(), history })
}

/// Over the whole history, to the byte.
fn hash(history: &History) -> Sha {
    let mut parts: Vec<Vec<u8>> = Vec::new();
    for entry in &history.log {
        parts.push(format!("{} {}", entry.seq, entry.run).into_bytes());
        parts.push(encode(&entry.event).to_vec());
    }
    for (run, versions) in &history.committed {
        parts.push(run.as_str().as_bytes().to_vec());
        parts.extend(versions.iter().flatten().map(|stored| stored.sha256.0.to_vec()));
    }
    for seen in &history.policies {
        parts.push(format!("{} {:?} {}", seen.run, seen.policy, seen.epoch).into_bytes());
    }
    parts.push(format!("{:?} {:?}", history.queued, history.dead).into_bytes());
    parts.push(format!("{:?} {:?} {:?}", history.puts, history.snapshots, history.ends).into_bytes());
    Sha::of_parts(parts.iter().map(Vec::as_slice))
}
