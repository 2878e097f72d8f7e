//! The counters of a run. They travel as one struct: in the coordinator's books and snapshots, in
//! statuses and reports, and as metrics. A new counter is one line here, besides where it counts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::omit;

/// A counter as `/metrics` shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counter {
    /// Name of the metric.
    pub metric: &'static str,
    /// What distinguishes it from other counters of this metric, beside the run; `None` if there
    /// are none.
    pub label: Option<(&'static str, &'static str)>,
    /// The count.
    pub value: u64,
}

/// Declares [`RunCounters`]: attributes, name, metric and label of each counter.
macro_rules! counters {
    ($($(#[$attribute:meta])* $name:ident: $metric:literal, $label:expr;)+) => {
        /// Counters of a run, without evaluation. They only grow.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        pub struct RunCounters {
            $($(#[$attribute])* pub $name: u64,)+
        }

        impl RunCounters {
            /// All counters, in the order of their declaration.
            pub fn iter(&self) -> impl Iterator<Item = Counter> {
                [$(Counter { metric: $metric, label: $label, value: self.$name },)+].into_iter()
            }
        }
    };
}

counters! {
    /// Tokens sampled.
    sampled_tokens: "millrace_tokens_sampled_total", None;
    /// Turns sampled.
    turns: "millrace_turns_sampled_total", None;
    /// Context tokens of these turns that engines prefilled.
    #[serde(default)]
    prefill_tokens: "millrace_context_tokens_total", Some(("how", "computed"));
    /// Context tokens of these turns that were in an engine's prefix cache.
    #[serde(default)]
    cached_tokens: "millrace_context_tokens_total", Some(("how", "kept"));
    /// Turns of trained rollouts.
    #[serde(default)]
    trained_turns: "millrace_turns_total", Some(("of", "trained"));
    /// Turns of rollouts that were dropped as surplus. They have more turns per rollout than
    /// trained ones, because short rollouts finish first.
    #[serde(default)]
    surplus_turns: "millrace_turns_total", Some(("of", "surplus"));
    /// Milliseconds that full batches waited for groups that their step would have made too old.
    #[serde(default, skip_serializing_if = "omit::is_default")]
    held_ms: "millrace_batches_held_milliseconds_total", None;
    /// Tokens of begun turns that leaving workers handed back.
    #[serde(default, skip_serializing_if = "omit::is_default")]
    handed_back_tokens: "millrace_tokens_handed_back_total", None;
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_counters_are_one_series() {
        let counters = RunCounters::default();
        let series: BTreeSet<_> = counters.iter().map(|counter| (counter.metric, counter.label)).collect();
        assert_eq!(series.len(), counters.iter().count());
        // All series of one metric have the same label.
        let labels: BTreeSet<_> =
            counters.iter().map(|counter| (counter.metric, counter.label.map(|(name, _)| name))).collect();
        let metrics: BTreeSet<_> = counters.iter().map(|counter| counter.metric).collect();
        assert_eq!(labels.len(), metrics.len());
    }
}
