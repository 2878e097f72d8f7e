//! The thread that owns the trainer.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millrace_schemas::submit::{Algorithm, ModelSpec};
use millrace_schemas::train_shard::Batch;
use millrace_schemas::{BlobRef, RunId};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::past::StoredPast;
use crate::gang::RankAssignment;
use crate::model::versions::LoadedVersion;
use crate::policy::{PolicyError, TrainStep, Trained, Trainer, model_type, trainer_for};
use crate::runtime::panic_message;

/// Time for the thread to notice that nobody waits for what it computes. A long step of one worker alone passes
/// it, too: that worker is no member meanwhile, and loses nothing by it.
const LETTING_GO: Duration = Duration::from_secs(15);

/// What to compute.
pub(super) enum Job {
    /// Version 0.
    Initialise { model: ModelSpec, seed: u64 },
    /// One optimiser step.
    Step(Box<StepJob>),
}

/// What a step depends on.
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

/// A job, whose it is, and who waits for it.
type Order = (RunId, Job, oneshot::Sender<Result<Trained, PolicyError>>);

/// A handle to the thread. The thread ends when it is dropped.
#[derive(Debug)]
pub(super) struct TrainerThread {
    orders: mpsc::UnboundedSender<Order>,
    at_work: Arc<Mutex<AtWork>>,
}

/// What the thread is at, as its handle sees it.
#[derive(Debug, Default)]
struct AtWork {
    computes: bool,
    /// Since when nobody waits for what it computes.
    abandoned: Option<Instant>,
}

/// Waits for a job: dropped before its end, it marks what is computed as abandoned.
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

    /// Whether the thread answers: it does not if it goes on for long with what it was told to leave.
    pub(super) fn is_well(&self) -> bool {
        let at_work = self.at_work.lock().unwrap_or_else(PoisonError::into_inner);
        at_work.abandoned.is_none_or(|since| since.elapsed() < LETTING_GO)
    }

    /// Computes a job. A job that has begun is computed to its end even if nobody waits for it any more.
    pub(super) async fn train(&self, run: RunId, job: Job) -> Result<Trained, PolicyError> {
        let (reply, answer) = oneshot::channel();
        // A thread that is gone drops the order, and the answer says so.
        let _ = self.orders.send((run, job, reply));
        let _waiting = Waiting(&self.at_work);
        let answer = answer.await;
        answer.unwrap_or_else(|_| Err(PolicyError::Temporary("the trainer's thread is gone".to_owned())))
    }
}

/// A trainer, and what its state belongs to. One at a time: a model and its optimiser may fill the device.
struct Current {
    run: RunId,
    model_type: String,
    trainer: Box<dyn Trainer>,
}

/// Consumes orders, produces trained versions. Waits for the next order; one whose task was dropped meanwhile
/// is passed over. A trainer that fails is let go with its state, unless its gang failed. Ends when nobody can send.
fn serve(mut inbox: mpsc::UnboundedReceiver<Order>, at_work: &Mutex<AtWork>) {
    let note = |computes| {
        *at_work.lock().unwrap_or_else(PoisonError::into_inner) = AtWork { computes, abandoned: None };
    };
    let mut current = None;
    while let Some((run, job, reply)) = inbox.blocking_recv() {
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
            // A void step leaves the trainer as it was, and the gang makes it again.
            Ok(_) | Err(PolicyError::Void(_)) => {}
            Err(_) => current = None,
        }
        note(false);
        // Whoever asked may have left.
        let _ = reply.send(answer);
    }
}

fn compute(current: &mut Option<Current>, run: RunId, job: Job) -> Result<Trained, PolicyError> {
    let model_type = job.model_type()?;
    let fits = |held: &Current| held.run == run && held.model_type == model_type;
    let held = match current.take().filter(fits) {
        Some(held) => held,
        None => Current { trainer: trainer_for(&model_type)?, run, model_type },
    };
    let trainer = &mut current.insert(held).trainer;
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
