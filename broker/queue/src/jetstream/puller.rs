//! Pulls tasks. The client library's own pull requests 200 at a time, which would strand 199 on a
//! worker with one slot. This one requests as many as there are free slots, over one subscription.
//!
//! The requested tasks are counted: each task and each refusal (with the number that it withdraws)
//! reduces the count. When the count may be wrong (a lost connection, a silent server), a new
//! subscription starts a new count: the server drops the requests of a subscription without a
//! listener.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use async_nats::{StatusCode, Subscriber};
use async_trait::async_trait;
use bytes::Bytes;
use futures::{FutureExt, StreamExt};
use millrace_schemas::limits;
use millrace_schemas::subjects::PRIORITY_GROUP;
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;

use super::connection::Connection;
use super::lease::JetStreamLease;
use super::message::{Place, from_nats, place};
use super::violation::{Violation, Violations};
use crate::port::{Delivery, Lease, Puller, QueueError};

/// Silence after which the server sends a heartbeat for a pull request.
const HEARTBEAT: Duration = Duration::from_millis(limits::QUIET_MS);
/// Silence after which a request counts as lost.
const SILENCE: Duration = Duration::from_millis(limits::SILENCE_MS);
/// Pause after a refusal; doubles up to the second.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));
/// While tasks are requested, more are requested only once this share of the most slots ever free
/// is free.
const COALESCE: usize = 8;
/// How long the end of a subscription waits for what is under way to it.
const CLOSE: Duration = Duration::from_secs(2);
/// Statuses that may come in while the subscription is closed.
const SPARE: usize = 16;

pub(super) struct JetStreamPuller {
    connection: Arc<Connection>,
    /// The subject of requests.
    ask: String,
    /// The end of each request: the pull priority, for a partition.
    priority: String,
    pub(super) inbox: Option<Inbox>,
    /// Delivered and not returned yet.
    pub(super) ready: VecDeque<Delivery>,
    /// The most slots that were ever free at once.
    most: usize,
    pause: Duration,
    /// No request before this time.
    pause_until: Option<Instant>,
    epoch: watch::Receiver<u64>,
    heard: broadcast::Receiver<Violation>,
}

/// A subscription and its requests.
pub(super) struct Inbox {
    subject: String,
    subscriber: Subscriber,
    /// Tasks requested and neither delivered nor refused.
    pub(super) asked: usize,
    /// The open request is a single one that does not wait.
    at_once: bool,
    /// Messages received, tasks or not.
    received: usize,
    heard: Instant,
}

/// What ended the waiting.
pub(super) enum Event {
    Message(Option<async_nats::Message>),
    Lost,
    Silent,
    PauseOver,
    Forbidden,
}

impl JetStreamPuller {
    pub(super) fn new(connection: Arc<Connection>, stream: &str, consumer: &str) -> Self {
        let (epoch, heard) = (connection.epoch(), connection.violations().listen());
        Self {
            connection,
            ask: format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"),
            priority: String::new(),
            inbox: None,
            ready: VecDeque::new(),
            most: 1,
            pause: PAUSE.0,
            pause_until: None,
            epoch,
            heard,
        }
    }

    /// The same, of a consumer that serves waiting pullers by priority.
    pub(super) fn prioritized(self, priority: u8) -> Self {
        Self { priority: format!(r#","group":"{PRIORITY_GROUP}","priority":{priority}"#), ..self }
    }

    /// Requests tasks for `free` slots, minus those requested already.
    async fn ask(&mut self, free: usize) -> Result<(), QueueError> {
        if self.pauses() {
            return Ok(());
        }
        self.most = self.most.max(free);
        let asked = self.inbox.as_ref().map_or(0, |inbox| inbox.asked);
        let wanted = free.saturating_sub(asked + self.ready.len());
        if wanted == 0 || (asked > 0 && wanted * COALESCE < self.most) {
            return Ok(());
        }
        let (expires, heartbeat) = (limits::PULL_EXPIRES_MS * 1_000_000, HEARTBEAT.as_nanos());
        self.request(wanted, &format!(r#""expires":{expires},"idle_heartbeat":{heartbeat}"#), false).await
    }

    /// Requests up to `wanted` of the tasks queued now. Only while no request is open.
    pub(super) async fn ask_at_once(&mut self, wanted: usize) -> Result<(), QueueError> {
        if self.pauses() {
            return Ok(());
        }
        self.request(wanted, r#""no_wait":true"#, true).await
    }

    fn pauses(&mut self) -> bool {
        self.pause_until = self.pause_until.filter(|until| Instant::now() < *until);
        self.pause_until.is_some()
    }

    async fn request(&mut self, wanted: usize, how: &str, at_once: bool) -> Result<(), QueueError> {
        if self.inbox.is_some() && self.epoch.has_changed().unwrap_or(true) {
            // It would be forgotten at once, and with it what this request brings.
            self.forget();
        }
        let inbox = match &mut self.inbox {
            Some(inbox) => inbox,
            None => {
                self.epoch.mark_unchanged();
                let subject = self.connection.client.new_inbox();
                let subscriber = self.connection.subscribe("pull tasks", &subject).await?;
                let heard = Instant::now();
                let inbox = Inbox { subject, subscriber, asked: 0, at_once, received: 0, heard };
                self.inbox.insert(inbox)
            }
        };
        let body = format!(r#"{{"batch":{wanted},{how}{}}}"#, self.priority);
        let sent = self.connection.client.publish_with_reply(
            self.ask.clone(),
            inbox.subject.clone(),
            Bytes::from(body),
        );
        sent.await.map_err(|e| QueueError::Unavailable { action: "pull tasks", reason: e.to_string() })?;
        if inbox.asked == 0 {
            inbox.heard = Instant::now();
        }
        inbox.at_once = at_once;
        inbox.asked += wanted;
        Ok(())
    }

    /// Waits for one thing to happen. Dropping the future loses nothing.
    pub(super) async fn wait(&mut self) -> Event {
        let pause = self.pause_until;
        let pause = async move {
            match pause {
                Some(until) => tokio::time::sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        let Some(inbox) = &mut self.inbox else {
            pause.await;
            return Event::PauseOver;
        };
        tokio::select! {
            biased;
            _ = self.epoch.changed() => Event::Lost,
            message = inbox.subscriber.next() => Event::Message(message),
            () = pause => Event::PauseOver,
            () = Violations::forbidden(&mut self.heard, &self.ask) => Event::Forbidden,
            () = tokio::time::sleep_until(inbox.heard + SILENCE) => Event::Silent,
        }
    }

    /// Takes what has arrived already. Does not wait.
    fn gather(&mut self) -> Result<(), QueueError> {
        while let Some(inbox) = &mut self.inbox {
            match inbox.subscriber.next().now_or_never() {
                Some(message) => self.hear(message)?,
                None => break,
            }
        }
        Ok(())
    }

    pub(super) fn handle(&mut self, event: Event) -> Result<(), QueueError> {
        match event {
            Event::Message(message) => self.hear(message)?,
            Event::Lost | Event::Silent => self.forget(),
            Event::PauseOver => {}
            Event::Forbidden => {
                self.forget();
                let reason = self.connection.violations().reason(&self.ask);
                return Err(QueueError::Refused { action: "pull tasks", reason });
            }
        }
        Ok(())
    }

    fn hear(&mut self, message: Option<async_nats::Message>) -> Result<(), QueueError> {
        let Some(inbox) = &mut self.inbox else { return Ok(()) };
        let Some(message) = message else {
            self.forget();
            return Ok(());
        };
        inbox.heard = Instant::now();
        inbox.received += 1;
        let Some(status) = message.status else {
            inbox.asked = inbox.asked.saturating_sub(1);
            self.pause = PAUSE.0;
            self.ready.extend(delivery(&self.connection, message));
            return Ok(());
        };
        if status == StatusCode::IDLE_HEARTBEAT {
            return Ok(());
        }
        self.refused(status, &message)
    }

    /// The requested tasks, or a part of them, will not come.
    fn refused(&mut self, status: StatusCode, message: &async_nats::Message) -> Result<(), QueueError> {
        let words = message.description.clone().unwrap_or_default();
        if status.as_u16() == 400 || words.contains("MaxRequest") {
            let reason = format!("{} {words}", status.as_u16());
            self.forget();
            return Err(QueueError::Refused { action: "pull tasks", reason });
        }
        let headers = message.headers.as_ref();
        let taken_back =
            headers.and_then(|headers| headers.get("Nats-Pending-Messages")?.as_str().parse::<usize>().ok());
        let expired = [StatusCode::TIMEOUT, StatusCode::NOT_FOUND].contains(&status);
        match (&mut self.inbox, taken_back) {
            (Some(inbox), Some(taken_back)) => inbox.asked = inbox.asked.saturating_sub(taken_back),
            (Some(inbox), None) if inbox.at_once && expired => inbox.asked = 0,
            (Some(_) | None, _) => self.forget(),
        }
        if !expired {
            tracing::debug!(ask = self.ask, status = status.as_u16(), words, "pull refused");
            self.pause_until = Some(Instant::now() + self.pause);
            self.pause = (self.pause * 2).min(PAUSE.1);
        }
        Ok(())
    }

    /// Starts a new count: the server drops the requests of a subscription that is gone. Tasks that
    /// arrived on it are kept.
    pub(super) fn forget(&mut self) {
        if let Some(mut inbox) = self.inbox.take() {
            while let Some(Some(message)) = inbox.subscriber.next().now_or_never() {
                self.ready.extend(delivery(&self.connection, message));
            }
        }
    }

    fn give(&mut self, free: usize) -> Option<Vec<Delivery>> {
        let given: Vec<Delivery> = self.ready.drain(..free.min(self.ready.len())).collect();
        (!given.is_empty()).then_some(given)
    }

    /// Ends the subscription so that nothing under way to it is lost.
    ///
    /// # Errors
    /// The connection was lost meanwhile, or the server is silent for [`CLOSE`]: what is under way
    /// is not known, and the subscription must be forgotten.
    pub(super) async fn end(&mut self) -> Result<(), QueueError> {
        if self.inbox.is_none() {
            return Ok(());
        }
        let mut epoch = self.epoch.clone();
        let unavailable =
            |reason: &str| Err(QueueError::Unavailable { action: "stop pulling", reason: reason.to_owned() });
        tokio::select! {
            biased;
            // The client subscribes again, and our own messages were on the connection before.
            _ = epoch.changed() => unavailable("the connection was lost"),
            ended = self.fill_up() => ended,
            () = tokio::time::sleep(CLOSE) => unavailable("the server does not answer in time"),
        }
    }

    /// The server ends the subscription by itself after a number of messages. Filling up to that
    /// number with our own tells where its last task was.
    async fn fill_up(&mut self) -> Result<(), QueueError> {
        let Some(inbox) = &mut self.inbox else { return Ok(()) };
        if inbox.asked > 0 {
            let missing = inbox.asked + SPARE;
            let unavailable = |reason: String| QueueError::Unavailable { action: "stop pulling", reason };
            let end = (inbox.received + missing) as u64;
            inbox.subscriber.unsubscribe_after(end).await.map_err(|e| unavailable(e.to_string()))?;
            for _ in 0..missing {
                let filled = self.connection.client.publish(inbox.subject.clone(), Bytes::new());
                filled.await.map_err(|e| unavailable(e.to_string()))?;
            }
            while let Some(message) = inbox.subscriber.next().await {
                inbox.received += 1;
                self.ready.extend(delivery(&self.connection, message));
            }
        }
        self.inbox = None;
        Ok(())
    }
}

/// A task from its message; `None` for anything else.
fn delivery(connection: &Connection, message: async_nats::Message) -> Option<Delivery> {
    let reply = message.reply.clone()?;
    let Place { attempt, stream_seq: seq, stored_ns, .. } = place(&reply)?;
    let lease: Arc<dyn Lease> = Arc::new(JetStreamLease { client: connection.client.clone(), reply });
    Some(Delivery { message: from_nats(message), attempt, seq, stored_ns, lease })
}

#[async_trait]
impl Puller for JetStreamPuller {
    async fn pull(&mut self, free: usize) -> Result<Vec<Delivery>, QueueError> {
        if free == 0 {
            return std::future::pending().await;
        }
        loop {
            self.gather()?;
            if let Some(given) = self.give(free) {
                return Ok(given);
            }
            self.ask(free).await?;
            let event = self.wait().await;
            self.handle(event)?;
        }
    }

    async fn close(&mut self) {
        if let Err(e) = self.end().await {
            tracing::warn!(error = %e, "tasks on their way here wait for their lease to end");
        }
        self.forget();
        for delivery in self.ready.drain(..) {
            // Were the word lost, the lease would end by itself.
            let _ = delivery.lease.retry_after(Duration::ZERO).await;
        }
        let _ = tokio::time::timeout(CLOSE, self.connection.client.flush()).await;
    }
}
