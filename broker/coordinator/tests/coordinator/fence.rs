//! A coordinator that was stopped for longer than its lease and continues: its commands from before
//! do no harm.

use std::sync::Arc;
use std::time::Duration;

use millrace_coordinator::fold::command::{Command, Commands};
use millrace_coordinator::fold::state::State;
use millrace_coordinator::shell::execute::Executor;
use millrace_coordinator::shell::lanes::Lanes;
use millrace_coordinator::shell::leader::{Candidate, Progress, Term};
use millrace_coordinator::shell::shared::SharedState;
use millrace_coordinator::shell::{execute, journal, leader};
use millrace_queue::clock::SystemClock;
use millrace_queue::testing::gate::{Action, Fate, Gate, gated};
use millrace_queue::{Broker, MemoryQueue, Objects};
use millrace_schemas::blob::Sha;
use millrace_schemas::env_step::EnvStepDone;
use millrace_schemas::limits::MAX_INLINE_BYTES;
use millrace_schemas::policy::Policy;
use millrace_schemas::subjects::{ALL_RUNS, tasks_of_run};
use millrace_schemas::submit::from_toml;
use millrace_schemas::{Event, Outcome, OutcomeBody, PolicyVersion, RolloutId, RunId, Stage, TaskKey};
use millrace_telemetry::Health;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

/// Three coordinators whose object stores deny, have lost, or corrupt the content of turns and
/// observations fold the same log into the same state.
#[tokio::test(start_paused = true)]
async fn the_folded_state_does_not_depend_on_the_object_store() {
    let broker = broker();
    let file = r#"
        name = "run"
        steps = 3
        model = { kind = "scripted" }
        environment = { name = "counter", turns = 2 }
        evaluate = { prompts = 0 }
        rollout = { groups_per_step = 1, group_size = 2 }
    "#;
    let spec = from_toml(file).expect("a run file");
    broker.append("run", &Event::Submitted(Box::new(spec))).await.expect("appended");
    for index in 0..2 {
        let key = TaskKey::EnvStep { rollout: RolloutId { group: 0, index, attempt: 0 }, turn: 0 };
        let state = vec![index as u8; 2 * MAX_INLINE_BYTES];
        let done = EnvStepDone { state, observation: vec![1, 2], valid: true, ..EnvStepDone::default() };
        let worker = "w".parse().expect("a name");
        let body = OutcomeBody::EnvStep(done);
        let outcome = Event::Outcome(Outcome { key, worker, busy_us: 1, request_fingerprint: None, body });
        broker.append("run", &outcome).await.expect("appended");
    }
    let mut states = Vec::new();
    for fate in [Fate::Pass, Fate::Refuse, Fate::Absent, Fate::Corrupt] {
        let objects = gated(broker.objects(), Arc::new(Always(fate)));
        let mut log = Broker::new(broker.queue().clone(), objects).follow_log(1).await.expect("opened");
        let mut state = State::default();
        while state.seq < 3 {
            for entry in log.next(8).await.expect("the log itself has all of it") {
                state.advance(entry.seq, &entry.run, entry.event.expect("an event"));
            }
        }
        states.push(journal::encode_state(&state));
    }
    assert!(states.iter().all(|state| *state == states[0]));
}

/// Every read ends the same way.
struct Always(Fate);

#[async_trait::async_trait]
impl Gate for Always {
    async fn request(&self, _action: Action, _path: &str) -> Fate {
        self.0
    }

    async fn answer(&self) -> bool {
        true
    }
}

fn broker() -> Broker {
    Broker::new(Arc::new(MemoryQueue::new(Arc::new(SystemClock::default()))), Objects::memory())
}

fn run() -> RunId {
    "run".parse().expect("a name")
}

fn policy(version: u64) -> Policy {
    let manifest = Sha::of(&version.to_le_bytes());
    let version = PolicyVersion(version);
    Policy { version, manifest, floor: version, attempt: 0, partitions: 1, ended: false }
}

/// Commands that a coordinator may have decided on.
fn decided(version: u64) -> Commands {
    let filter = tasks_of_run(Stage::Generate, &run());
    vec![
        Command::SetPolicy { run: run(), policy: policy(version) },
        Command::Purge { run: run(), stage: Stage::Generate, filter },
    ]
}

/// Executes `commands` in `term`.
async fn execute(broker: &Broker, commands: Commands, term: &Term) {
    execute_sharing(broker, commands, term, &SharedState::new(State::default())).await;
}

async fn execute_sharing(broker: &Broker, commands: Commands, term: &Term, shared: &SharedState) {
    let (lanes, begun) = Lanes::new();
    lanes.push(commands);
    let (shared, health) = (shared.clone(), Health::default());
    let executor =
        Executor { broker: broker.clone(), shared, lanes: lanes.clone(), term: term.clone(), health };
    let done = async {
        while !lanes.is_idle() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = execute::run(executor, begun) => {}
        () = done => {}
    }
}

async fn version(broker: &Broker) -> Option<u64> {
    broker.policy(&run()).await.expect("it answers").map(|(policy, _)| policy.version.0)
}

/// After a power failure the lease and the log only know the first leader, and a policy key has the
/// seventh's epoch. The holder of the lease then takes a later epoch, and repeats the command that
/// the key refused.
#[tokio::test(start_paused = true)]
async fn a_leader_takes_a_later_epoch_than_any_key_has() {
    let broker = broker();
    broker.set_policy_led(&run(), &policy(1), 7).await.expect("written");
    let (shared, term) = (SharedState::new(State::default()), Term::default());
    let (leading, mut led) = watch::channel(false);
    let (lanes, _begun) = Lanes::new();
    let candidate = Candidate {
        broker: broker.clone(),
        id: "one".to_owned(),
        instance: "process".to_owned(),
        shared: shared.clone(),
        term: term.clone(),
        progress: Progress::new(lanes),
    };
    let stop = CancellationToken::new();
    tokio::spawn(leader::hold(candidate, leading, stop.clone()));
    led.wait_for(|leads| *leads).await.expect("it leads");
    assert_eq!(term.epoch(), 1);
    led.mark_unchanged();
    execute_sharing(&broker, decided(2), &term, &shared).await;
    assert_eq!(version(&broker).await, Some(1), "a later leader's write is kept");
    timeout(Duration::from_secs(60), led.changed()).await.expect("it starts a new term").expect("it lives");
    assert!(*led.borrow() && term.epoch() > 7, "{}", term.epoch());
    execute_sharing(&broker, decided(2), &term, &shared).await;
    assert_eq!(version(&broker).await, Some(2));
    stop.cancel();
}

#[tokio::test]
async fn commands_from_before_a_suspension_are_not_executed() {
    let (broker, term) = (broker(), Term::default());
    assert!(term.extend(Instant::now() + Duration::from_secs(60), 1), "it was not in office before");
    execute(&broker, decided(1), &term).await;
    assert_eq!(version(&broker).await, Some(1));
    // Stopped for longer than the lease.
    term.extend(Instant::now(), 1);
    execute(&broker, decided(2), &term).await;
    assert_eq!(version(&broker).await, Some(1));
    // When it leads again, the new term is reported.
    assert!(term.extend(Instant::now() + Duration::from_secs(60), 1));
    assert!(!term.extend(Instant::now() + Duration::from_secs(60), 1));
    execute(&broker, decided(2), &term).await;
    assert_eq!(version(&broker).await, Some(2));
    term.end();
    execute(&broker, decided(3), &term).await;
    assert_eq!(version(&broker).await, Some(2));
}

/// A write that was in transit when the process was stopped may arrive at any time.
#[tokio::test]
async fn an_old_policy_that_arrives_late_changes_nothing() {
    let broker = broker();
    broker.set_policy(&run(), &policy(7)).await.expect("written");
    broker.set_policy(&run(), &Policy { ended: true, ..policy(7) }).await.expect("written");
    broker.set_policy(&run(), &policy(6)).await.expect("ignored");
    let (stored, _) = broker.policy(&run()).await.expect("it answers").expect("it exists");
    assert_eq!(stored, Policy { ended: true, ..policy(7) });
}

#[tokio::test]
async fn the_newest_snapshot_never_goes_back() {
    let broker = broker();
    for unix_ms in 0..10 {
        broker.append(ALL_RUNS, &Event::Tick { unix_ms }).await.expect("appended");
    }
    let at = |seq: u64| journal::encode_state(&State { seq, unix_ms: seq, ..State::default() });
    journal::save(&broker, "one", 10, at(10)).await.expect("saved");
    journal::save(&broker, "two", 5, at(5)).await.expect("left");
    assert_eq!(journal::restore(&broker).await.expect("restored").seq, 10);
}

/// Two that save at one position have different bytes or the same; in both cases the object that
/// the key refers to exists.
#[tokio::test]
async fn of_two_snapshots_at_one_position_the_referenced_one_is_kept() {
    for same in [true, false] {
        let broker = broker();
        for unix_ms in 0..10 {
            broker.append(ALL_RUNS, &Event::Tick { unix_ms }).await.expect("appended");
        }
        let at = |seq: u64, ignored: u64| journal::encode_state(&State { seq, ignored, ..State::default() });
        for seq in [5, 10] {
            let other = if same { 0 } else { 1 };
            let (one, two) = tokio::join!(
                journal::save(&broker, "one", seq, at(seq, 0)),
                journal::save(&broker, "two", seq, at(seq, other)),
            );
            one.and(two).expect("saved, or another was faster");
            assert_eq!(journal::restore(&broker).await.expect("restored").seq, seq, "same={same}");
        }
        let kept = journal::snapshots(&broker).await.expect("named");
        let stored = broker.objects().list("snapshots").await.expect("listed");
        assert_eq!(stored.len(), kept.len(), "nothing else is left: {stored:?}");
        for snapshot in kept {
            journal::load(&broker, &snapshot).await.expect("each that is named loads");
        }
    }
}

#[tokio::test]
async fn a_damaged_snapshot_is_replaced_by_the_one_before() {
    let broker = broker();
    for unix_ms in 0..10 {
        broker.append(ALL_RUNS, &Event::Tick { unix_ms }).await.expect("appended");
    }
    let at = |seq: u64| journal::encode_state(&State { seq, ..State::default() });
    for seq in [3, 6, 9] {
        journal::save(&broker, "one", seq, at(seq)).await.expect("saved");
    }
    let kept = journal::snapshots(&broker).await.expect("named");
    assert_eq!(kept.iter().map(|snapshot| snapshot.seq).collect::<Vec<_>>(), [9, 6]);
    assert_eq!(broker.objects().list("snapshots").await.expect("listed").len(), 2, "the third is gone");
    broker.objects().put(&kept[0].path, "damaged".into()).await.expect("written");
    assert_eq!(journal::restore(&broker).await.expect("restored").seq, 6);
    broker.objects().delete(&kept[0].path).await.expect("deleted");
    assert_eq!(journal::restore(&broker).await.expect("restored").seq, 6);
}

/// Two processes of one name: the one that lost its lease to the other waits as for any other
/// process, and leads again when the other is gone.
#[tokio::test]
async fn a_process_that_lost_its_name_takes_over_when_the_other_is_gone() {
    let broker = broker();
    let begin = |instance: &str| {
        let (leading, leads) = watch::channel(false);
        let candidate = Candidate {
            broker: broker.clone(),
            id: "coordinator-0".to_owned(),
            instance: instance.to_owned(),
            shared: SharedState::new(State::default()),
            term: Term::default(),
            progress: Progress::new(Lanes::new().0),
        };
        let held = leader::hold(candidate, leading, CancellationToken::new());
        (tokio::spawn(held), leads)
    };
    let patience = Duration::from_secs(30);
    let becomes = async |leads: &mut watch::Receiver<bool>, wanted: bool| {
        let waited = timeout(patience, leads.wait_for(|leads| *leads == wanted)).await;
        assert!(matches!(waited, Ok(Ok(_))), "it never came to leads={wanted}");
    };
    let (_first, mut first) = begin("one");
    becomes(&mut first, true).await;
    let (task, mut second) = begin("two");
    becomes(&mut second, true).await;
    becomes(&mut first, false).await;
    task.abort();
    becomes(&mut first, true).await;
}
