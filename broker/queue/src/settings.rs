//! Settings of a queue. The defaults are the limits of the schemas crate.

use std::time::Duration;

use millrace_schemas::limits;

/// What an acknowledged write is worth to the queue in memory when its machine loses its power. On the server it is a
/// setting of the server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Durability {
    /// It stays.
    #[default]
    Synced,
    /// It stays from the next sync on; there is one in this time.
    Interval(Duration),
}

/// How leases and ids behave. One value for all pools.
#[derive(Debug, Clone)]
pub struct QueueSettings {
    /// Silence of a worker after which its task is given to another.
    pub ack_wait: Duration,
    /// Deliveries of one task before it is exhausted. 1 or more.
    pub max_deliver: i64,
    /// Time in which the log refuses an entry with the same id.
    pub dedup_window: Duration,
    /// Bytes of the log. A full one takes no entry until it is trimmed.
    pub max_log_bytes: i64,
    /// What the queue in memory keeps.
    pub durability: Durability,
}

/// Why a length of leases is refused.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("ack_wait_s={0} is too short or too long; give 1 to 3600")]
pub struct AckWaitError(f64);

impl QueueSettings {
    /// With leases of so many seconds. A task is exhausted after about the same time of silence as by default,
    /// so shorter leases bring more deliveries.
    ///
    /// # Errors
    /// The number is not between 1 and 3600.
    pub fn with_ack_wait(self, seconds: f64) -> Result<Self, AckWaitError> {
        if !(1.0..=3600.0).contains(&seconds) {
            return Err(AckWaitError(seconds));
        }
        let silence_s = limits::ACK_WAIT_MS as f64 / 1000.0 * limits::MAX_DELIVER as f64;
        let max_deliver = ((silence_s / seconds).ceil() as i64).max(limits::MAX_DELIVER);
        Ok(Self { ack_wait: Duration::from_secs_f64(seconds), max_deliver, ..self })
    }
}

impl Default for QueueSettings {
    fn default() -> Self {
        Self {
            ack_wait: Duration::from_millis(limits::ACK_WAIT_MS),
            max_deliver: limits::MAX_DELIVER,
            dedup_window: Duration::from_millis(limits::DEDUP_WINDOW_MS),
            max_log_bytes: limits::MAX_LOG_BYTES,
            durability: Durability::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shorter_leases_bring_more_deliveries_in_the_same_time() {
        let of = |seconds| QueueSettings::default().with_ack_wait(seconds);
        let short = of(6.0).unwrap();
        assert_eq!((short.ack_wait, short.max_deliver), (Duration::from_secs(6), 25));
        assert_eq!(of(30.0).unwrap().max_deliver, limits::MAX_DELIVER);
        assert_eq!(of(300.0).unwrap().max_deliver, limits::MAX_DELIVER);
        for wrong in [0.0, 0.9, 3601.0, f64::NAN] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
