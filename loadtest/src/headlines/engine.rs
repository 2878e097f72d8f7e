//! An engine in virtual time: sequences decode together, and an iteration takes longer the more of
//! them there are. So the last ones of a batch go faster, as on a GPU.

use std::collections::VecDeque;
use std::iter::Sum;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout};

/// How long an iteration of an engine takes. It makes a token of every sequence.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DecodePace {
    /// Milliseconds of an iteration, however few sequences: reading the weights.
    pub(super) base_ms: f64,
    /// Milliseconds more for each sequence: reading its keys and values.
    pub(super) per_sequence_ms: f64,
}

impl DecodePace {
    /// Seconds of an iteration with so many sequences.
    pub(super) fn iteration_s(&self, sequences: usize) -> f64 {
        (self.base_ms + self.per_sequence_ms * sequences as f64) / 1e3
    }
}

/// Seconds of an engine, by what they were used for.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct EngineUse {
    /// At least one sequence decoded.
    pub(super) busy_s: f64,
    /// Over its slots: they decoded.
    pub(super) slots_s: f64,
}

impl Sum for EngineUse {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, used| Self {
            busy_s: sum.busy_s + used.busy_s,
            slots_s: sum.slots_s + used.slots_s,
        })
    }
}

/// One GPU that samples.
pub(super) struct Engine {
    pace: DecodePace,
    slots: usize,
    /// Loading new weights takes so long.
    reload: Duration,
    decode: Mutex<Decode>,
    changed: Notify,
}

struct Decode {
    since: Instant,
    /// It loads weights until then.
    loads_until: Instant,
    version: u64,
    /// Iterations so far.
    iterations: f64,
    active: Vec<Sequence>,
    waiting: VecDeque<Sequence>,
    next: u64,
    used: EngineUse,
    spans: Vec<(Instant, Instant)>,
}

struct Sequence {
    number: u64,
    /// Tokens; once it is active, the iteration that makes its last one.
    last: f64,
    done: oneshot::Sender<()>,
}

/// Removes a sequence that nobody waits for any more.
struct Waits<'a> {
    engine: &'a Engine,
    number: u64,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let mut decode = self.engine.at_present();
        decode.active.retain(|sequence| sequence.number != self.number);
        decode.waiting.retain(|sequence| sequence.number != self.number);
        drop(decode);
        self.engine.changed.notify_one();
    }
}

impl Engine {
    pub(super) fn new(pace: DecodePace, slots: usize, reload: Duration) -> Arc<Self> {
        let now = Instant::now();
        let decode = Decode {
            since: now,
            loads_until: now,
            version: 0,
            iterations: 0.0,
            active: Vec::new(),
            waiting: VecDeque::new(),
            next: 0,
            used: EngineUse::default(),
            spans: Vec::new(),
        };
        Arc::new(Self { pace, slots, reload, decode: Mutex::new(decode), changed: Notify::new() })
    }

    /// Samples so many tokens with weights of `version` or newer.
    pub(super) async fn sample(&self, tokens: f64, version: u64) {
        let (done, whole) = oneshot::channel();
        let number = {
            let mut decode = self.at_present();
            if version > decode.version {
                decode.version = version;
                decode.loads_until = Instant::now() + self.reload;
            }
            decode.next += 1;
            let number = decode.next;
            decode.waiting.push_back(Sequence { number, last: tokens, done });
            number
        };
        let _waits = Waits { engine: self, number };
        self.changed.notify_one();
        // The sender goes only with the sequence, which ends by sending.
        let _ = whole.await;
    }

    /// Sequences that decode or wait.
    pub(super) fn load(&self) -> usize {
        let decode = self.at_present();
        decode.active.len() + decode.waiting.len()
    }

    pub(super) fn used(&self) -> EngineUse {
        self.at_present().used
    }

    /// From when to when it decoded without a break.
    pub(super) fn spans(&self) -> Vec<(Instant, Instant)> {
        self.at_present().spans.clone()
    }

    /// Consumes sequences, produces their ends. Waits for the next end or the next sequence. Never
    /// ends.
    pub(super) async fn run(self: Arc<Self>) {
        loop {
            match self.turn_over() {
                Some(next) => drop(timeout(next, self.changed.notified()).await),
                None => self.changed.notified().await,
            }
        }
    }

    /// Ends sequences and starts others. Returns the time until the next end.
    fn turn_over(&self) -> Option<Duration> {
        let mut decode = self.at_present();
        let iterations = decode.iterations + 1e-6;
        let (over, active) =
            std::mem::take(&mut decode.active).into_iter().partition(|s| s.last <= iterations);
        decode.active = active;
        for sequence in over {
            let Sequence { done, .. } = sequence;
            let _ = done.send(());
        }
        while decode.active.len() < self.slots {
            let Some(mut sequence) = decode.waiting.pop_front() else { break };
            sequence.last += decode.iterations;
            decode.active.push(sequence);
        }
        let least = decode.active.iter().map(|sequence| sequence.last).min_by(f64::total_cmp)?;
        let left_s = (least - decode.iterations) * self.pace.iteration_s(decode.active.len());
        let loads = decode.loads_until.saturating_duration_since(Instant::now());
        Some(loads + Duration::from_secs_f64(left_s.max(0.0)))
    }

    /// What it decodes, up to date.
    fn at_present(&self) -> MutexGuard<'_, Decode> {
        let mut decode = self.decode.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let from = decode.since.max(decode.loads_until).min(now);
        let passed = (now - from).as_secs_f64();
        let sequences = decode.active.len();
        decode.since = now;
        if sequences > 0 {
            decode.iterations += passed / self.pace.iteration_s(sequences);
            decode.used.busy_s += passed;
            decode.used.slots_s += passed * sequences as f64;
            match decode.spans.last_mut() {
                Some((_, until)) if *until == from => *until = now,
                _ => decode.spans.push((from, now)),
            }
        }
        decode
    }
}

#[cfg(test)]
mod tests {
    use futures::future::join_all;

    use super::*;
    use crate::virtual_time::in_virtual_time;

    /// Seconds until sequences of these lengths are sampled.
    fn seconds(slots: usize, tokens: &[f64]) -> f64 {
        in_virtual_time(async {
            let pace = DecodePace { base_ms: 10.0, per_sequence_ms: 5.0 };
            let engine = Engine::new(pace, slots, Duration::ZERO);
            let runs = tokio::spawn(engine.clone().run());
            let began = Instant::now();
            join_all(tokens.iter().map(|tokens| engine.sample(*tokens, 0))).await;
            runs.abort();
            Ok(began.elapsed().as_secs_f64())
        })
        .unwrap()
    }

    #[test]
    fn sequences_share_an_engine_and_the_last_goes_faster() {
        // 100 iterations of two at 20 ms, then 100 of one at 15 ms.
        assert!((seconds(2, &[100.0, 200.0]) - 3.5).abs() < 0.01);
        // One after the other: 300 iterations of one.
        assert!((seconds(1, &[100.0, 200.0]) - 4.5).abs() < 0.01);
    }
}
