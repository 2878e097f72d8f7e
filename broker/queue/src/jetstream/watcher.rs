//! Watches the keys of a bucket without a consumer. The server republishes each stored message on
//! another subject (the stream's `republish`), and earlier values are read. So watchers cost the
//! server nothing to keep. They need no right to create consumers, with which they could choose
//! where the server sends stored messages.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use async_nats::{HeaderMap, Message, StatusCode, Subscriber};
use async_trait::async_trait;
use futures::StreamExt;
use millrace_schemas::{limits, subjects};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;

use super::connection::Connection;
use super::keys::{is_deletion, is_original, subject};
use crate::port::{KeyValue, KeyWatcher, QueueError};

/// Values asked for at once.
const PAGE: usize = 256;
/// Between two reads of all stored values, in case a republished message was lost.
const REFRESH: Duration = Duration::from_secs(30);
/// Pause between two attempts to begin.
const PAUSE: Duration = Duration::from_millis(50);
/// How long a call hides that the server cannot be reached.
const PATIENCE: Duration = Duration::from_millis(limits::REQUEST_TIMEOUT_MS);

/// Watches a bucket.
pub(super) struct JetStreamWatcher {
    connection: Arc<Connection>,
    bucket: &'static str,
    active: Option<Active>,
    /// The newest revision reported for each key. Reset with each connection, because a server that
    /// lost its newest writes reports lower revisions.
    given: HashMap<String, u64>,
    ready: VecDeque<KeyValue>,
    epoch: watch::Receiver<u64>,
    /// Whether it is active.
    current: watch::Sender<bool>,
}

struct Active {
    subscriber: Subscriber,
    refresh: Instant,
}

/// What ended the waiting.
enum Event {
    Repeated(Message),
    Lost,
    Refresh,
}

impl JetStreamWatcher {
    pub(super) fn new(connection: Arc<Connection>, bucket: &'static str) -> Self {
        let epoch = connection.epoch();
        Self {
            connection,
            bucket,
            active: None,
            given: HashMap::new(),
            ready: VecDeque::new(),
            epoch,
            current: watch::Sender::new(false),
        }
    }

    /// Listens first and reads then, so that nothing falls in between.
    async fn start(&mut self) -> Result<(), QueueError> {
        self.epoch.mark_unchanged();
        let subscriber =
            self.connection.subscribe("watch keys", &subjects::watched_keys(self.bucket)).await?;
        let standing = self.standing().await?;
        self.given.clear();
        self.take(standing);
        self.active = Some(Active { subscriber, refresh: Instant::now() + REFRESH });
        self.current.send_replace(true);
        Ok(())
    }

    async fn wait(&mut self) -> Event {
        let Some(active) = &mut self.active else { return Event::Lost };
        tokio::select! {
            biased;
            _ = self.epoch.changed() => Event::Lost,
            message = active.subscriber.next() => message.map_or(Event::Lost, Event::Repeated),
            () = tokio::time::sleep_until(active.refresh) => Event::Refresh,
        }
    }

    /// Waits for one thing to happen. Dropping the future loses nothing.
    async fn step(&mut self) -> Result<(), QueueError> {
        match self.wait().await {
            Event::Repeated(message) => self.take(value(self.bucket, message)),
            Event::Lost => {
                self.active = None;
                self.current.send_replace(false);
            }
            Event::Refresh => {
                let standing = self.standing().await?;
                self.take(standing);
                if let Some(active) = &mut self.active {
                    active.refresh = Instant::now() + REFRESH;
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, values: impl IntoIterator<Item = KeyValue>) {
        for value in values {
            let given = self.given.entry(value.key.clone()).or_default();
            if value.revision > *given {
                *given = value.revision;
                self.ready.push_back(value);
            }
        }
    }

    /// All values in the bucket, page by page.
    async fn standing(&self) -> Result<Vec<KeyValue>, QueueError> {
        let (mut values, mut from) = (Vec::new(), Some(1));
        while let Some(seq) = from {
            from = self.page(seq, &mut values).await?;
        }
        Ok(values)
    }

    /// Reads values stored at `from` or later, from any replica. Returns the start of the next page, if
    /// there is one.
    async fn page(&self, from: u64, values: &mut Vec<KeyValue>) -> Result<Option<u64>, QueueError> {
        let path = format!("$JS.API.DIRECT.GET.{}", subjects::bucket_stream(self.bucket));
        let read = self.connection.answer_of_any("watch keys", &path, || self.read_page(&path, from));
        let late = |_| self.unavailable("the server did not answer in time");
        let (found, next) = tokio::time::timeout(PATIENCE, read).await.map_err(late)???;
        values.extend(found);
        Ok(next)
    }

    /// A page as one replica answers it.
    async fn read_page(&self, path: &str, from: u64) -> Result<(Vec<KeyValue>, Option<u64>), QueueError> {
        let client = &self.connection.client;
        let body = json!({ "seq": from, "batch": PAGE, "next_by_subj": subjects::keys(self.bucket) });
        let inbox = client.new_inbox();
        let mut page = self.connection.subscribe("watch keys", &inbox).await?;
        let sent = client.publish_with_reply(path.to_owned(), inbox, body.to_string().into()).await;
        sent.map_err(|e| self.unavailable(e.to_string()))?;
        let (mut values, mut next) = (Vec::new(), from);
        loop {
            let message = page.next().await.ok_or_else(|| self.unavailable("the connection is closed"))?;
            match message.status {
                None => {}
                // The end of the page, with what is left after it; or nothing at all.
                Some(StatusCode::NOT_FOUND) => return Ok((values, None)),
                Some(status) if status.as_u16() == 204 => {
                    let left = header(message.headers.as_ref(), "Nats-Num-Pending").unwrap_or(0);
                    return Ok((values, (left > 0 && next > from).then_some(next)));
                }
                Some(status) => {
                    let words = message.description.unwrap_or_default();
                    return Err(self.unavailable(format!("answered with status={status} {words}")));
                }
            }
            next = header(message.headers.as_ref(), "Nats-Sequence").map_or(next, |seq: u64| seq + 1);
            values.extend(value(self.bucket, message));
        }
    }

    fn unavailable(&self, reason: impl std::fmt::Display) -> QueueError {
        QueueError::Unavailable { action: "watch keys", reason: format!("bucket={}: {reason}", self.bucket) }
    }
}

fn header<T: std::str::FromStr>(headers: Option<&HeaderMap>, name: &str) -> Option<T> {
    headers?.get(name)?.as_str().parse().ok()
}

/// The value that a copy of a stored message holds; `None` for a key that was taken away, and where what is stored is
/// a copy itself.
fn value(bucket: &str, message: Message) -> Option<KeyValue> {
    let headers = message.headers.as_ref();
    if !is_original(headers, 1) || is_deletion(headers) {
        return None;
    }
    let revision = header(headers, "Nats-Sequence")?;
    let stored: String = header(headers, "Nats-Subject")?;
    let key = stored.strip_prefix(subject(bucket, "").as_str())?.to_owned();
    Some(KeyValue { key, value: message.payload, revision })
}

#[async_trait]
impl KeyWatcher for JetStreamWatcher {
    async fn next(&mut self) -> Result<KeyValue, QueueError> {
        let give_up = Instant::now() + PATIENCE;
        loop {
            if let Some(value) = self.ready.pop_front() {
                return Ok(value);
            }
            let stepped = if self.active.is_some() { self.step().await } else { self.start().await };
            if let Err(e) = stepped {
                if !e.is_transient() || Instant::now() >= give_up {
                    return Err(e);
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    fn current(&self) -> watch::Receiver<bool> {
        self.current.subscribe()
    }
}
