//! The leader looks now and then at everything in the object store, and removes what nothing leads to any more. Nobody
//! waits for it; what it fails at is left to the next time.

use std::collections::BTreeMap;
use std::time::Duration;

use millrace_queue::{Broker, BrokerError};
use millrace_schemas::RunId;
use millrace_schemas::limits::{COLLECT_AGE_MS, COLLECT_EVERY_MS};
use millrace_schemas::publish_weights::Retention;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Driver;
use crate::shell::collect::{Tally, collect, retentions, survey};
use crate::shell::leader::Term;

const EVERY: Duration = Duration::from_millis(COLLECT_EVERY_MS);
const AGE: Duration = Duration::from_millis(COLLECT_AGE_MS);

/// How collection stands.
pub(super) struct Collecting {
    /// The one under way.
    pub(super) running: JoinSet<Result<Tally, BrokerError>>,
    not_before: Instant,
}

impl Collecting {
    pub(super) fn new() -> Self {
        Self { running: JoinSet::new(), not_before: Instant::now() + EVERY }
    }

    /// Says how the one under way ended.
    pub(super) fn ended(&mut self, result: Result<Tally, BrokerError>) {
        match result {
            Ok(gone) if gone.objects > 0 => {
                tracing::info!(objects = gone.objects, bytes = gone.bytes, "removed what nothing leads to");
                metrics::counter!("millrace_objects_collected_total").increment(gone.objects);
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "failed to collect the object store; it grows meanwhile"),
        }
    }
}

impl Driver {
    /// Begins to collect where that is due and none is under way.
    pub(super) fn collect_where_due(&mut self) {
        let Collecting { running, not_before } = &mut self.collecting;
        if !self.acting || !running.is_empty() || Instant::now() < *not_before {
            return;
        }
        *not_before = Instant::now() + EVERY;
        let retentions = retentions(&self.shared.lock());
        running.spawn(look_and_remove(self.broker.clone(), retentions, self.term.clone()));
    }
}

async fn look_and_remove(
    broker: Broker,
    retentions: BTreeMap<RunId, Retention>,
    term: Term,
) -> Result<Tally, BrokerError> {
    let survey = survey(&broker, &retentions, AGE).await?;
    for wrong in &survey.wrong {
        tracing::error!(wrong, "the object store lacks what something leads to");
    }
    Ok(collect(&broker, &survey, || term.holds()).await?)
}
