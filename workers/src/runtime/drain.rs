//! Leaving in good order. A signal, a notice of the machine or a request of the coordinator stops the
//! pulling. Tasks in flight are finished within the grace period, or returned to the queue.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use millrace_schemas::Stage;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::counters::Stages;
use super::in_flight::InFlight;

/// Time to return unfinished tasks to the queue.
const RETURN: Duration = Duration::from_secs(5);

/// Of that, the time to hand back begun turns: an engine ends the step that it is at, and the log
/// stores the tokens.
const HAND_BACK: Duration = Duration::from_secs(3);

/// Tells a worker to leave. Clones are the same departure. Every source of requests has one: the
/// signals of the process, the machine's notices, the coordinator.
#[derive(Debug, Clone)]
pub struct Departure {
    stop: CancellationToken,
    /// Fires when something ends this process: a signal, or the end of the machine.
    ends: CancellationToken,
    /// The earliest instant at which the process may be killed; `None` while none is known.
    by: Arc<watch::Sender<Option<Instant>>>,
}

impl Default for Departure {
    fn default() -> Self {
        Self::from(CancellationToken::new())
    }
}

impl From<CancellationToken> for Departure {
    /// A departure that begins when `stop` fires.
    fn from(stop: CancellationToken) -> Self {
        Self { stop, ends: CancellationToken::new(), by: Arc::new(watch::Sender::new(None)) }
    }
}

impl Departure {
    /// Asks the worker to leave, because something ends this process. `within` is the time until it may
    /// be killed; without one, only its grace period counts. Of several requests the earliest deadline
    /// counts.
    pub fn request(&self, why: &str, within: Option<Duration>) {
        self.leave(why, within);
        self.ends.cancel();
    }

    /// As [`Self::request`], on the coordinator's behalf: nothing ends this process but itself.
    pub(super) fn drain_request(&self, within: Option<Duration>) {
        self.leave("drain request", within);
    }

    fn leave(&self, why: &str, within: Option<Duration>) {
        tracing::info!(why, ?within, "asked to leave; finishing the tasks in flight");
        if let Some(by) = within.and_then(|within| Instant::now().checked_add(within)) {
            self.by.send_if_modified(|known| {
                let is_earlier = known.is_none_or(|known| by < known);
                if is_earlier {
                    *known = Some(by);
                }
                is_earlier
            });
        }
        self.stop.cancel();
    }

    /// Fires at the first request.
    #[must_use]
    pub const fn requested(&self) -> &CancellationToken {
        &self.stop
    }

    /// Fires when something ends this process.
    #[must_use]
    pub const fn ends(&self) -> &CancellationToken {
        &self.ends
    }

    /// Waits for the first request, then until unfinished tasks must be returned: the grace period
    /// is over, or the process may soon be killed.
    async fn grace_is_over(&self, grace: Duration) {
        self.stop.cancelled().await;
        let graceful = Instant::now() + grace;
        let mut by = self.by.subscribe();
        loop {
            let killed = *by.borrow_and_update();
            let at =
                killed.map_or(graceful, |killed| graceful.min(killed - RETURN.min(killed - Instant::now())));
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(at) => return,
                // An earlier deadline may have come. The sender lives as long as `self`.
                _ = by.changed() => {}
            }
        }
    }
}

/// Waits for the loops to end after the departure is requested: at first for `grace`, or a shorter
/// time if the process will be killed before. Then begun turns are handed back, and all other tasks
/// are cancelled, which returns them to the queue. Returns whether all tasks were settled.
pub(super) async fn drain(
    departure: &Departure,
    grace: Duration,
    (in_flight, stages): (&InFlight, &Stages),
    loops: impl Future<Output = ()>,
) -> bool {
    let mut loops = std::pin::pin!(loops);
    tokio::select! {
        biased;
        () = &mut loops => return true,
        () = departure.grace_is_over(grace) => {}
    }
    tracing::warn!(?grace, "grace period over; returning the tasks in flight to the queue");
    let hand_back: Vec<Stage> =
        stages.iter().filter(|(_, (_, executor))| executor.hand_back()).map(|(stage, _)| *stage).collect();
    in_flight.cancel_all_but(|stage| hand_back.contains(&stage));
    if !hand_back.is_empty() && tokio::time::timeout(HAND_BACK, &mut loops).await.is_ok() {
        return true;
    }
    in_flight.cancel_all();
    tokio::time::timeout(RETURN - HAND_BACK, loops).await.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(60);

    /// Seconds until unfinished tasks are returned.
    async fn graceful_s(departure: &Departure) -> u64 {
        let begun = Instant::now();
        departure.grace_is_over(GRACE).await;
        begun.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn the_nearest_end_of_the_machine_shortens_the_grace() {
        let departure = Departure::default();
        departure.request("signal", None);
        assert_eq!(graceful_s(&departure).await, 60);
        departure.request("spot", Some(Duration::from_secs(30)));
        assert_eq!(graceful_s(&departure).await, 25);
        departure.request("later", Some(Duration::from_secs(120)));
        assert_eq!(graceful_s(&departure).await, 0, "the earliest one is over by now");
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_that_comes_during_the_grace_counts() {
        let departure = Departure::default();
        departure.request("rebalance", None);
        let later = departure.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(10)).await;
            later.request("spot", Some(Duration::from_secs(20)));
        });
        assert_eq!(graceful_s(&departure).await, 25);
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_request_does_not_end_the_process() {
        let departure = Departure::default();
        departure.drain_request(None);
        assert!(departure.requested().is_cancelled() && !departure.ends().is_cancelled());
        departure.request("signal", None);
        assert!(departure.ends().is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_in_no_time_returns_at_once() {
        let departure = Departure::default();
        departure.request("spot", Some(Duration::ZERO));
        assert_eq!(graceful_s(&departure).await, 0);
    }
}
