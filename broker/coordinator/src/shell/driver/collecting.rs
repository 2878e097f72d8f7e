//! The leader periodically surveys the object store and removes objects that nothing refers to.
//! Nothing waits for it. What fails is retried at the next collection.

use std::time::Duration;

use millrace_queue::{Broker, BrokerError};
use millrace_schemas::limits::{COLLECT_AGE_MS, COLLECT_EVERY_MS};
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

use super::{Driver, beside};
use crate::shell::collect::{Known, ObjectCount, collect, survey};
use crate::shell::leader::Term;

const EVERY: Duration = Duration::from_millis(COLLECT_EVERY_MS);
const AGE: Duration = Duration::from_millis(COLLECT_AGE_MS);

/// Progress of collection.
pub(super) struct Collecting {
    /// The current collection; empty between collections.
    pub(super) running: JoinSet<Result<ObjectCount, BrokerError>>,
    not_before: Instant,
}

impl Collecting {
    pub(super) fn new() -> Self {
        Self { running: JoinSet::new(), not_before: Instant::now() + EVERY }
    }

    /// Logs the result of a collection. One that panics has failed, and the coordinator continues.
    pub(super) fn ended(&mut self, result: Result<Result<ObjectCount, BrokerError>, JoinError>) {
        match beside("collect the object store", result) {
            Ok(gone) if gone.objects > 0 => {
                tracing::info!(
                    objects = gone.objects,
                    bytes = gone.bytes,
                    "removed objects that nothing refers to"
                );
                metrics::counter!("millrace_objects_collected_total").increment(gone.objects);
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "failed to collect the object store; it grows meanwhile"),
        }
    }
}

impl Driver {
    /// Starts a collection if one is due and none is running.
    pub(super) fn collect_where_due(&mut self) {
        let Collecting { running, not_before } = &mut self.collecting;
        if !self.acting || !running.is_empty() || Instant::now() < *not_before {
            return;
        }
        *not_before = Instant::now() + EVERY;
        let known = Known::of(&self.shared.lock());
        running.spawn(survey_and_remove(self.broker.clone(), known, self.term.clone()));
    }
}

async fn survey_and_remove(broker: Broker, known: Known, term: Term) -> Result<ObjectCount, BrokerError> {
    let survey = survey(&broker, &known, AGE).await?;
    for wrong in &survey.wrong {
        tracing::error!(wrong, "the object store lacks an object that is referred to, or has it damaged");
    }
    Ok(collect(&broker, &survey, || term.holds()).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_collection_that_panics_is_a_failed_one() {
        let mut collecting = Collecting::new();
        collecting.running.spawn(async { panic!("a number that nobody expected") });
        let ended = collecting.running.join_next().await.expect("it was spawned");
        assert!(ended.is_err());
        collecting.ended(ended);
    }
}
