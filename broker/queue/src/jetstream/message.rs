//! Messages between the client's form and the port's.

use async_nats::{HeaderMap, HeaderName, HeaderValue, Subscriber};
use async_trait::async_trait;
use futures::StreamExt;
use millrace_schemas::subjects;

use crate::port::{Listener, Message};

pub(super) fn from_nats(message: async_nats::Message) -> Message {
    let headers = message.headers.as_ref().map(known).unwrap_or_default();
    Message { subject: message.subject.into_string(), payload: message.payload, headers }
}

/// The headers that the port carries. The server's own stay behind, but for the mark of a copy.
pub(super) fn known(headers: &HeaderMap) -> Vec<(&'static str, String)> {
    let known = |(name, values): (&HeaderName, &Vec<HeaderValue>)| {
        Some((subjects::header(name.as_ref())?, values.first()?.to_string()))
    };
    headers.iter().filter_map(known).collect()
}

pub(super) fn to_headers<'a>(
    headers: impl IntoIterator<Item = &'a (&'static str, String)>,
) -> Option<HeaderMap> {
    let mut map = None;
    for (name, value) in headers {
        let map = map.get_or_insert_with(HeaderMap::new);
        match value.parse::<HeaderValue>() {
            Ok(value) => map.insert(*name, value),
            // A header is one line.
            Err(_) => map.insert(*name, value.replace(['\r', '\n'], " ")),
        }
    }
    map
}

/// The position of a delivered message, read from its reply subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// Which delivery, from 1.
    pub(super) attempt: u64,
    /// Position in the stream.
    pub(super) stream_seq: u64,
    /// Position among the consumer's deliveries.
    pub(super) consumer_seq: u64,
    /// When the server stored it, in nanoseconds of its clock.
    pub(super) stored_ns: u64,
    /// How many the consumer has left after it.
    pub(super) pending: u64,
}

/// Reads `$JS.ACK.<stream>.<consumer>.<attempt>.<stream seq>.<consumer seq>.<time>.<pending>`, also with a
/// domain and an account hash after `ACK` and a random token at the end.
pub(super) fn place(reply: &str) -> Option<Place> {
    let tokens = reply.split('.').count();
    let skip = match tokens {
        9 => 4,
        11.. => 6,
        _ => return None,
    };
    let mut numbers = reply.strip_prefix("$JS.ACK.")?.split('.').skip(skip - 2).map(str::parse);
    let mut next = || numbers.next()?.ok();
    Some(Place {
        attempt: next()?,
        stream_seq: next()?,
        consumer_seq: next()?,
        stored_ns: next()?,
        pending: next()?,
    })
}

pub(super) struct JetStreamListener {
    pub(super) subscriber: Subscriber,
}

#[async_trait]
impl Listener for JetStreamListener {
    async fn next(&mut self) -> Option<Message> {
        self.subscriber.next().await.map(from_nats)
    }
}

#[cfg(test)]
mod tests {
    use super::{Place, place};

    #[test]
    fn both_forms_of_reply_subjects_are_read() {
        let want =
            Some(Place { attempt: 2, stream_seq: 17, consumer_seq: 5, stored_ns: 1_700_000_000, pending: 3 });
        assert_eq!(place("$JS.ACK.S.c.2.17.5.1700000000.3"), want);
        assert_eq!(place("$JS.ACK._.hash.S.c.2.17.5.1700000000.3.token"), want);
        assert_eq!(place("$JS.ACK._.hash.S.c.2.17.5.1700000000.3"), want);
        assert_eq!(place("_INBOX.x.y"), None);
    }
}
