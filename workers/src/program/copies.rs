//! The running copies of a program, and the requests that wait for one. A copy takes as many waiting
//! requests at once as its last answers were fast enough for, and gets them in one write. Who waits
//! behind a slow or deadly request is asked again, alone, in another copy.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::FusedFuture;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::line::Answer;
use super::process::Process;
use super::{ProgramError, begin};
use crate::runtime::SlotWait;

/// A batch that is answered within this time may grow.
const FAST: Duration = Duration::from_millis(50);
/// A batch of several requests that brings no answer for so long is taken back. A single request may
/// take as long as its task.
const BATCH_PATIENCE: Duration = Duration::from_secs(3);
/// After this time with one request a copy no longer counts: another one may serve the others.
const STUCK: Duration = Duration::from_secs(3);
/// A request that nobody waits for any more may take so long before its copy is killed. Restarting a
/// copy costs more than the end of most requests.
const ABANDONED: Duration = Duration::from_secs(1);

/// A request that waits.
#[derive(Debug)]
struct Waiting {
    number: u64,
    line: Vec<u8>,
    /// It was in a batch that brought no answer: it goes by itself, to be known if it is the cause.
    alone: bool,
    /// It waits until a copy is at it, behind others of its batch too: none of its attempt's time.
    slot: SlotWait,
    answer: oneshot::Sender<Result<Answer, ProgramError>>,
}

impl Waiting {
    fn end(self, answer: Result<Answer, ProgramError>) {
        // Nobody may wait for it any more.
        let _ = self.answer.send(answer);
    }
}

/// The copies of a program. They are killed on drop.
#[derive(Debug)]
pub(super) struct Copies {
    shared: Arc<CopiesInner>,
    /// Their async tasks.
    tasks: Mutex<JoinSet<()>>,
}

#[derive(Debug)]
struct CopiesInner {
    command: String,
    /// Copies at most that are not stuck.
    most: usize,
    /// Requests of one batch at most.
    batch: usize,
    state: Mutex<BatchState>,
    arrived: Notify,
}

#[derive(Debug, Default)]
struct BatchState {
    waiting: VecDeque<Waiting>,
    running: usize,
    idle: usize,
    stuck: usize,
}

impl Copies {
    pub(super) fn new(command: &str, first: Process, most: usize, batch: usize) -> Self {
        let (command, state) = (command.to_owned(), Mutex::default());
        let shared = Arc::new(CopiesInner { command, most, batch, state, arrived: Notify::new() });
        let copies = Self { shared, tasks: Mutex::default() };
        copies.shared.state().running += 1;
        copies.spawn(Some(first));
        copies
    }

    /// Waits for the answer to one request. Dropping the future withdraws the request; a copy that is
    /// at it and does not end soon is killed.
    pub(super) async fn ask(&self, number: u64, line: Vec<u8>) -> Result<Answer, ProgramError> {
        let (answer, answered) = oneshot::channel();
        self.shared.state().waiting.push_back(Waiting {
            number,
            line,
            alone: false,
            slot: SlotWait::begin(),
            answer,
        });
        self.shared.arrived.notify_one();
        let mut answered = std::pin::pin!(answered);
        loop {
            self.start_another();
            // A copy may get stuck, or end, while this request waits for one.
            match timeout(STUCK, &mut answered).await {
                Ok(answer) => return answer.unwrap_or(Err(ProgramError::Died)),
                Err(_) => continue,
            }
        }
    }

    /// Starts a copy if requests wait, none is idle, and one more may run.
    fn start_another(&self) {
        let mut state = self.shared.state();
        if !state.waiting.is_empty() && state.idle == 0 && state.running < self.shared.limit(&state) {
            state.running += 1;
            drop(state);
            self.spawn(None);
        }
    }

    fn spawn(&self, process: Option<Process>) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(self.shared.clone().serve(process));
    }
}

impl CopiesInner {
    fn state(&self) -> MutexGuard<'_, BatchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies at most: those that are stuck are replaced, as long as they are not more than the
    /// others.
    fn limit(&self, state: &BatchState) -> usize {
        self.most + state.stuck.min(self.most)
    }

    /// One copy's life. Consumes waiting requests, produces their answers. Waits for requests, then
    /// for the process. A batch that brings no answer ends the process; the next batch starts
    /// another. Ends when there are more copies than may run.
    async fn serve(self: Arc<Self>, mut process: Option<Process>) {
        let mut size = 1;
        while let Some(batch) = self.take(size).await {
            // It may have died while it was idle, which is no fault of these requests.
            let usable = match process.take() {
                Some(copy) => self.usable(copy).await,
                None => None,
            };
            let copy = match usable {
                Some(copy) => Ok(copy),
                None => begin(&self.command).await.map(|(copy, _)| copy),
            };
            match copy {
                Ok(mut copy) => {
                    let (asked, begun) = (batch.len(), Instant::now());
                    let is_usable = self.answer(&mut copy, batch).await;
                    process = is_usable.then_some(copy);
                    size = self.next_size(is_usable, asked, begun.elapsed());
                }
                Err(error) => batch.into_iter().for_each(|waiting| waiting.end(Err(error.clone()))),
            }
        }
    }

    /// The copy, if it lives and has said nothing unasked: that would be taken for the answer to the
    /// next request, and each answer after it for that of another.
    async fn usable(&self, mut copy: Process) -> Option<Process> {
        if !copy.is_alive() {
            return None;
        }
        if let Some(line) = copy.unasked().await {
            let command = &self.command;
            tracing::warn!(command, line, "a copy said more than one line to a request; another replaces it");
            return None;
        }
        Some(copy)
    }

    /// Requests of the next batch at most: as many as a copy answers in a short time.
    fn next_size(&self, is_usable: bool, asked: usize, took: Duration) -> usize {
        match (is_usable, took <= FAST) {
            (true, true) => (2 * asked).min(self.batch),
            (true, false) => asked.div_ceil(2),
            (false, _) => 1,
        }
    }

    /// Waits for requests and takes up to `size` of them; `None` when this copy is one too many.
    async fn take(&self, size: usize) -> Option<Vec<Waiting>> {
        loop {
            {
                let mut state = self.state();
                if state.running > self.limit(&state) {
                    state.running -= 1;
                    // Whom it was told of is for another copy.
                    self.arrived.notify_one();
                    return None;
                }
                let batch = state.take(size);
                if !batch.is_empty() {
                    if !state.waiting.is_empty() {
                        self.arrived.notify_one();
                    }
                    return Some(batch);
                }
                state.idle += 1;
            }
            let _idle = Idle(self);
            self.arrived.notified().await;
        }
    }

    /// Sends a batch and delivers its answers, which come in order. False when the process is of no
    /// more use.
    async fn answer(&self, copy: &mut Process, batch: Vec<Waiting>) -> bool {
        let lines = batch.iter().flat_map(|waiting| &waiting.line).copied().collect();
        let is_single = batch.len() == 1;
        let mut batch = VecDeque::from(batch);
        let (writing, mut answers) = copy.exchange(lines);
        let mut writing = std::pin::pin!(writing.fuse());
        while let Some(mut waiting) = batch.pop_front() {
            waiting.slot.end();
            let answer = tokio::select! {
                biased;
                answer = answers.next(waiting.number, &mut writing) => answer,
                () = self.patience(is_single, &mut waiting) => Err(ProgramError::Died),
            };
            let is_usable = answer.is_ok();
            if matches!(answer, Err(ProgramError::Died)) && !is_single {
                // It is not known whose fault it is.
                batch.push_front(waiting);
            } else {
                waiting.end(answer);
            }
            if !is_usable {
                self.give_back(batch);
                return false;
            }
        }
        // A process that answers what it has not read yet is of no use.
        writing.is_terminated()
    }

    /// Waits until there is no use in waiting for an answer any longer.
    async fn patience(&self, is_single: bool, waiting: &mut Waiting) {
        if is_single { self.until_abandoned(&mut waiting.answer).await } else { sleep(BATCH_PATIENCE).await }
    }

    /// Waits until nobody wants the answer, and a little longer.
    async fn until_abandoned(&self, answer: &mut oneshot::Sender<Result<Answer, ProgramError>>) {
        if timeout(STUCK, answer.closed()).await.is_err() {
            let _stuck = Stuck::new(self);
            answer.closed().await;
        }
        sleep(ABANDONED).await;
    }

    /// Requests without an answer go to the front, each to be asked alone.
    fn give_back(&self, batch: VecDeque<Waiting>) {
        let mut state = self.state();
        for mut waiting in batch.into_iter().rev() {
            waiting.slot.begin_again();
            state.waiting.push_front(Waiting { alone: true, ..waiting });
            self.arrived.notify_one();
        }
    }
}

impl BatchState {
    /// Up to `size` requests that somebody waits for: one that goes alone, or several others.
    fn take(&mut self, size: usize) -> Vec<Waiting> {
        let mut batch: Vec<Waiting> = Vec::new();
        while batch.len() < size {
            let Some(next) = self.waiting.pop_front() else { break };
            if next.answer.is_closed() {
                continue;
            }
            if !batch.is_empty() && (next.alone || batch[0].alone) {
                self.waiting.push_front(next);
                break;
            }
            batch.push(next);
        }
        batch
    }
}

/// Counts a copy as idle until it is dropped.
struct Idle<'a>(&'a CopiesInner);

impl Drop for Idle<'_> {
    fn drop(&mut self) {
        self.0.state().idle -= 1;
    }
}

/// Counts a copy as stuck until it is dropped.
struct Stuck<'a>(&'a CopiesInner);

impl<'a> Stuck<'a> {
    fn new(shared: &'a CopiesInner) -> Self {
        shared.state().stuck += 1;
        Self(shared)
    }
}

impl Drop for Stuck<'_> {
    fn drop(&mut self) {
        self.0.state().stuck -= 1;
    }
}
