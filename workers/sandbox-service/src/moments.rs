//! Moments as people and clients write them.

use std::time::SystemTime;

use chrono::{DateTime, SecondsFormat, Utc};

/// A moment, to the microsecond.
pub(crate) fn moment(at: SystemTime) -> String {
    DateTime::<Utc>::from(at).to_rfc3339_opts(SecondsFormat::Micros, true)
}
