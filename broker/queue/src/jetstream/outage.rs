//! What is told of a lost connection: that it is lost, why it cannot be made again, and that it is back. The
//! client tries many times a second, so a reason is told once a minute.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a reason is not repeated.
const QUIET: Duration = Duration::from_secs(60);

/// A connection and, while it is lost, when its trouble was told last.
#[derive(Debug, Default)]
pub(super) struct Outage {
    lost: Mutex<Option<Lost>>,
}

#[derive(Debug, Default)]
struct Lost {
    told: Option<Instant>,
}

impl Outage {
    pub(super) fn begin(&self) {
        tracing::warn!("the connection to nats-server is lost; it is tried until it is back");
        *self.lost() = Some(Lost::default());
    }

    /// The client failed to connect.
    pub(super) fn failed(&self, error: &str) {
        if self.is_news(Instant::now()) {
            tracing::warn!(error, "no connection to nats-server");
        } else {
            tracing::debug!(error, "connection trouble");
        }
    }

    pub(super) fn end(&self) {
        match self.lost().take() {
            Some(_) => tracing::info!("connected to nats-server again"),
            None => tracing::debug!("connected"),
        }
    }

    fn is_news(&self, now: Instant) -> bool {
        let mut lost = self.lost();
        let Some(lost) = lost.as_mut() else { return false };
        let news = lost.told.is_none_or(|told| now.duration_since(told) >= QUIET);
        if news {
            lost.told = Some(now);
        }
        news
    }

    fn lost(&self) -> std::sync::MutexGuard<'_, Option<Lost>> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key that was revoked, a certificate that is no longer trusted: the log has to say so, and not a thousand times.
    #[test]
    fn why_there_is_no_connection_is_told_once_a_minute() {
        let (outage, start) = (Outage::default(), Instant::now());
        assert!(!outage.is_news(start), "nothing is lost");
        outage.begin();
        let told = (0..180).filter(|second| outage.is_news(start + Duration::from_secs(*second)));
        assert_eq!(told.collect::<Vec<_>>(), [0, 60, 120]);
        outage.end();
        outage.begin();
        assert!(outage.is_news(start + Duration::from_secs(121)), "another loss, perhaps for another reason");
    }
}
