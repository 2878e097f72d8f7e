//! Weights that are read beside the engines: slowly, in vain, or for a run that has ended meanwhile.

use std::sync::mpsc;

use millrace_policy::{LoadedVersion, ReadyWeights};
use millrace_schemas::blob::Sha;
use tokio::task::JoinHandle;

use super::*;
use super::{announce, bench_with, commit, execute, run, segments, task};
use crate::model::versions::Files;
use crate::runtime::Tenant;

/// Version 3 is read once the test says so, version 4 breaks what reads it.
struct Gate {
    begun: tokio::sync::mpsc::UnboundedReceiver<()>,
    open: mpsc::Sender<()>,
}

fn gated() -> (Gate, Driver) {
    let (begins, begun) = tokio::sync::mpsc::unbounded_channel();
    let (open, opened) = mpsc::channel();
    let opened = Mutex::new(opened);
    let read = move |weights: &LoadedVersion| -> Result<Box<dyn ReadyWeights>, PolicyError> {
        match weights.version.0 {
            3 => {
                begins.send(()).unwrap();
                // The test ended.
                let _ = opened.lock().unwrap().recv();
            }
            4 => panic!("a tensor of another shape"),
            _ => {}
        }
        read_weights(weights)
    };
    (Gate { begun, open }, Driver::start(Arc::new(read)))
}

/// A driver that reads version 3, its first, and what waits for that.
async fn being_read() -> (Gate, Driver, JoinHandle<Result<(), PolicyError>>) {
    let (mut gate, driver) = gated();
    let (_, broker) = bench_with(None);
    let manifest = commit(&broker, 3).await;
    let sha = Sha::of(&manifest.to_json());
    let versions = VersionStore::new(broker.objects().clone());
    let weights = versions.fetch(&run(), manifest.version, sha, Files::Model).await.unwrap();
    let loads = driver.clone();
    let load = tokio::spawn(async move { loads.load(weights, watch::channel(Serving::default()).0).await });
    gate.begun.recv().await.unwrap();
    (gate, driver, load)
}

#[tokio::test]
async fn sampling_goes_on_while_the_next_weights_are_read() {
    let (mut gate, driver) = gated();
    let (generate, broker) = bench_with(Some(driver));
    announce(&broker, &commit(&broker, 2).await).await;
    segments(&execute(&generate, task(0, 2, 1)).await);

    announce(&broker, &commit(&broker, 3).await).await;
    gate.begun.recv().await.unwrap();
    for index in 1..20 {
        assert_eq!(segments(&execute(&generate, task(index, 2, 5)).await)[0].version, PolicyVersion(2));
    }
    let newer = generate.clone();
    let newer = tokio::spawn(async move { execute(&newer, task(20, 3, 5)).await });
    segments(&execute(&generate, task(21, 2, 5)).await);
    assert!(!newer.is_finished(), "its version is not there yet");
    gate.open.send(()).unwrap();
    assert_eq!(segments(&newer.await.unwrap())[0].version, PolicyVersion(3));
}

#[tokio::test]
async fn the_version_before_serves_while_the_next_breaks_what_reads_it() {
    let (_gate, driver) = gated();
    let (generate, broker) = bench_with(Some(driver));
    announce(&broker, &commit(&broker, 2).await).await;
    segments(&execute(&generate, task(0, 2, 1)).await);
    announce(&broker, &commit(&broker, 4).await).await;
    let verdict = execute(&generate, task(1, 4, 1)).await;
    assert!(matches!(&verdict, Verdict::RetryAfter(_, why) if why.contains("another shape")), "{verdict:?}");
    assert_eq!(segments(&execute(&generate, task(2, 2, 1)).await)[0].version, PolicyVersion(2));
}

/// What is read takes memory of the device, so that a trainer gets it only afterwards.
#[tokio::test]
async fn the_device_is_released_once_nothing_is_read() {
    let (gate, driver, load) = being_read().await;
    let leaves = driver.clone();
    let mut leave = tokio::spawn(async move { leaves.leave().await });
    // The engine's thread has had the command, and answers another.
    let refused = request(&driver, 0).await;
    assert!(refused.to_string().contains("no engine"), "{refused}");
    assert!(!leave.is_finished());
    gate.open.send(()).unwrap();
    (&mut leave).await.unwrap().unwrap();
    load.await.unwrap().unwrap();
    let refused = request(&driver, 1).await;
    assert!(refused.to_string().contains("a step has the device"), "{refused}");
}

#[tokio::test]
async fn a_run_that_is_forgotten_gets_no_engine_of_what_was_being_read() {
    let (gate, driver, load) = being_read().await;
    driver.forget(run());
    gate.open.send(()).unwrap();
    load.await.unwrap().unwrap_err();
    let refused = request(&driver, 0).await;
    assert!(refused.to_string().contains("no engine"), "{refused}");
}

/// Why a request of the run is refused.
async fn request(driver: &Driver, index: u32) -> PolicyError {
    let Task { body: TaskBody::Generate(task), key: TaskKey::Generate { rollout, .. }, .. } =
        task(index, 0, 1)
    else {
        unreachable!()
    };
    let (reply, answer) = oneshot::channel();
    let (cancel, leaving) = (CancellationToken::new(), CancellationToken::new());
    driver.request(run(), Request { rollout, task, cancel, leaving, reply });
    answer.await.unwrap().unwrap_err()
}
