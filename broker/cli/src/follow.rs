//! Follows a run until it is over: asks for its status, listens to the workers' counters, shows both.

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

/// Between two looks at the status.
const LOOK: Duration = Duration::from_millis(500);
/// Silence after which a person is told.
const SILENCE: Duration = Duration::from_secs(5);

/// What came of following.
pub(super) struct Followed {
    /// The last status seen; `None` when stopped before the first.
    pub(super) status: Option<Status>,
    /// Share of time that generate workers were busy.
    pub(super) generate_busy: f64,
    /// Share of time that train workers were busy.
    pub(super) train_busy: f64,
}

/// What a person should hear of the processes that run.
#[derive(Debug)]
pub(super) enum News {
    /// Something that was dealt with.
    Line(String),
    /// Something that ends the run.
    Fatal(String),
}

/// How a run is followed.
pub(super) struct Follow<'a> {
    /// Whom to ask.
    pub(super) api: &'a Api,
    /// The run.
    pub(super) run: &'a RunId,
    /// Where to show it.
    pub(super) view: &'a mut dyn View,
    /// Held-out prompts of each evaluation; `None` where the run file is not known.
    pub(super) prompts: Option<u32>,
    /// Counts new starts of processes; `None` where someone else looks after them.
    pub(super) restarts: Option<Arc<AtomicU64>>,
    /// News of those processes.
    pub(super) news: Option<&'a mut UnboundedReceiver<News>>,
    /// Whether to leave a run that paused itself: nobody is there who could repair what it waits for.
    pub(super) leaves_paused: bool,
    /// Silence of the coordinator after which to give up; `None` for never.
    pub(super) patience: Option<Duration>,
}

/// What is known so far.
struct Seen {
    changes: Changes,
    meter: BusyMeter,
    waits: Waits,
    /// What it was said to wait for since something was done.
    wanting: Vec<Wait>,
    /// When the run was first seen to have its version 0: rollouts are played from then on.
    playing_since: Option<Instant>,
    answered: Instant,
    silence_told: bool,
    last: Option<Status>,
}

impl Follow<'_> {
    /// Consumes: statuses, workers' notices. Produces: frames and events for the view. Waits for: the next
    /// look or notice; unblocked by `stop`. On failure: looks again, until `patience` ends.
    pub(super) async fn until_over(mut self, stop: &CancellationToken) -> Result<Followed> {
        let mut seen = Seen {
            changes: Changes::new(self.prompts),
            meter: BusyMeter::default(),
            waits: Waits::default(),
            wanting: vec![],
            playing_since: None,
            answered: Instant::now(),
            silence_told: false,
            last: None,
        };
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut workers = self.api.listen(NOTICE_WORKERS).await?;
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                _ = looks.tick() => {
                    // A coordinator that is silent must not hold up the end.
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
        Ok(Followed { status: seen.last, generate_busy, train_busy })
    }

    /// Looks once; says whether the run is over.
    async fn look(&mut self, seen: &mut Seen) -> Result<bool> {
        let now = Instant::now();
        let status = match self.api.status(self.run).await {
            Ok(status) => status,
            Err(CallError::Silent(reason)) => return self.on_silence(seen, &reason).map(|()| false),
            Err(e @ (CallError::Refused(_) | CallError::Unreadable { .. })) => return Err(e.into()),
        };
        if std::mem::take(&mut seen.silence_told) {
            self.view.event("the coordinator answers again");
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

    fn on_silence(&mut self, seen: &mut Seen, reason: &str) -> Result<()> {
        let silent = seen.answered.elapsed();
        if self.patience.is_some_and(|patience| silent > patience) {
            bail!("no coordinator has answered for {} s: {reason}", silent.as_secs());
        }
        if silent > SILENCE && !seen.silence_told {
            seen.silence_told = true;
            self.view.event(&format!("no coordinator has answered for {} s", silent.as_secs()));
        }
        Ok(())
    }
}

impl Seen {
    fn take_notice(&mut self, payload: &[u8]) {
        if let Some(notice) = read_notice(payload) {
            self.meter.take(&notice);
            self.waits.take(Instant::now(), notice);
        }
    }

    /// What it waits for, where that is news, or that it waits no more.
    fn wants(&mut self, now: Instant, status: &Status) -> Vec<String> {
        if !is_quiet(status) {
            let waited = !std::mem::take(&mut self.wanting).is_empty();
            return if waited { vec!["tasks get done again".to_owned()] } else { vec![] };
        }
        let mut news = self.waits.all(now, status);
        news.retain(|wait| !self.wanting.iter().any(|told| wait.says_the_same(told)));
        let lines = news.iter().map(ToString::to_string).collect();
        self.wanting.append(&mut news);
        lines
    }

    fn busy(&self, stage: Stage) -> Option<f64> {
        let wall = self.playing_since?.elapsed();
        self.meter.share(stage, u64::try_from(wall.as_micros()).unwrap_or(u64::MAX))
    }
}

/// Whether it waits for a person who did not ask for it.
pub(super) fn paused_itself(status: &Status) -> bool {
    status.state == RunState::Paused && status.reason.as_deref() != Some(PAUSED_BY_REQUEST)
}

/// The next notice; waits for ever once the connection is closed, since the looks tell what is to be told.
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
