//! Follows a run until it is over: polls its status, listens to the workers' counters, shows both.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, bail};
use millrace_queue::port::Listener;
use millrace_schemas::api::{PAUSED_BY_REQUEST, RunState, Status};
use millrace_schemas::subjects::NOTICE_WORKERS;
use millrace_schemas::{RunId, Stage};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::busy::BusyMeter;
use super::connect::{Api, CallError};
use super::live::{Changes, Frame, View};
use super::waits::{Wait, Waits, is_quiet, read_notice};

/// Interval between two requests of the status.
const LOOK: Duration = Duration::from_millis(500);
/// Silence of the coordinator after which it is reported.
const SILENCE: Duration = Duration::from_secs(5);

/// The result of following a run.
pub(super) struct Followed {
    /// The last status; `None` if stopped before the first.
    pub(super) status: Option<Status>,
    /// Share of time that generate workers were busy.
    pub(super) generate_busy: f64,
    /// Share of time that train workers were busy.
    pub(super) train_busy: f64,
    /// Workers that generated, and those that trained.
    pub(super) workers: (u64, u64),
}

/// News of the processes for the user.
#[derive(Debug)]
pub(super) enum News {
    /// Something that was handled.
    Line(String),
    /// Something that ends the run.
    Fatal(String),
}

/// Settings of following a run.
pub(super) struct Follow<'a> {
    /// The coordinators' API.
    pub(super) api: &'a Api,
    /// The run.
    pub(super) run: &'a RunId,
    /// Where to show the run.
    pub(super) view: &'a mut dyn View,
    /// Held-out prompts of each evaluation; `None` if the run file is not known.
    pub(super) prompts: Option<u32>,
    /// Counts restarts of processes; `None` if another program supervises them.
    pub(super) restarts: Option<Arc<AtomicU64>>,
    /// News of those processes.
    pub(super) news: Option<&'a mut UnboundedReceiver<News>>,
    /// Whether to stop following a run that paused itself, because no person is there to repair its
    /// cause.
    pub(super) leaves_paused: bool,
    /// Silence of the coordinator after which to give up; `None` for never.
    pub(super) patience: Option<Duration>,
}

/// The state of following a run.
struct FollowState {
    changes: Changes,
    meter: BusyMeter,
    waits: Waits,
    /// Waits that were reported since the last progress.
    wanting: Vec<Wait>,
    /// When the run was first seen to have version 0, from which on rollouts are played.
    playing_since: Option<Instant>,
    answered: Instant,
    silence_reported: bool,
    last: Option<Status>,
}

impl Follow<'_> {
    /// Consumes: statuses, workers' notices. Produces: frames and events for the view. Waits for:
    /// the next poll or notice. Unblocked by: `stop`. On failure: polls again, until `patience`
    /// ends.
    pub(super) async fn until_over(mut self, stop: &CancellationToken) -> Result<Followed> {
        let mut seen = FollowState {
            changes: Changes::new(self.prompts),
            meter: BusyMeter::default(),
            waits: Waits::default(),
            wanting: vec![],
            playing_since: None,
            answered: Instant::now(),
            silence_reported: false,
            last: None,
        };
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut workers = self.api.listen(NOTICE_WORKERS).await?;
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                _ = looks.tick() => {
                    // A silent coordinator must not delay the end.
                    let over = tokio::select! {
                        over = self.look(&mut seen) => over?,
                        () = stop.cancelled() => true,
                    };
                    if over {
                        break;
                    }
                }
                notice = next_notice(&mut workers) => seen.take_notice(&notice),
                news = next_news(&mut self.news) => match news {
                    News::Line(line) => self.view.event(&line),
                    News::Fatal(reason) => bail!(reason),
                },
            }
        }
        self.view.finish();
        let share = |stage| seen.busy(stage).unwrap_or(0.0);
        let (generate_busy, train_busy) = (share(Stage::Generate), share(Stage::TrainShard));
        let count = |stage| seen.meter.workers(stage) as u64;
        let workers = (count(Stage::Generate), count(Stage::TrainShard));
        Ok(Followed { status: seen.last, generate_busy, train_busy, workers })
    }

    /// Polls once. Returns whether the run is over.
    async fn look(&mut self, seen: &mut FollowState) -> Result<bool> {
        let now = Instant::now();
        let status = match self.api.status(self.run).await {
            Ok(status) => status,
            Err(CallError::Silent(reason)) => return self.on_silence(seen, &reason).map(|()| false),
            Err(e @ (CallError::Refused(_) | CallError::Unreadable { .. })) => return Err(e.into()),
        };
        if std::mem::take(&mut seen.silence_reported) {
            self.view.event("the coordinator responds again");
        }
        seen.answered = now;
        if seen.playing_since.is_none() && status.state != RunState::Starting {
            seen.playing_since = Some(now);
            seen.meter.begin();
        }
        let mut events = seen.changes.events(&status);
        events.extend(seen.wants(now, &status));
        let frame = Frame {
            tokens_per_s: seen.changes.tokens_per_s(now, &status),
            generate_busy: seen.busy(Stage::Generate),
            train_busy: seen.busy(Stage::TrainShard),
            restarts: self.restarts.as_ref().map(|count| count.load(Ordering::Relaxed)),
            status,
        };
        self.view.frame(&frame);
        for event in events {
            self.view.event(&event);
        }
        let over = frame.status.state.is_over() || (self.leaves_paused && paused_itself(&frame.status));
        seen.last = Some(frame.status);
        Ok(over)
    }

    fn on_silence(&mut self, seen: &mut FollowState, reason: &str) -> Result<()> {
        let silent = seen.answered.elapsed();
        if self.patience.is_some_and(|patience| silent > patience) {
            bail!("no coordinator has responded for {} s: {reason}", silent.as_secs());
        }
        if silent > SILENCE && !seen.silence_reported {
            seen.silence_reported = true;
            self.view.event(&format!("no coordinator has responded for {} s", silent.as_secs()));
        }
        Ok(())
    }
}

impl FollowState {
    fn take_notice(&mut self, payload: &[u8]) {
        if let Some(notice) = read_notice(payload) {
            self.meter.take(&notice);
            self.waits.take(Instant::now(), notice);
        }
    }

    /// New waits, or the news that tasks are done again.
    fn wants(&mut self, now: Instant, status: &Status) -> Vec<String> {
        if !is_quiet(status) {
            let waited = !std::mem::take(&mut self.wanting).is_empty();
            return if waited { vec!["tasks are being done again".to_owned()] } else { vec![] };
        }
        let mut news = self.waits.all(now, status);
        news.retain(|wait| !self.wanting.iter().any(|reported| wait.matches(reported)));
        let lines = news.iter().map(ToString::to_string).collect();
        self.wanting.append(&mut news);
        lines
    }

    fn busy(&self, stage: Stage) -> Option<f64> {
        let wall = self.playing_since?.elapsed();
        self.meter.share(stage, u64::try_from(wall.as_micros()).unwrap_or(u64::MAX))
    }
}

/// Whether the run is paused, and not by request.
pub(super) fn paused_itself(status: &Status) -> bool {
    status.state == RunState::Paused && status.reason.as_deref() != Some(PAUSED_BY_REQUEST)
}

/// The next notice. Never returns once the connection is closed: the polls report that.
async fn next_notice(workers: &mut Box<dyn Listener>) -> bytes::Bytes {
    match workers.next().await {
        Some(message) => message.payload,
        None => std::future::pending().await,
    }
}

async fn next_news(news: &mut Option<&mut UnboundedReceiver<News>>) -> News {
    let next = match news {
        Some(news) => news.recv().await,
        None => None,
    };
    match next {
        Some(news) => news,
        None => std::future::pending().await,
    }
}
