//! The log: events appended, and read in order.

use std::collections::VecDeque;

use futures::future::BoxFuture;
use futures::stream::FuturesOrdered;
use futures::{FutureExt, StreamExt};
use millrace_schemas::envelope::DecodeError;
use millrace_schemas::ids::IdError;
use millrace_schemas::limits::{CLAIMS_IN_FLIGHT, MAX_INLINE_BYTES, MAX_INLINE_EVENT_BYTES};
use millrace_schemas::log_segment::LogSegment;
use millrace_schemas::{Event, Outcome, OutcomeBody, RunId, TaskKey, subjects};

use super::tasks::ClaimError;
use super::{Broker, BrokerError, Chain};
use crate::port::{Appended, Delivery, LogEntry, LogReader, Message};

/// An entry of the log, read.
#[derive(Debug)]
pub struct Logged {
    /// Position, from 1, without gaps.
    pub seq: u64,
    /// When the server stored it, in nanoseconds of its clock.
    pub stored_ns: u64,
    /// The run token of its subject.
    pub run: String,
    /// The epoch of the leader that wrote it; `None` where a worker or a client did.
    pub epoch: Option<u64>,
    /// The event, or why the entry is none. Such an entry is passed over by everyone alike.
    pub event: Result<Event, DecodeError>,
}

/// Reads the log in order: what was trimmed from its segments, the rest from the log itself.
pub struct Log {
    broker: Broker,
    /// Whether what is in the object store is fetched where the log has it in brief.
    whole: bool,
    /// `None` where the next entry was trimmed, or may have been.
    reader: Option<Box<dyn LogReader>>,
    /// Position of the next entry; from where the reading begins, perhaps beyond the log's end.
    next: u64,
    /// Those of a log, as they were listed last.
    segments: Option<(u64, Chain)>,
    /// Entries read and not yet given: one of them waits for the object store.
    waiting: VecDeque<LogEntry>,
    /// The first of those whose payloads are in the object store, being fetched.
    fetching: FuturesOrdered<BoxFuture<'static, Result<Logged, BrokerError>>>,
}

impl Broker {
    /// Appends an event of a run (or of [`ALL_RUNS`](subjects::ALL_RUNS)) and waits until it is stored.
    /// Within the server's window the first outcome of a task, and the first submit of a run, wins.
    ///
    /// # Errors
    /// The queue or the object store fails. The event may be stored all the same.
    pub async fn append(&self, run: &str, event: &Event) -> Result<Appended, BrokerError> {
        let id = match event {
            // Two answers to the same question are one; a question of the same name that a lost part of the
            // log had asked was another.
            Event::Outcome(Outcome { key, request_fingerprint: Some(fingerprint), .. }) => {
                Some(format!("{run}/{key}/{fingerprint:x}"))
            }
            Event::Outcome(outcome) => Some(format!("{run}/{}", outcome.key)),
            Event::Submitted(_) => Some(format!("{run}/submitted")),
            Event::DeadLetter { .. }
            | Event::Requeued { .. }
            | Event::Cancelled { .. }
            | Event::Paused { .. }
            | Event::Resumed
            | Event::Archived
            | Event::Adopted(_)
            | Event::Scaled(_)
            | Event::Joined { .. }
            | Event::Left { .. }
            | Event::Tick { .. } => None,
        };
        self.append_as(run, event, id.as_deref()).await
    }

    /// Appends the outcome of a delivered task. Within the server's deduplication window the first
    /// outcome of this put of the task wins. The outcome of another put is stored too, although it
    /// answers the same task. Where the log lost its newest part, the first outcome may come from a
    /// worker that had the lost part's task in flight, before anyone waited for it.
    ///
    /// # Errors
    /// The queue or the object store fails. The outcome may be stored all the same.
    pub async fn append_outcome(
        &self,
        run: &RunId,
        key: TaskKey,
        delivery: &Delivery,
        outcome: &Event,
    ) -> Result<Appended, BrokerError> {
        let put = format!("{run}/{key}/put/{:x}", delivery.stored_ns);
        let id = match outcome {
            // Where the ack before it was lost, the same put may have another outcome.
            Event::Outcome(Outcome { body: OutcomeBody::Returned(_), .. }) => format!("{put}/returned"),
            _ => put,
        };
        let appended = self.append_as(run.as_str(), outcome, Some(&id)).await?;
        if appended.first {
            self.keep_own(appended.seq, outcome);
        }
        Ok(appended)
    }

    /// Appends a finding of a leader of this epoch. The fold ignores it if a later leader appended
    /// before.
    ///
    /// # Errors
    /// The queue or the object store fails. The event may be stored all the same.
    pub async fn append_led(&self, run: &str, event: &Event, epoch: u64) -> Result<Appended, BrokerError> {
        self.append_with(run, event, None, vec![(subjects::EPOCH_HEADER, epoch.to_string())]).await
    }

    async fn append_as(&self, run: &str, event: &Event, id: Option<&str>) -> Result<Appended, BrokerError> {
        self.append_with(run, event, id, Vec::new()).await
    }

    async fn append_with(
        &self,
        run: &str,
        event: &Event,
        id: Option<&str>,
        headers: Vec<(&'static str, String)>,
    ) -> Result<Appended, BrokerError> {
        let invalid = |reason: String| BrokerError::Invalid { action: "append an event", reason };
        let run: RunId = run.parse().map_err(|e: IdError| invalid(e.to_string()))?;
        let message =
            Message { subject: subjects::log(run.as_str(), event), payload: event.to_bytes(), headers };
        let large = message.payload.len() > MAX_INLINE_BYTES;
        let message = match large.then(|| event.brief()).flatten() {
            Some(brief) => Message { payload: brief.to_bytes(), ..self.claim(&run, message).await? },
            None if message.payload.len() > MAX_INLINE_EVENT_BYTES => self.claim(&run, message).await?,
            None => message,
        };
        Ok(self.queue.append(message, id).await?)
    }

    /// Reads the log from position `from` (1 is the first) on, trimmed or not, and then what is appended. What is in the
    /// object store is fetched.
    ///
    /// # Errors
    /// The queue cannot be reached.
    pub async fn read_log(&self, from: u64) -> Result<Log, BrokerError> {
        self.open_log(from, true).await
    }

    /// As [`Broker::read_log`], for readers that make decisions. A turn or an answer of an
    /// environment whose content is in the object store comes in brief, so that the fold of the log
    /// does not depend on the object store.
    ///
    /// # Errors
    /// The queue cannot be reached.
    pub async fn follow_log(&self, from: u64) -> Result<Log, BrokerError> {
        self.open_log(from, false).await
    }

    async fn open_log(&self, from: u64, whole: bool) -> Result<Log, BrokerError> {
        let from = from.max(1);
        let trimmed = from < self.queue.log_range().await?.first;
        let reader = if trimmed { None } else { Some(self.queue.read_log(from).await?) };
        Ok(Log {
            broker: self.clone(),
            whole,
            reader,
            next: from,
            segments: None,
            waiting: VecDeque::new(),
            fetching: FuturesOrdered::new(),
        })
    }

    /// Position of the oldest entry that can be read, in the log or in a segment of it; the next position where there
    /// is none.
    ///
    /// # Errors
    /// The queue or the object store fails.
    pub async fn log_start(&self) -> Result<u64, BrokerError> {
        let range = self.queue.log_range().await?;
        let oldest = self.segments(range.id).await?.firsts().next();
        Ok(oldest.map_or(range.first, |oldest| oldest.min(range.first)))
    }
}

/// Whether the entry cannot be read without the object store.
fn needs_fetch(entry: &LogEntry, whole: bool) -> bool {
    let claimed = entry.message.header(subjects::CLAIM_HEADER).is_some();
    claimed && (whole || entry.message.payload.is_empty())
}

impl Log {
    /// Waits for entries and gives 1 to `max`, in order and without gaps. Dropping the future loses nothing.
    ///
    /// # Errors
    /// The queue cannot be reached, or a large payload or a segment cannot be fetched now. Nothing is lost: the next
    /// call goes on at the same entry. [`BrokerError::Gone`]: entries were taken out of the log that no segment holds.
    pub async fn next(&mut self, max: usize) -> Result<Vec<Logged>, BrokerError> {
        while self.waiting.is_empty() {
            self.waiting = self.more(max).await?;
            if let Some(last) = self.waiting.back() {
                self.next = last.seq + 1;
            }
        }
        let mut logged = Vec::with_capacity(self.waiting.len().min(max));
        while logged.len() < max
            && let Some(entry) = self.waiting.front()
        {
            if needs_fetch(entry, self.whole) {
                self.fetch_ahead();
                // Waiting for the object store after something was taken would lose it if the future is dropped.
                let fetched = match logged.is_empty() {
                    true => self.fetching.next().await,
                    false => match self.fetching.next().now_or_never() {
                        Some(fetched) => fetched,
                        None => break,
                    },
                };
                match fetched {
                    Some(Ok(entry)) => logged.push(entry),
                    Some(Err(error)) => {
                        // Fetched again by the next call, from the first on.
                        self.fetching.clear();
                        return if logged.is_empty() { Err(error) } else { Ok(logged) };
                    }
                    None => break,
                }
            } else {
                logged.push(self.broker.read_entry(entry, self.whole).await?);
            }
            self.waiting.pop_front();
        }
        Ok(logged)
    }

    /// Begins to fetch the next payloads that are in the object store, some at once.
    fn fetch_ahead(&mut self) {
        let room = CLAIMS_IN_FLIGHT.saturating_sub(self.fetching.len());
        let whole = self.whole;
        let claims = self.waiting.iter().filter(|entry| needs_fetch(entry, whole));
        for entry in claims.skip(self.fetching.len()).take(room) {
            let (broker, entry) = (self.broker.clone(), entry.clone());
            self.fetching.push_back(async move { broker.read_entry(&entry, whole).await }.boxed());
        }
    }
}

impl Log {
    /// Entries from the next position on, without gaps; perhaps none yet.
    async fn more(&mut self, max: usize) -> Result<VecDeque<LogEntry>, BrokerError> {
        let Some(reader) = &mut self.reader else { return self.trimmed().await };
        let entries = reader.next(max).await?;
        // The log may be trimmed under a slow reader.
        if entries.first().is_some_and(|entry| entry.seq > self.next) {
            self.reader = None;
            return Ok(VecDeque::new());
        }
        Ok(entries.into())
    }

    async fn trimmed(&mut self) -> Result<VecDeque<LogEntry>, BrokerError> {
        let range = self.broker.queue.log_range().await?;
        if self.next >= range.first {
            self.reader = Some(self.broker.queue.read_log(self.next).await?);
            return Ok(VecDeque::new());
        }
        let Some(segment) = self.segment(range.id).await? else {
            return Err(BrokerError::Gone { from: self.next, to: range.first - 1 });
        };
        let mut entries = VecDeque::from(self.broker.read_segment(&segment).await?);
        entries.retain(|entry| entry.seq >= self.next);
        Ok(entries)
    }

    /// The segment that holds the next position. They are listed again where none of those that were listed does.
    async fn segment(&mut self, log: u64) -> Result<Option<LogSegment>, BrokerError> {
        if let Some((of, chain)) = &self.segments
            && *of == log
            && let Some(segment) = self.broker.segment_with(log, chain, self.next).await?
        {
            return Ok(Some(segment));
        }
        let (_, chain) = self.segments.insert((log, self.broker.segments(log).await?));
        self.broker.segment_with(log, chain, self.next).await
    }
}

impl Broker {
    /// Reads an entry. `whole`: with what is in the object store, where the entry has it in brief too.
    pub(super) async fn read_entry(&self, entry: &LogEntry, whole: bool) -> Result<Logged, BrokerError> {
        let run = subjects::run_of_log(&entry.message.subject).unwrap_or_default().to_owned();
        let bytes = entry.message.payload.len();
        let wrong = |reason: &str| DecodeError { what: "event", bytes, reason: reason.to_owned() };
        let claimed = entry.message.header(subjects::CLAIM_HEADER).is_some();
        let event = if entry.message.header(subjects::COPY_HEADER).is_some() {
            Err(wrong("it is a copy of what is stored elsewhere"))
        } else if needs_fetch(entry, whole) {
            self.read_claimed(&run, entry, whole).await?
        } else {
            match Event::from_bytes(&entry.message.payload) {
                Ok(event) if event.is_brief() != claimed => {
                    Err(wrong("it is in brief without a claim, or the other way round"))
                }
                read => read,
            }
        };
        let subject = &entry.message.subject;
        let event = event.and_then(|event| match subjects::is_subject_of(subject, &run, &event) {
            true => Ok(event),
            false => Err(wrong(&format!("an event of kind={} stands on subject={subject}", event.kind()))),
        });
        let epoch = event.as_ref().ok().and_then(|event| epoch(&entry.message, event));
        Ok(Logged { seq: entry.seq, stored_ns: entry.stored_ns, run, epoch, event })
    }
}

impl Broker {
    /// Fetches the payload that an entry claims, and compares it with the entry's brief form. A
    /// missing payload that decisions depend on is waited for, unless a worker wrote the entry: a
    /// worker cannot block the readers.
    async fn read_claimed(
        &self,
        run: &str,
        entry: &LogEntry,
        whole: bool,
    ) -> Result<Result<Event, DecodeError>, BrokerError> {
        let bytes = entry.message.payload.len();
        let wrong = |reason: String| DecodeError { what: "event", bytes, reason };
        let run: RunId = match run.parse() {
            Ok(run) => run,
            Err(e) => return Ok(Err(wrong(IdError::to_string(&e)))),
        };
        let payload = match self.check_out(&run, &entry.message).await {
            Ok(payload) => payload,
            Err(ClaimError::Unavailable(e)) => return Err(e.into()),
            Err(ClaimError::Lost(reason)) if whole || subjects::is_workers(&entry.message.subject) => {
                return Ok(Err(wrong(reason)));
            }
            Err(ClaimError::Lost(reason)) => {
                return Err(BrokerError::Invalid { action: "read an event", reason });
            }
        };
        let event: Result<Event, DecodeError> = Event::from_bytes(&payload);
        let said = (bytes > 0).then(|| Event::from_bytes(&entry.message.payload).ok());
        Ok(match (event, said) {
            (Ok(event), Some(said)) if event.brief() != said => {
                Err(wrong("the entry says other things of it in brief".to_owned()))
            }
            (event, _) => event,
        })
    }
}

/// The epoch of an event that leaders write. Workers have no right to write such a one.
fn epoch(message: &Message, event: &Event) -> Option<u64> {
    match event {
        Event::Outcome(_) | Event::DeadLetter { .. } => None,
        Event::Submitted(_)
        | Event::Requeued { .. }
        | Event::Cancelled { .. }
        | Event::Joined { .. }
        | Event::Left { .. }
        | Event::Adopted(_)
        | Event::Scaled(_)
        | Event::Paused { .. }
        | Event::Resumed
        | Event::Archived
        | Event::Tick { .. } => message.header(subjects::EPOCH_HEADER)?.parse().ok(),
    }
}
