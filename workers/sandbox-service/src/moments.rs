//! Moments as people and clients write them.

use std::time::{Duration, SystemTime};

use chrono::{DateTime, SecondsFormat, Utc};

/// Seconds from 1970 to the last moment that RFC 3339 can write: the end of the year 9999.
const LAST_S: u64 = 253_402_300_799;

/// A moment, to the microsecond. One beyond the year 9999 is written as its end.
pub(crate) fn moment(at: SystemTime) -> String {
    let last = SystemTime::UNIX_EPOCH + Duration::from_secs(LAST_S);
    DateTime::<Utc>::from(at.min(last)).to_rfc3339_opts(SecondsFormat::Micros, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_beyond_the_year_9999_is_written_as_its_end() {
        let at = |s| moment(SystemTime::UNIX_EPOCH + Duration::from_secs(s));
        assert_eq!(at(0), "1970-01-01T00:00:00.000000Z");
        for s in [LAST_S, LAST_S + 1, 9_000_000_000_000, i64::MAX.unsigned_abs()] {
            assert_eq!(at(s), "9999-12-31T23:59:59.000000Z");
        }
    }
}
