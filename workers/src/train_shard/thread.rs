//! The thread that owns the trainer.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millrace_policy::gang::RankAssignment;
use millrace_policy::{LoadedVersion, PolicyError, TrainStep, Trained, Trainer};
use millrace_schemas::submit::{Algorithm, ModelSpec};
use millrace_schemas::train_shard::Batch;
use millrace_schemas::{BlobRef, RunId};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::past::StoredPast;
use crate::policy::{model_type, trainer_for};
use crate::runtime::{StepTurn, panic_message};

/// Time for the thread to notice that its job was abandoned. A long step of a gang of one may
/// exceed it, too: that worker is no member meanwhile, which costs it nothing.
const ABANDON_GRACE: Duration = Duration::from_secs(15);

pub(super) enum Job {
    /// Version 0.
    Initialise { model: ModelSpec, seed: u64 },
    /// One optimiser step.
    Step(Box<StepJob>),
}

/// The inputs of a step.
pub(super) struct StepJob {
    pub(super) base: LoadedVersion,
    pub(super) batch: Batch,
    pub(super) blob: BlobRef,
    pub(super) algorithm: Box<Algorithm>,
    pub(super) reference: Option<LoadedVersion>,
    pub(super) assignment: Option<RankAssignment>,
    pub(super) checkpoint: bool,
    pub(super) past: StoredPast,
}

impl Job {
    fn model_type(&self) -> Result<String, PolicyError> {
        match self {
            Self::Initialise { model, .. } => Ok(model_type(model).to_owned()),
            Self::Step(step) => step.base.model_type(),
        }
    }
}

/// A job of a run.
struct Order {
    run: RunId,
    job: Job,
    /// The device, where an engine shares it: the thread has it until the job has ended, even if
    /// nobody waits for it any more.
    device: Option<StepTurn>,
    reply: oneshot::Sender<Result<Trained, PolicyError>>,
}

/// A handle to the thread, which ends when the handle is dropped.
#[derive(Debug)]
pub(super) struct TrainerThread {
    orders: mpsc::UnboundedSender<Order>,
    at_work: Arc<Mutex<AtWork>>,
}

/// What the thread does now, for its handle.
#[derive(Debug, Default)]
struct AtWork {
    computes: bool,
    /// When the caller dropped the present job; `None` while it waits.
    abandoned: Option<Instant>,
}

/// Dropped before the job's end, it marks the job as abandoned.
struct Waiting<'a>(&'a Mutex<AtWork>);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut at_work = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if at_work.computes {
            at_work.abandoned.get_or_insert(Instant::now());
        }
    }
}

impl TrainerThread {
    /// Starts the thread.
    pub(super) fn start() -> Self {
        let (orders, inbox) = mpsc::unbounded_channel();
        let at_work = Arc::<Mutex<AtWork>>::default();
        std::thread::Builder::new()
            .name("trainer".to_owned())
            .spawn({
                let at_work = at_work.clone();
                move || serve(inbox, &at_work)
            })
            .expect("the system has room for a thread");
        Self { orders, at_work }
    }

    /// Whether the thread answers. It does not if it continues an abandoned job for long.
    pub(super) fn is_well(&self) -> bool {
        let at_work = self.at_work.lock().unwrap_or_else(PoisonError::into_inner);
        at_work.abandoned.is_none_or(|since| since.elapsed() < ABANDON_GRACE)
    }

    /// Computes a job. A job that has started is computed to its end even if the caller is gone.
    pub(super) async fn train(
        &self,
        run: RunId,
        job: Job,
        device: Option<StepTurn>,
    ) -> Result<Trained, PolicyError> {
        let (reply, answer) = oneshot::channel();
        // A thread that is gone drops the order, and with it the reply's sender.
        let _ = self.orders.send(Order { run, job, device, reply });
        let _waiting = Waiting(&self.at_work);
        let answer = answer.await;
        answer.unwrap_or_else(|_| Err(PolicyError::Temporary("the trainer's thread is gone".to_owned())))
    }
}

/// The trainer of one run. There is one at a time, because a model and its optimiser may fill the
/// device.
struct Current {
    run: RunId,
    model_type: String,
    trainer: Box<dyn Trainer>,
}

/// Consumes orders, produces trained versions. Waits for the next order. An order whose task was
/// dropped meanwhile is skipped. A trainer that fails is dropped with its state, unless its gang
/// failed. Ends when the handle is dropped.
fn serve(mut inbox: mpsc::UnboundedReceiver<Order>, at_work: &Mutex<AtWork>) {
    let note = |computes| {
        *at_work.lock().unwrap_or_else(PoisonError::into_inner) = AtWork { computes, abandoned: None };
    };
    let mut current = None;
    while let Some(Order { run, job, device, reply }) = inbox.blocking_recv() {
        if reply.is_closed() {
            continue;
        }
        note(true);
        let computed = catch_unwind(AssertUnwindSafe(|| compute(&mut current, run, job)));
        let answer = computed.unwrap_or_else(|panic| {
            let message = panic_message(&*panic);
            Err(PolicyError::Temporary(format!("the trainer panicked: {message}")))
        });
        match answer {
            // A void step leaves the trainer as it was, and the gang redoes it.
            Ok(_) | Err(PolicyError::Void(_)) => {}
            Err(_) => current = None,
        }
        if device.is_some() {
            leave_device(&mut current);
        }
        drop(device);
        note(false);
        // The receiver may be gone.
        let _ = reply.send(answer);
    }
}

/// Releases the device for the engine. A state that cannot be moved is dropped; it comes back from
/// files.
fn leave_device(current: &mut Option<Current>) {
    let Some(trains) = current else { return };
    if let Err(error) = trains.trainer.leave_device() {
        tracing::warn!(run = %trains.run, %error, "the trainer's state is dropped, to release the device");
        *current = None;
    }
}

fn compute(current: &mut Option<Current>, run: RunId, job: Job) -> Result<Trained, PolicyError> {
    let model_type = job.model_type()?;
    let fits = |current: &Current| current.run == run && current.model_type == model_type;
    let fitting = match current.take().filter(fits) {
        Some(fitting) => fitting,
        None => Current { trainer: trainer_for(&model_type)?, run, model_type },
    };
    let trainer = &mut current.insert(fitting).trainer;
    match job {
        Job::Initialise { model, seed } => trainer.initialise(&model, seed),
        Job::Step(job) => {
            let StepJob { base, batch, blob, algorithm, reference, assignment, checkpoint, past } = &*job;
            let (blob, checkpoint) = (*blob, *checkpoint);
            let (reference, assignment) = (reference.as_ref(), assignment.as_ref());
            trainer.step(base, &TrainStep { batch, blob, algorithm, reference, assignment, checkpoint, past })
        }
    }
}
