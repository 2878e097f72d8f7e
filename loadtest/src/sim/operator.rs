//! The operator submits the runs, and submits again those that the queue lost. A run that halts
//! stays halted, except one with a planted fault that needs a repair: it is resumed once, after the
//! repair. The operator accesses the queue without faults.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use millrace_coordinator::fold::state::{Run, State};
use millrace_queue::Broker;
use millrace_schemas::submit::RunSpec;
use millrace_schemas::{Event, RunId, subjects};
use tokio::time::{Instant, sleep};

use super::deadline::{AFTER_REPAIR, Ends};
use super::runs::AGENT_ROWS;
use super::world::World;
use crate::checkers::halts_have_a_cause::is_halted;
use crate::checkers::history::{Entry, advance};

/// Poll interval.
const LOOK: Duration = Duration::from_secs(2);

/// The operator.
pub(super) struct Operator<'a> {
    world: &'a World,
    broker: Broker,
    specs: Vec<RunSpec>,
    state: State,
    /// Power losses of the queue when the log was last read.
    losses: u64,
    /// When each run was first seen to have ended.
    ended: Ends,
    /// When all that needed a repair was repaired; `None` before.
    pub(super) repaired: Option<Instant>,
    /// Runs that were resumed after their repair: each once.
    resumed: BTreeSet<RunId>,
    /// The most tasks seen in the queue at once.
    pub(super) peak_queued: u64,
}

impl<'a> Operator<'a> {
    pub(super) fn new(world: &'a World, specs: Vec<RunSpec>) -> Self {
        world.plays(specs.iter().map(|spec| spec.name.clone()).collect());
        Self {
            world,
            broker: world.plain(),
            specs,
            state: State::default(),
            losses: 0,
            ended: Ends::new(),
            repaired: None,
            resumed: BTreeSet::new(),
            peak_queued: 0,
        }
    }

    /// Submits the runs that the log does not have.
    pub(super) async fn submit(&mut self) -> anyhow::Result<()> {
        for spec in &self.specs {
            if !self.state.runs.contains_key(&spec.name) {
                let unix_ms = self.world.unix_ms();
                if self.world.has_agents(&spec.name) {
                    self.broker.objects().put_blob(&spec.name, Bytes::from_static(AGENT_ROWS)).await?;
                }
                self.broker.append(subjects::ALL_RUNS, &Event::Tick { unix_ms }).await?;
                self.broker.append(spec.name.as_str(), &Event::Submitted(Box::new(spec.clone()))).await?;
            }
        }
        self.look().await
    }

    /// Tends the runs until `end`. Returns whether all have ended.
    pub(super) async fn tend(&mut self, end: Instant) -> anyhow::Result<bool> {
        while Instant::now() < end {
            sleep(LOOK).await;
            self.look().await?;
            self.submit().await?;
            self.resume().await?;
            if self.state.runs.values().all(Run::is_closed) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// When each run ended, counted from `quiet`.
    pub(super) fn ends(&self, quiet: Instant) -> BTreeMap<RunId, Option<Duration>> {
        let took = |run: &RunId| self.ended.get(run).map(|at| at.saturating_duration_since(quiet));
        self.specs.iter().map(|spec| (spec.name.clone(), took(&spec.name))).collect()
    }

    /// Catches up with the log.
    async fn look(&mut self) -> anyhow::Result<()> {
        self.peak_queued = self.peak_queued.max(self.world.queue.queued());
        let losses = self.world.queue.losses();
        if losses != self.losses {
            (self.losses, self.state) = (losses, State::default());
            self.ended.clear();
        }
        let end = self.broker.queue().log_end().await?;
        if self.state.seq >= end {
            return Ok(());
        }
        let mut log = self.broker.read_log(self.state.seq + 1).await?;
        while self.state.seq < end {
            for logged in log.next(1_024).await? {
                let entry =
                    Entry { seq: logged.seq, run: logged.run, epoch: logged.epoch, event: logged.event.ok() };
                advance(&mut self.state, &entry);
            }
        }
        for (id, _) in self.state.runs.iter().filter(|(_, run)| run.is_closed()) {
            self.ended.entry(id.clone()).or_insert_with(Instant::now);
        }
        Ok(())
    }

    /// Resumes what a fault halted that is repaired by now: once each. Whatever else halts stays so, and is found.
    async fn resume(&mut self) -> anyhow::Result<()> {
        if self.repaired.is_none_or(|at| at.elapsed() < AFTER_REPAIR) {
            return Ok(());
        }
        let planted = self.world.planted();
        let halted = self.state.runs.iter().filter(|(id, run)| is_halted(run) && planted.contains_key(*id));
        let halted: Vec<RunId> = halted.map(|(id, _)| id.clone()).collect();
        for run in halted {
            if self.resumed.insert(run.clone()) {
                tracing::info!(%run, "resumed after its repair");
                self.broker.append(run.as_str(), &Event::Resumed).await?;
            }
        }
        Ok(())
    }
}
