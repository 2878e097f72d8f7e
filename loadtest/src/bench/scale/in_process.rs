//! Everything in this process, in virtual time.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use async_trait::async_trait;
use millrace_autoscaler::targets::Target;
use millrace_autoscaler::{Autoscaler, Board, ScalingFile};
use millrace_coordinator::fold::demand;
use millrace_queue::{Broker, QueueSettings};
use millrace_schemas::{RunId, Stage};
use millrace_telemetry::Health;
use millrace_workers::{Departure, Worker, WorkerSettings};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::ground::{Ground, Progress};
use super::machines::{Host, Machines, Pool, Ready, Shape};
use super::work::{self, Begun, Law, Pace};
use crate::virtual_run::{VirtualRun, pools};

/// A coordinator of this process, and what it scales by.
pub(super) struct InProcess {
    run: VirtualRun,
    pace: Pace,
    scaling: Option<Arc<ScalingFile>>,
    submitted: Mutex<Option<RunId>>,
    begun: Arc<Mutex<Vec<Begun>>>,
}

impl InProcess {
    pub(super) async fn start(law: Law, ack_wait_s: f64, scaling: Option<String>) -> anyhow::Result<Self> {
        let pace = Pace::new(law, Instant::now());
        let run = VirtualRun::start(QueueSettings::default().with_ack_wait(ack_wait_s)?).await?;
        let scaling = scaling.map(|text| ScalingFile::parse(&text)).transpose()?.map(Arc::new);
        Ok(Self { run, pace, scaling, submitted: Mutex::default(), begun: Arc::default() })
    }
}

#[async_trait]
impl Ground for InProcess {
    fn pace(&self) -> &Pace {
        &self.pace
    }

    fn host(&self) -> Arc<dyn Host> {
        Arc::new(Tasks {
            broker: self.run.broker.clone(),
            pace: self.pace.clone(),
            begun: self.begun.clone(),
        })
    }

    fn drains(&self) -> bool {
        false
    }

    async fn submit(&self, text: &str) -> anyhow::Result<()> {
        let run = self.run.submit(text).await?;
        *self.submitted.lock().unwrap_or_else(PoisonError::into_inner) = Some(run);
        Ok(())
    }

    async fn progress(&self) -> anyhow::Result<Progress> {
        let run = self.submitted.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let run = run.context("no run was submitted")?;
        let over = self.run.is_over(&run)?;
        let state = self.run.shared.lock();
        let Some(run) = state.runs.get(&run) else { return Ok(Progress::default()) };
        let books = &run.books;
        let demands = demand::of(&state);
        let tasks = |stage: &Stage| demands.iter().map(|demand| demand.tasks(*stage)).sum();
        Ok(Progress {
            over,
            version: run.version().0,
            turns: books.counters.turns,
            trained_turns: books.counters.trained_turns,
            dropped: books.dropped.values().sum(),
            tasks: Stage::QUEUED.iter().map(|stage| (*stage, tasks(stage))).collect(),
        })
    }

    fn follow(&self, pools: Vec<Arc<Machines>>) -> JoinHandle<()> {
        let targets = pools
            .into_iter()
            .map(|pool| (pool.shape.name.to_owned(), Arc::new(Pool(pool)) as Arc<dyn Target>));
        let VirtualRun { broker, shared, config, stop, .. } = &self.run;
        let autoscaler = Autoscaler {
            broker: broker.clone(),
            shared: shared.clone(),
            term: config.term.clone(),
            clock: config.clock.clone(),
            file: self.scaling.clone().expect("only a coordinator with a scaling file decides"),
            board: Board::default(),
        };
        tokio::spawn(millrace_autoscaler::run(autoscaler, targets.collect(), stop.clone()))
    }

    fn begun(&self) -> anyhow::Result<Vec<Begun>> {
        Ok(self.begun.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    async fn end(&self) {
        self.run.stop.cancel();
    }
}

/// Instances that are async tasks.
struct Tasks {
    broker: Broker,
    pace: Pace,
    begun: Arc<Mutex<Vec<Begun>>>,
}

#[async_trait]
impl Host for Tasks {
    async fn serve(&self, shape: &Shape, name: &str, departure: &Departure, ready: Ready) {
        let id = name.parse().expect("a pool's name and a number are a worker's name");
        let settings = WorkerSettings { member_of: Some(shape.name.to_owned()), ..WorkerSettings::new(id) };
        let pools = pools(shape.stages.iter().map(|stage| (*stage, shape.slots)));
        let (of, begun) = (name.to_owned(), self.begun.clone());
        let executor = work::Worker::of(&self.pace, move |key, at_s| {
            let task = Begun { worker: of.clone(), key, at_s };
            begun.lock().unwrap_or_else(PoisonError::into_inner).push(task);
        });
        let worker = Worker::start(self.broker.clone(), settings);
        ready();
        worker.serve(pools, move |_| executor.clone(), Health::default(), departure.clone()).await;
    }
}
