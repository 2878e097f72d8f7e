//! Reads a stream in order and without gaps. The server pushes to a consumer, which is recreated at
//! the next message after any gap. Nothing is acknowledged: only the reader knows its position.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, push};
use async_nats::{StatusCode, Subject, Subscriber};
use async_trait::async_trait;
use bytes::Bytes;
use futures::{FutureExt, StreamExt};
use millrace_schemas::limits;
use tokio::sync::watch;
use tokio::time::Instant;

use super::api;
use super::connection::Connection;
use super::message::{Place, from_nats, place};
use crate::port::{LogEntry, LogReader, QueueError};

/// Silence after which the server sends a heartbeat.
const HEARTBEAT: Duration = Duration::from_millis(limits::QUIET_MS);
/// Silence after which the consumer counts as lost.
const SILENCE: Duration = Duration::from_millis(limits::SILENCE_MS);
/// How long the server keeps a consumer that nobody listens to.
const FORGOTTEN: Duration = Duration::from_secs(30);
/// Pause between two attempts to make the consumer.
const PAUSE: Duration = Duration::from_millis(50);
/// How long a call hides that the server cannot be reached.
const PATIENCE: Duration = Duration::from_millis(limits::REQUEST_TIMEOUT_MS);

/// Reads a stream in order.
pub(super) struct Ordered {
    connection: Arc<Connection>,
    stream: String,
    start: DeliverPolicy,
    /// The position read last; 0 before the first.
    last: u64,
    /// When the server stored that entry.
    last_ns: u64,
    /// Whether entries stay for ever: then each new consumer is preceded by proof that the stream is what it was.
    lasting: bool,
    active: Option<Active>,
    /// Where the server wants to hear that we keep pace.
    pace: Option<Subject>,
    epoch: watch::Receiver<u64>,
}

/// A consumer, and what is to come from it.
struct Active {
    subscriber: Subscriber,
    next_delivery: u64,
    heard: Instant,
    /// How many entries the consumer has left.
    pending: u64,
}

/// What a message on the subscription is.
enum Heard {
    Entry(Place),
    Nothing,
    Gap,
}

impl Ordered {
    pub(super) fn new(connection: Arc<Connection>, stream: String, start: DeliverPolicy) -> Self {
        let epoch = connection.epoch();
        let (active, pace) = (None, None);
        Self { connection, stream, start, last: 0, last_ns: 0, lasting: false, active, pace, epoch }
    }

    /// Waits for entries and gives 1 to `max`. Dropping the future loses nothing.
    pub(super) async fn next(&mut self, max: usize) -> Result<Vec<(Place, async_nats::Message)>, QueueError> {
        self.gather_until(false, max).await
    }

    /// The same, but gives none at the end of the stream.
    pub(super) async fn next_stored(
        &mut self,
        max: usize,
    ) -> Result<Vec<(Place, async_nats::Message)>, QueueError> {
        self.gather_until(true, max).await
    }

    async fn gather_until(
        &mut self,
        ends: bool,
        max: usize,
    ) -> Result<Vec<(Place, async_nats::Message)>, QueueError> {
        let give_up = Instant::now() + PATIENCE;
        loop {
            if self.active.is_none()
                && let Err(e) = self.start().await
            {
                if !e.is_transient() || Instant::now() >= give_up {
                    return Err(e);
                }
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            self.keep_pace().await;
            let Some(active) = &mut self.active else { continue };
            if ends && active.pending == 0 {
                return Ok(Vec::new());
            }
            let message = tokio::select! {
                biased;
                _ = self.epoch.changed() => None,
                message = active.subscriber.next() => message,
                () = tokio::time::sleep_until(active.heard + SILENCE) => None,
            };
            let Some(message) = message else {
                self.active = None;
                continue;
            };
            let entries = self.gather(message, max);
            if !entries.is_empty() {
                return Ok(entries);
            }
        }
    }

    /// Takes `message` and what arrived with it. Does not wait, so nothing taken can be lost.
    fn gather(&mut self, message: async_nats::Message, max: usize) -> Vec<(Place, async_nats::Message)> {
        let mut entries = Vec::new();
        let mut next = Some(message);
        while let Some(message) = next {
            match self.hear(&message) {
                Heard::Entry(place) => entries.push((place, message)),
                Heard::Nothing => {}
                Heard::Gap => self.active = None,
            }
            next = match &mut self.active {
                Some(active) if entries.len() < max && self.pace.is_none() => {
                    active.subscriber.next().now_or_never().flatten()
                }
                Some(_) | None => None,
            };
        }
        entries
    }

    fn hear(&mut self, message: &async_nats::Message) -> Heard {
        let Some(active) = &mut self.active else { return Heard::Nothing };
        active.heard = Instant::now();
        if message.status.is_some() {
            return self.hear_status(message);
        }
        let Some(place) = message.reply.as_ref().and_then(|reply| place(reply)) else {
            return Heard::Nothing;
        };
        if place.consumer_seq != active.next_delivery {
            return Heard::Gap;
        }
        active.next_delivery += 1;
        active.pending = place.pending;
        // The server starts at its end when asked for a position beyond it.
        if place.stream_seq <= self.last {
            return Heard::Nothing;
        }
        (self.last, self.last_ns) = (place.stream_seq, place.stored_ns);
        Heard::Entry(place)
    }

    fn hear_status(&mut self, message: &async_nats::Message) -> Heard {
        if message.status != Some(StatusCode::IDLE_HEARTBEAT) {
            return Heard::Gap;
        }
        let header = |name: &str| Some(message.headers.as_ref()?.get(name)?.as_str().to_owned());
        self.pace = message.reply.clone().or_else(|| header("Nats-Consumer-Stalled").map(Subject::from));
        let sent = header("Nats-Last-Consumer").and_then(|seq| seq.parse::<u64>().ok());
        let missed = |active: &Active| sent.is_some_and(|sent| sent + 1 != active.next_delivery);
        if self.active.as_ref().is_some_and(missed) { Heard::Gap } else { Heard::Nothing }
    }

    async fn keep_pace(&mut self) {
        if let Some(pace) = &self.pace {
            // Were it lost, the server would ask again with its next heartbeat.
            let _ = self.connection.client.publish(pace.clone(), Bytes::new()).await;
            self.pace = None;
        }
    }

    /// Checks that the entry read last is still at its position. The request goes to the stream's
    /// leader: another server of a cluster may lag behind.
    async fn prove(&self) -> Result<(), QueueError> {
        if self.last == 0 || !self.lasting {
            return Ok(());
        }
        match api::stored_ns(&self.connection, &self.stream, self.last).await? {
            Some(stored_ns) if stored_ns == self.last_ns => Ok(()),
            None if self.last < api::stream_range(&self.connection, &self.stream).await?.first => {
                // It was trimmed, which happens only to what is long stored.
                Ok(())
            }
            Some(_) | None => Err(QueueError::Lost { seq: self.last }),
        }
    }

    async fn start(&mut self) -> Result<(), QueueError> {
        self.pace = None;
        self.epoch.mark_unchanged();
        let inbox = self.connection.client.new_inbox();
        let subscriber = self.connection.subscribe("read a stream", &inbox).await?;
        // Later than the mark: were the server to lose its power after this proof, the mark would tell.
        self.prove().await?;
        let deliver_policy = match self.last {
            0 => self.start,
            last => DeliverPolicy::ByStartSequence { start_sequence: last + 1 },
        };
        let config = push::Config {
            deliver_subject: inbox,
            deliver_policy,
            ack_policy: AckPolicy::None,
            max_deliver: 1,
            flow_control: true,
            idle_heartbeat: HEARTBEAT,
            num_replicas: 1,
            memory_storage: true,
            inactive_threshold: FORGOTTEN,
            ..push::Config::default()
        };
        let created = self.connection.context.create_consumer_on_stream(config, self.stream.as_str());
        let path = format!("$JS.API.CONSUMER.CREATE.{}", self.stream);
        let created = self.connection.answer("read a stream", &path, created).await?;
        let created = created.map_err(|e| QueueError::Unavailable {
            action: "read a stream",
            reason: format!("stream={}: {e}", self.stream),
        })?;
        let info = created.cached_info();
        // What it sent before it answered is on its way.
        let pending = info.num_pending + info.delivered.consumer_sequence;
        self.active = Some(Active { subscriber, next_delivery: 1, heard: Instant::now(), pending });
        Ok(())
    }
}

/// Reads the log.
pub(super) struct JetStreamLog {
    ordered: Ordered,
    from: u64,
}

impl JetStreamLog {
    pub(super) fn new(connection: Arc<Connection>, stream: &str, from: u64) -> Self {
        let from = from.max(1);
        let start = DeliverPolicy::ByStartSequence { start_sequence: from };
        let ordered = Ordered { lasting: true, ..Ordered::new(connection, stream.to_owned(), start) };
        Self { ordered, from }
    }
}

#[async_trait]
impl LogReader for JetStreamLog {
    async fn next(&mut self, max: usize) -> Result<Vec<LogEntry>, QueueError> {
        loop {
            let entries = self.ordered.next(max).await?.into_iter();
            let entries = entries.filter(|(place, _)| place.stream_seq >= self.from);
            let entry = |(place, message): (Place, _)| LogEntry {
                seq: place.stream_seq,
                stored_ns: place.stored_ns,
                message: from_nats(message),
            };
            let entries: Vec<LogEntry> = entries.map(entry).collect();
            if !entries.is_empty() {
                return Ok(entries);
            }
        }
    }
}
