//! A run for tests of the views.

use millrace_schemas::PolicyVersion;
use millrace_schemas::api::{CurvePoint, Evaluation, Ledger, RunState, Status};
use millrace_schemas::counters::RunCounters;

/// A run after `done` of ten times as many steps, one a second, whose success rises to one half.
pub(super) fn status(done: u64) -> Status {
    let share = |v: u64| 0.5 * v as f64 / done as f64;
    let point = |v: u64| CurvePoint { version: v, success: share(v), reward: share(v), at_ms: v * 1_000 };
    let evaluation = |version: u64, success: f64| Evaluation {
        version,
        temperature: 0.0,
        success: Some(success),
        standard_error: Some(0.03125),
        distinct: 250,
        samples: 1,
        pass: vec![],
        reward: Some(success),
        prompts: 256,
        failed: 0,
        reason: None,
        at_ms: version * 1_000,
    };
    Status {
        run: "sample".parse().expect("a valid name"),
        state: RunState::Running,
        reason: None,
        remedy: None,
        version: PolicyVersion(done),
        steps: 10 * done,
        alpha: 1.0,
        started_unix_ms: 1_000_000,
        now_unix_ms: 1_000_000 + done * 1_000,
        quiet_ms: 0,
        held_for_ms: 0,
        curve: (1..=done).map(point).collect(),
        evaluations: vec![evaluation(0, 0.04), evaluation(done, 0.5)],
        staleness: vec![3 * done, done],
        counters: RunCounters { sampled_tokens: 1_000 * done, turns: 1_000 * done, ..RunCounters::default() },
        groups_in_flight: 40,
        groups_ready: 8,
        window_groups: 64,
        tasks: [].into(),
        wasted_us: [].into(),
        busy_us: [].into(),
        metrics: [].into(),
        ledger: Ledger {
            admitted: 4 * done + 12,
            trained: 4 * done,
            dropped: [("stale".into(), 2)].into(),
            in_flight: 10,
        },
        domains: vec![],
        stored_turns: None,
    }
}
