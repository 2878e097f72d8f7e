//! Questions that any replica of a stream may answer. A replica that hangs is asked as often as the others,
//! until the servers notice, which takes minutes.

use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use millrace_schemas::limits;
use tokio::time::{Instant, timeout};

/// How long a replica has to answer before another one may be asked.
const ANSWER: Duration = Duration::from_millis(limits::REPLICA_ANSWER_MS);
/// How long at first, where one has not answered lately. Doubled each time, up to [`ANSWER`].
const DOUBTFUL: Duration = Duration::from_millis(limits::REPLICA_ANSWER_MS / 10);
/// How long a silent replica is remembered.
const LATELY: Duration = Duration::from_secs(30);

/// What is known of a stream's replicas.
#[derive(Debug, Default)]
pub(super) struct Replicas {
    /// When one last did not answer.
    silent: Mutex<Option<Instant>>,
}

impl Replicas {
    /// The first answer. The question is asked again, perhaps of another replica, while none comes.
    pub(super) async fn ask<F: Future>(&self, ask: impl Fn() -> F) -> F::Output {
        let mut asked = pin!(FuturesUnordered::from_iter([ask()]));
        let begun = Instant::now();
        let mut patience = if self.is_doubtful() { DOUBTFUL } else { ANSWER };
        loop {
            if let Ok(Some(answer)) = timeout(patience, asked.next()).await {
                return answer;
            }
            if begun.elapsed() >= ANSWER {
                *self.silent.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
            }
            patience = ANSWER.min(patience * 2);
            asked.push(ask());
        }
    }

    fn is_doubtful(&self) -> bool {
        let silent = *self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        silent.is_some_and(|at| at.elapsed() < LATELY)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Asks replicas of which each third one never answers; how long it took.
    async fn asked(replicas: &Replicas, count: &AtomicUsize) -> Duration {
        let begun = Instant::now();
        replicas
            .ask(async || match count.fetch_add(1, Ordering::Relaxed) % 3 {
                0 => std::future::pending().await,
                other => other,
            })
            .await;
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_hangs_costs_a_second_once_and_then_a_tenth() {
        let (replicas, count) = (Replicas::default(), AtomicUsize::new(0));
        assert_eq!(asked(&replicas, &count).await, ANSWER);
        count.store(0, Ordering::Relaxed);
        assert_eq!(asked(&replicas, &count).await, DOUBTFUL);
        count.store(1, Ordering::Relaxed);
        assert_eq!(asked(&replicas, &count).await, Duration::ZERO);
        tokio::time::advance(LATELY).await;
        count.store(0, Ordering::Relaxed);
        assert_eq!(asked(&replicas, &count).await, ANSWER, "it is forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_answer_counts_too() {
        let (replicas, count) = (Replicas::default(), AtomicUsize::new(0));
        let slow = async || {
            count.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(ANSWER * 5 / 2).await;
        };
        replicas.ask(slow).await;
        assert_eq!(count.load(Ordering::Relaxed), 3, "asked at 0, 1 and 2 seconds");
    }
}
