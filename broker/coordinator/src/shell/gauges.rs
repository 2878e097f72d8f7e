//! Metrics of the runs, updated with each tick.

use std::collections::BTreeMap;

use metrics::Label;
use millrace_schemas::RunId;
use millrace_schemas::api::RunState;
use millrace_schemas::limits::MAX_SHOWN_BYTES;
use millrace_schemas::text::shown;

use crate::fold::domains;
use crate::fold::state::State;
use crate::fold::status;

/// The runs that were reported as paused, each with the reason that is a label of its metric.
#[derive(Debug, Default)]
pub struct Paused(BTreeMap<RunId, String>);

impl Paused {
    /// Reports which runs are paused and why. The metric of a former reason becomes 0.
    fn report(&mut self, state: &State) {
        let paused = state.runs.iter().filter(|(_, run)| run.state == RunState::Paused);
        let now: BTreeMap<RunId, String> = paused
            .map(|(name, run)| {
                (name.clone(), shown(run.reason.as_deref().unwrap_or_default(), MAX_SHOWN_BYTES))
            })
            .collect();
        let set = |run: &RunId, reason: &String, value| {
            let labels = [("run", run.to_string()), ("reason", reason.clone())];
            metrics::gauge!("millrace_run_paused", &labels).set(value);
        };
        for (run, reason) in self.0.iter().filter(|(run, reason)| now.get(*run) != Some(reason)) {
            set(run, reason, 0.0);
        }
        now.iter().for_each(|(run, reason)| set(run, reason, 1.0));
        self.0 = now;
    }
}

/// Sets the gauges of all runs. Returns whether any run is live and needs ticks.
pub fn set(state: &State, paused: &mut Paused) -> bool {
    paused.report(state);
    let mut live = false;
    for run in state.runs.values() {
        live |= run.state.works();
        let name = run.spec.name.to_string();
        let ledger = status::ledger(run);
        metrics::gauge!("millrace_run_live", "run" => name.clone())
            .set(f64::from(u8::from(run.state.works())));
        metrics::gauge!("millrace_policy_version", "run" => name.clone()).set(run.version().0 as f64);
        metrics::gauge!("millrace_rollouts_in_flight", "run" => name.clone()).set(ledger.in_flight as f64);
        metrics::counter!("millrace_rollouts_admitted_total", "run" => name.clone())
            .absolute(ledger.admitted);
        metrics::counter!("millrace_rollouts_trained_total", "run" => name.clone()).absolute(ledger.trained);
        for counter in run.books.counters.iter() {
            let mut labels = vec![Label::new("run", name.clone())];
            labels.extend(counter.label.map(|(label, value)| Label::new(label, value)));
            metrics::counter!(counter.metric, labels).absolute(counter.value);
        }
        for (reason, count) in ledger.dropped {
            metrics::counter!("millrace_rollouts_dropped_total", "run" => name.clone(), "reason" => reason)
                .absolute(count);
        }
        if run.spec.rollout.stored_turns.is_on() {
            let (labels, stored) = ([("run", name.clone())], run.stored.status());
            metrics::gauge!("millrace_stored_rollouts", &labels).set(stored.rollouts as f64);
            metrics::gauge!("millrace_stored_turns_left", &labels).set(stored.mean_turns_left);
            metrics::counter!("millrace_groups_from_stored_turns_total", &labels).absolute(stored.groups);
        }
        for domain in domains::statuses(run) {
            let labels = [("run", name.clone()), ("domain", domain.name.to_string())];
            metrics::counter!("millrace_domain_rollouts_admitted_total", &labels)
                .absolute(domain.ledger.admitted);
            metrics::counter!("millrace_domain_rollouts_trained_total", &labels)
                .absolute(domain.ledger.trained);
            let dropped = domain.ledger.dropped.values().sum();
            metrics::counter!("millrace_domain_rollouts_dropped_total", &labels).absolute(dropped);
            metrics::gauge!("millrace_domain_reward", &labels).set(domain.last_reward.unwrap_or(0.0));
            metrics::gauge!("millrace_domain_success", &labels).set(domain.last_success.unwrap_or(0.0));
        }
        for (staleness, count) in run.books.staleness.iter().enumerate() {
            let staleness = staleness.to_string();
            metrics::counter!("millrace_rollouts_by_staleness_total", "run" => name.clone(), "staleness" => staleness)
                .absolute(*count);
        }
    }
    live
}
