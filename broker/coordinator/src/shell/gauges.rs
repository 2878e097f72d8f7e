//! Metrics of the runs, updated with each tick.

use crate::fold::domains;
use crate::fold::state::State;
use crate::fold::status;

/// Sets the gauges of all runs. Returns whether any run is live and needs ticks.
pub fn set(state: &State) -> bool {
    let mut live = false;
    for run in state.runs.values() {
        live |= run.state.works();
        let name = run.spec.name.to_string();
        let ledger = status::ledger(run);
        metrics::gauge!("millrace_policy_version", "run" => name.clone()).set(run.version().0 as f64);
        metrics::gauge!("millrace_rollouts_in_flight", "run" => name.clone()).set(ledger.in_flight as f64);
        metrics::counter!("millrace_rollouts_admitted_total", "run" => name.clone())
            .absolute(ledger.admitted);
        metrics::counter!("millrace_rollouts_trained_total", "run" => name.clone()).absolute(ledger.trained);
        metrics::counter!("millrace_tokens_sampled_total", "run" => name.clone())
            .absolute(run.books.sampled_tokens);
        let contexts = [("computed", run.books.prefill_tokens), ("kept", run.books.cached_tokens)];
        for (how, tokens) in contexts {
            metrics::counter!("millrace_context_tokens_total", "run" => name.clone(), "how" => how)
                .absolute(tokens);
        }
        let turns = [("trained", run.books.trained_turns), ("surplus", run.books.surplus_turns)];
        for (of, turns) in turns {
            metrics::counter!("millrace_turns_total", "run" => name.clone(), "of" => of).absolute(turns);
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
