//! What remains of a run that is over and of one that cannot be folded; lists of thousands of runs.

use std::sync::Arc;

use bytes::Bytes;
use millrace_coordinator::fold::{State, status};
use millrace_coordinator::shell::api::Api;
use millrace_coordinator::shell::shared::SharedState;
use millrace_queue::clock::SystemClock;
use millrace_queue::service::ApiHandler;
use millrace_queue::{Broker, MemoryQueue, Objects};
use millrace_schemas::api::{CurvePoint, Evaluation, PassAt, RunList, RunState};
use millrace_schemas::limits::MAX_PAYLOAD_BYTES;
use millrace_schemas::{Event, RunId};

use super::harness::Harness;
use super::{bytes, spec, to_the_end};

#[test]
fn a_run_that_is_over_leaves_a_summary() {
    let mut spec = spec("alpha = 1.0");
    (spec.rollout.alpha, spec.rollout.group_size, spec.rollout.groups_per_step) = (8.0, 64, 16);
    spec.weights.newest = 20;
    let mut harness = Harness::submit(&spec, 0);
    for _ in 0..3_000 {
        harness.work();
    }
    let largest = bytes(&harness.state).len();
    let rollouts: usize = harness.run().groups.values().map(|group| group.rollouts.len()).sum();
    assert!(rollouts > 5_000, "{rollouts}");
    harness.append(Event::Cancelled { reason: "enough".into() });
    let left = bytes(&harness.state).len();
    assert!(left < 16_384, "{left} bytes of {largest}");
    assert!(status::ledger(harness.run()).balanced());
    harness.append(Event::Archived);
    assert!(harness.state.runs.is_empty() && bytes(&harness.state).len() < 512);
    // Its versions are in the object store, so its name stays taken.
    let ignored = harness.state.ignored;
    harness.append(Event::Submitted(Box::new(spec)));
    assert!(harness.state.runs.is_empty() && harness.state.ignored == ignored + 1);
}

#[test]
fn a_run_that_is_not_over_is_not_archived() {
    let mut harness = Harness::submit(&spec("alpha = 1.0"), 0);
    harness.append(Event::Archived);
    assert_eq!(harness.state.runs.len(), 1);
    to_the_end(&mut harness);
    assert_eq!(harness.run().state, RunState::Finished);
}

#[test]
fn a_run_that_cannot_be_folded_is_closed_and_the_others_continue() {
    let mut harness = Harness::submit(&spec("alpha = 1.0"), 0);
    while harness.run().policy.is_none() {
        harness.work();
    }
    let (fold, other): (RunId, RunId) = ("fold".parse().expect("a name"), "other".parse().expect("a name"));
    let mut sound = harness.run().clone();
    sound.spec.name = other.clone();
    harness.state.runs.insert(other.clone(), sound);
    // What no log leads to: groups that are finished and not there.
    let run = harness.state.runs.get_mut(&fold).expect("it was submitted");
    (run.ready, run.evaluation) = (vec![900, 901, 902], None);
    harness.append(Event::Paused { reason: String::new(), remedy: String::new() });
    harness.append(Event::Resumed);
    let run = &harness.state.runs[&fold];
    assert_eq!(run.state, RunState::Failed);
    assert!(run.is_closed() && run.reason.as_ref().is_some_and(|reason| reason.contains("cannot be folded")));
    assert!(status::ledger(run).balanced());
    assert!(harness.policy.as_ref().is_some_and(|policy| policy.ended));
    harness.append(Event::Tick { unix_ms: 1_100_000 });
    assert_eq!(harness.state.runs[&other].state, RunState::Running);
}

#[test]
fn a_run_that_only_an_older_version_accepts_is_archived_as_failed() {
    let mut huge = spec("alpha = 1.0");
    (huge.rollout.alpha, huge.rollout.groups_per_step, huge.rollout.group_size) = (8.0, 65_536, 1_024);
    huge.weights.newest = 20;
    let mut state = State::default();
    state.advance(1, "fold", Event::Submitted(Box::new(huge.clone())));
    assert!(state.runs.is_empty());
    let archived = &state.archived[&huge.name];
    assert_eq!(archived.state, RunState::Failed);
    assert!(
        archived.reason.as_ref().is_some_and(|reason| reason.contains("rollouts in flight")),
        "{archived:?}"
    );
}

#[test]
fn all_runs_together_are_bounded() {
    let mut state = State::default();
    let mut taken = 0;
    for number in 1..=10_u64 {
        let mut spec = spec("alpha = 1.0");
        spec.name = format!("run-{number}").parse().expect("a name");
        (spec.rollout.groups_per_step, spec.rollout.group_size) = (1_024, 128);
        state.advance(number, &spec.name.to_string(), Event::Submitted(Box::new(spec.clone())));
        taken += u64::from(state.runs.contains_key(&spec.name));
    }
    assert_eq!(taken, 4, "of 262,144 rollouts each");
}

#[tokio::test]
async fn a_list_of_thousands_of_runs_fits_a_message() {
    let mut state = State::default();
    for number in 0..2_000_u64 {
        let mut spec = spec("alpha = 1.0");
        spec.name = format!("a-run-of-a-rather-long-name-{number:06}").parse().expect("a name");
        let name = spec.name.to_string();
        state.advance(number + 1, &name, Event::Submitted(Box::new(spec)));
    }
    let point = |version: u64| CurvePoint {
        version,
        success: 0.123_456_789,
        reward: -0.123_456_789,
        at_ms: u64::MAX,
    };
    let evaluation = |version: u64| Evaluation {
        version,
        temperature: 0.123_456_789,
        success: Some(0.123_456_789),
        standard_error: Some(0.123_456_789),
        distinct: u32::MAX,
        samples: u32::MAX,
        pass: vec![PassAt { k: u32::MAX, success: 0.123_456_789 }; 4],
        reward: None,
        prompts: u32::MAX,
        failed: u32::MAX,
        reason: Some("x".repeat(200)),
        at_ms: u64::MAX,
    };
    for run in state.runs.values_mut() {
        run.reason = Some("y".repeat(1_024));
        run.remedy = Some("z".repeat(1_024));
        run.books.curve = (0..1_000).map(point).collect();
        run.books.evaluations = (0..500).map(evaluation).collect();
    }
    let names: Vec<RunId> = state.runs.keys().cloned().collect();
    let broker = Broker::new(Arc::new(MemoryQueue::new(Arc::new(SystemClock::new()))), Objects::memory());
    let api = Api::new(broker, SharedState::new(state));
    let call = async |endpoint: &str, body: String| {
        let reply = api.call(endpoint, Bytes::from(body)).await.expect("an answer");
        assert!(reply.len() < MAX_PAYLOAD_BYTES, "{endpoint}: {} bytes", reply.len());
        reply
    };
    let mut listed = Vec::new();
    let mut body = String::new();
    loop {
        let page: RunList = serde_json::from_slice(&call("list", body).await).expect("a page");
        listed.extend(page.runs.into_iter().map(|run| run.run));
        let Some(next) = page.next else { break };
        body = format!("{{\"after\": \"{next}\"}}");
    }
    assert_eq!(listed, names);
    call("status", format!("{{\"run\": \"{}\"}}", names[7])).await;
    let error = api.call("status", Bytes::from("{\"run\": \"nobody\"}")).await.expect_err("nobody");
    assert!(error.message.len() < 4_096, "{}", error.message.len());
}
