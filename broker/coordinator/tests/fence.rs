//! A coordinator that was stopped for longer than its lease, and goes on: what it had decided on before does
//! no harm.

use std::sync::Arc;
use std::time::Duration;

use millrace_coordinator::command::{Command, Commands};
use millrace_coordinator::leader::Term;
use millrace_coordinator::state::State;
use millrace_coordinator::{execute, journal, leader};
use millrace_queue::clock::SystemClock;
use millrace_queue::{Broker, MemoryQueue, Objects};
use millrace_schemas::blob::Sha;
use millrace_schemas::policy::Policy;
use millrace_schemas::subjects::{ALL_RUNS, tasks_of_run};
use millrace_schemas::{Event, PolicyVersion, RunId, Stage};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

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

/// What a coordinator may have decided on.
fn decided(version: u64) -> Commands {
    let filter = tasks_of_run(Stage::Generate, &run());
    vec![
        Command::SetPolicy { run: run(), policy: policy(version) },
        Command::Purge { stage: Stage::Generate, filter },
    ]
}

/// Does `commands` in `term`.
async fn execute(broker: &Broker, commands: Commands, term: &Term) {
    let (sender, receiver) = mpsc::channel(1);
    sender.send(commands).await.expect("there is room");
    drop(sender);
    execute::run(broker.clone(), receiver, term.clone()).await;
}

async fn version(broker: &Broker) -> Option<u64> {
    broker.policy(&run()).await.expect("it answers").map(|(policy, _)| policy.version.0)
}

#[tokio::test]
async fn what_was_decided_before_a_pause_is_left() {
    let (broker, term) = (broker(), Term::default());
    assert!(term.extend(Instant::now() + Duration::from_secs(60)), "it was not in office before");
    execute(&broker, decided(1), &term).await;
    assert_eq!(version(&broker).await, Some(1));
    // Stopped for longer than the lease.
    term.extend(Instant::now());
    execute(&broker, decided(2), &term).await;
    assert_eq!(version(&broker).await, Some(1));
    // In office again, it is told that it has left something undone.
    assert!(term.extend(Instant::now() + Duration::from_secs(60)));
    assert!(!term.extend(Instant::now() + Duration::from_secs(60)));
    execute(&broker, decided(2), &term).await;
    assert_eq!(version(&broker).await, Some(2));
    term.end();
    execute(&broker, decided(3), &term).await;
    assert_eq!(version(&broker).await, Some(2));
}

/// Were a write on its way already when the process was stopped, it may arrive at any time.
#[tokio::test]
async fn an_old_policy_that_arrives_late_changes_nothing() {
    let broker = broker();
    broker.set_policy(&run(), &policy(7)).await.expect("written");
    broker.set_policy(&run(), &Policy { ended: true, ..policy(7) }).await.expect("written");
    broker.set_policy(&run(), &policy(6)).await.expect("ignored");
    let (standing, _) = broker.policy(&run()).await.expect("it answers").expect("it stands");
    assert_eq!(standing, Policy { ended: true, ..policy(7) });
}

#[tokio::test]
async fn the_newest_snapshot_never_goes_back() {
    let broker = broker();
    for unix_ms in 0..10 {
        broker.append(ALL_RUNS, &Event::Tick { unix_ms }).await.expect("appended");
    }
    let at = |seq: u64| journal::encode_state(&State { seq, unix_ms: seq, ..State::default() });
    journal::save(&broker, 10, at(10)).await.expect("saved");
    journal::save(&broker, 5, at(5)).await.expect("left");
    assert_eq!(journal::restore(&broker).await.expect("restored").seq, 10);
}

/// Two processes of one name: the one that lost its lease to the other waits for it as for anybody else's, and
/// acts again when the other is gone.
#[tokio::test]
async fn one_that_lost_its_name_takes_over_when_the_other_is_gone() {
    let broker = broker();
    let begin = |instance: &str| {
        let (leading, leads) = watch::channel(false);
        let name = ("coordinator-0".to_owned(), instance.to_owned());
        let held = leader::hold(broker.clone(), name, leading, Term::default(), CancellationToken::new());
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
